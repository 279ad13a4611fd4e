"""A slot's lease goes with the work like any other."""

from tests.conftest import Caster, error_of
from tests.handoffs.conftest import resolve, sent, show
from tests.pools.conftest import Declare, ask, declare, look, on_slot, slots, take, waiting_runs

__all__ = ["declare"]


def test_a_slot_moves_and_no_waiter_gets_in_between(
    declare: Declare, agent: Caster, teammate: Caster, third: Caster
) -> None:
    declare(slots=slots(1))
    (grant,) = ask(agent)["grants"]
    waiting = ask(third)
    handoff_id = sent(agent, teammate, lease_ids=[grant["lease_id"]])
    (moved,) = resolve(teammate, handoff_id).json()["data"]["leases"]
    assert (moved["resource_type"], moved["fencing_token"] > grant["fencing_token"]) == ("slot", True)
    lost = error_of(on_slot(agent, grant, "heartbeat"))
    assert (lost["status"], lost["ended_by"]) == (410, "transferred")
    assert look(third, waiting)["state"] == "queued"
    assert on_slot(teammate, {**grant, "fencing_token": moved["fencing_token"]}, "release").status_code == 200
    assert look(third, waiting)["state"] == "ready"


def test_a_slot_that_is_being_prepared_is_not_handed_out(declare: Declare, agent: Caster, teammate: Caster) -> None:
    declare(slots=slots(1), provision="true", reset="true")
    asked = ask(agent)
    assert waiting_runs() == 1
    held = agent.get("leases?resource_type=slot").json()["data"]["leases"][0]["lease_id"]
    handoff_id = sent(agent, teammate, lease_ids=[held])
    assert error_of(resolve(teammate, handoff_id))["code"] == "CONFLICT"
    assert show(teammate, handoff_id)["status"] == "pending"
    assert look(agent, asked)["state"] == "provisioning"
    assert take() is not None
