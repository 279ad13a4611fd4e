from typing import Any

import pytest

from tests.conftest import Caster, cast, error_of
from tests.leases.conftest import Held


def listed(caster: Caster, query: str = "") -> list[str]:
    return [lease["resource_id"] for lease in caster.get(f"leases{query}").json()["data"]["leases"]]


def walked(caster: Caster, path: str, limit: int, name: str = "leases") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    query = f"?limit={limit}"
    for _ in range(100):
        page = caster.get(path + query).json()["data"]
        assert len(page[name]) <= limit
        rows += page[name]
        if page["next"] is None:
            return rows
        query = f"?limit={limit}&after={page['next']}"
    raise AssertionError("the pages have no end")


def test_the_list_has_what_is_held_or_unknown_and_not_what_ended(agent: Caster, teammate: Caster, clock: Any) -> None:
    Held.by(agent, "dead", ttl_seconds=10)
    Held.by(agent, "alive")
    Held.by(teammate, "theirs")
    Held.by(agent, "released").release()
    clock.move(seconds=10)
    assert listed(agent) == ["dead", "alive", "theirs"]
    assert listed(agent, "?state=held") == ["alive", "theirs"]
    assert listed(agent, "?state=unknown") == ["dead"]
    assert listed(agent, "?state=free") == []


def test_each_filter_narrows_and_together_they_narrow_more(agent: Caster, teammate: Caster) -> None:
    Held.by(agent, "a", resource_type="deploy", holder="w1")
    Held.by(agent, "b", resource_type="deploy", holder="w2")
    Held.by(teammate, "a", resource_type="build", holder="w1")
    assert listed(agent, "?resource_type=deploy") == ["a", "b"]
    assert listed(agent, "?resource_id=a") == ["a", "a"]
    assert listed(agent, "?holder=w1") == ["a", "a"]
    assert listed(agent, "?holder=w1&resource_type=build&resource_id=a&state=held") == ["a"]
    assert listed(agent, "?holder=w") == []
    assert listed(agent, "?holder=W1") == []


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 200])
def test_pages_have_every_lease_once_in_one_order(agent: Caster, limit: int) -> None:
    made = [Held.by(agent, f"r{number}").lease_id for number in range(7)]
    assert [lease["lease_id"] for lease in walked(agent, "leases", limit)] == made


def test_a_page_that_is_just_full_is_the_last_when_nothing_follows(agent: Caster) -> None:
    for number in range(2):
        Held.by(agent, f"r{number}")
    assert agent.get("leases?limit=2").json()["data"]["next"] is None
    assert agent.get("leases?limit=1").json()["data"]["next"] is not None


def test_by_default_a_page_has_fifty(agent: Caster) -> None:
    for number in range(51):
        Held.by(agent, f"r{number}")
    page = agent.get("leases").json()["data"]
    assert len(page["leases"]) == 50
    assert len(agent.get(f"leases?after={page['next']}").json()["data"]["leases"]) == 1


def test_what_ends_or_begins_meanwhile_neither_doubles_nor_hides_the_others(agent: Caster) -> None:
    held = [Held.by(agent, f"r{number}") for number in range(6)]
    first = agent.get("leases?limit=3").json()["data"]
    held[0].release()
    held[2].release()
    Held.by(agent, "late")
    rest = agent.get(f"leases?after={first['next']}").json()["data"]["leases"]
    assert [lease["resource_id"] for lease in rest] == ["r3", "r4", "r5", "late"]


def test_no_token_of_another_principal_is_in_the_list(held: Held, teammate: Caster) -> None:
    (lease,) = teammate.get("leases").json()["data"]["leases"]
    assert lease["fencing_token"] is None
    assert lease["holder"] == "agent"


def test_the_list_needs_ring_1(organization: Any) -> None:
    refused = error_of(cast(organization, "blind", (2,)).get("leases"))
    assert (refused["status"], refused["missing_ring"]) == (403, 1)


def test_another_organization_s_leases_are_not_in_it(held: Held, stranger: Caster) -> None:
    assert listed(stranger) == []
    assert listed(stranger, "?resource_type=deploy&resource_id=checkout") == []
