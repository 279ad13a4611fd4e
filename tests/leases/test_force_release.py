from typing import Any

import pytest

from leasehub.events.models import Event
from tests.conftest import Caster, error_of
from tests.leases.conftest import Endings, Held


def force(operator: Caster, held: Held, **members: Any) -> Any:
    body = {"reason": "the job hangs", "fencing_token": held.token, **members}
    return operator.post(f"leases/{held.lease_id}/force-release", body)


def test_an_operator_ends_anybody_s_lease_and_the_reason_is_on_record(
    held: Held, operator: Caster, teammate: Caster
) -> None:
    response = force(operator, held)
    assert response.status_code == 200
    assert response.json()["data"] | {"lease_id": held.lease_id, "was_expired": False} == response.json()["data"]
    event = Event.objects.get(type="lease.force_released")
    assert event.data["reason"] == "the job hangs"
    assert (event.actor_id, event.principal_id) == (operator.principal.pk, held.agent.principal.pk)
    assert teammate.acquire().status_code == 201
    assert error_of(held.beat())["ended_by"] == "force_released"


def test_the_token_must_name_the_acquisition_that_is_meant(held: Held, operator: Caster) -> None:
    refused = error_of(force(operator, held, fencing_token=held.token - 1))
    assert (refused["status"], refused["code"]) == (409, "STALE_TOKEN")
    assert held.show()["state"] == "held"


def test_an_expired_lease_is_ended_and_said_to_have_been_expired(held: Held, operator: Caster, clock: Any) -> None:
    clock.move(seconds=60)
    assert force(operator, held).json()["data"]["was_expired"] is True


def test_whatever_has_ended_cannot_be_ended_again(endings: Endings, operator: Caster) -> None:
    for held in endings.values():
        assert error_of(force(operator, held))["code"] == "NOT_FOUND"


def test_nobody_without_the_ring_and_nobody_from_outside(held: Held, teammate: Caster, stranger: Caster) -> None:
    refused = error_of(force(teammate, held))
    assert (refused["status"], refused["missing_ring"]) == (403, 3)
    assert "RING-3" in refused["message"]
    assert error_of(force(stranger, held))["code"] == "NOT_FOUND"
    assert held.show()["state"] == "held"


@pytest.mark.parametrize("leave_out", ["reason", "fencing_token"])
def test_neither_reason_nor_token_can_be_left_out(held: Held, operator: Caster, leave_out: str) -> None:
    body = {name: value for name, value in {"reason": "x", "fencing_token": held.token}.items() if name != leave_out}
    refused = error_of(operator.post(f"leases/{held.lease_id}/force-release", body))
    assert (refused["status"], list(refused["fields"])) == (400, [leave_out])
