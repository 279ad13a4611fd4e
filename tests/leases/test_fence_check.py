from typing import Any

import pytest

from tests.conftest import Caster, cast
from tests.leases.conftest import Held


def check(caster: Caster, token: int, resource_id: str = "checkout") -> Any:
    body = {"resource_type": "deploy", "resource_id": resource_id, "fencing_token": token}
    response = caster.post("fence/check", body)
    assert response.status_code == 200
    return response.json()["data"]


def test_the_token_of_the_live_lease_is_current(held: Held, teammate: Caster) -> None:
    assert check(teammate, held.token) == {"current": True, "highest_token": held.token}


@pytest.mark.parametrize("off", [-1, 1])
def test_any_other_token_is_not(held: Held, teammate: Caster, off: int) -> None:
    assert check(teammate, held.token + off) == {"current": False, "highest_token": held.token}


def test_a_stale_writer_is_seen_after_a_takeover(held: Held, teammate: Caster, clock: Any) -> None:
    clock.move(seconds=60)
    taken = Held.by(teammate)
    assert check(teammate, held.token) == {"current": False, "highest_token": taken.token}
    assert check(teammate, taken.token)["current"]


def test_a_token_is_not_current_once_its_lease_ran_out_or_ended(held: Held, clock: Any) -> None:
    clock.move(seconds=60)
    assert check(held.agent, held.token) == {"current": False, "highest_token": held.token}
    clock.move(seconds=-60)
    assert check(held.agent, held.token)["current"]
    held.release()
    assert check(held.agent, held.token) == {"current": False, "highest_token": held.token}


def test_what_never_was_has_no_token_and_stays_unmade(agent: Caster) -> None:
    assert check(agent, 1) == {"current": False, "highest_token": 0}


def test_any_ring_may_ask_and_another_organization_learns_nothing(
    held: Held, stranger: Caster, organization: Any
) -> None:
    for rings in [(1,), (2,), (3,)]:
        assert check(cast(organization, f"ring-{rings[0]}", rings), held.token)["current"]
    assert check(stranger, held.token) == {"current": False, "highest_token": 0}
