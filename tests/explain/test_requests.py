"""Why a request waits, or how it ended."""

from typing import Any

import pytest

from leases import services
from pools import services as pools
from tests.conftest import Caster, cast, error_of


def explained(who: Caster, request_id: str) -> dict[str, Any]:
    response = who.get(f"explain/requests/{request_id}")
    assert response.status_code == 200, response.content
    body: dict[str, Any] = response.json()["data"]
    return body


def asked(who: Caster, **members: Any) -> str:
    made = who.post("pools/phones/requests", {"mode": "async", **members}).json()["data"]
    return str(made["request_id"])


@pytest.fixture
def pool(operator: Caster) -> None:
    slots = [{"id": "s1", "os": "android"}, {"id": "s2", "os": "ios"}]
    assert operator.put("pools/phones", {"slots": slots}).status_code == 201


def test_a_place_in_the_queue(agent: Caster, teammate: Caster, pool: None) -> None:
    asked(agent, count=2)
    first, second = asked(teammate), asked(agent)
    said = explained(agent, second)
    assert (said["reason"], said["position"], said["slots"]["slots_held"]) == ("queued", 2, 2)
    assert [other["holder"] for other in said["ahead"]] == ["teammate"]
    assert "place 2 of 2" in said["explanation"]
    assert explained(teammate, first)["ahead"] == []


def test_what_it_asks_for_is_not_free(agent: Caster, teammate: Caster, pool: None) -> None:
    asked(agent, selector={"os": "ios"})
    said = explained(teammate, asked(teammate, selector={"os": "ios"}))
    assert (said["slots"]["matching"], said["slots"]["matching_free"], said["slots"]["slots_free"]) == (1, 0, 1)
    assert "1 of them are what it asks for, 0 of these are free." in said["explanation"]


def test_how_it_ended(agent: Caster, teammate: Caster, operator: Caster, pool: None, clock: Any) -> None:
    granted = asked(agent, count=2, ttl_seconds=10)
    assert explained(agent, granted)["reason"] == "ready"
    waiting, left, dropped = asked(teammate), asked(teammate), asked(teammate)
    teammate.delete(f"pools/phones/requests/{left}")
    operator.delete(f"pools/phones/requests/{dropped}")
    assert explained(teammate, left)["reason"] == "cancelled"
    said = explained(teammate, dropped)
    assert (said["reason"], "an operator dropped it" in said["explanation"]) == ("operator", True)
    clock.move(seconds=100)
    services.reap_due()
    pools.sweep_pools()
    assert explained(agent, granted)["reason"] == "lease_lost"
    assert "reaped" in explained(agent, granted)["explanation"]
    assert explained(teammate, waiting)["reason"] == "silent"


def test_being_prepared(agent: Caster, operator: Caster) -> None:
    operator.put("pools/phones", {"slots": [{"id": "s1"}], "provision": "true"})
    said = explained(agent, asked(agent))
    assert (said["reason"], "being prepared" in said["explanation"]) == ("provisioning", True)
    assert "The commands (provision) run on slot s1 as soon as a worker takes it." in said["sentences"]


def test_others_requests_are_for_those_who_observe(
    agent: Caster, organization: Any, stranger: Caster, pool: None
) -> None:
    blind = cast(organization, "blind", (2,))
    asked(agent, count=2)
    own, theirs = asked(blind), asked(agent)
    said = explained(blind, own)
    assert (said["position"], said["ahead"]) == (1, [])
    assert "agent" not in str(said)
    nothing = error_of(agent.get("explain/requests/req_" + "0" * 32))
    for who in (blind, stranger):
        assert error_of(who.get(f"explain/requests/{theirs}")) == nothing
    assert explained(agent, own)["holder"] == "blind"
