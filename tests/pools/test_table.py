"""Every verb on a request in every state: what it answers, and what the request is afterwards."""

from collections.abc import Callable
from typing import Any

import pytest

from leases.models import Resource
from pools.models import Request
from tests.conftest import Caster
from tests.pools.conftest import Declare, ask, fails, look, on_slot, slots, take

COMMANDS = {"provision": "make-clean", "health": "is-healthy"}


class Scene:
    """A pool of one slot, and a request of the agent's for it."""

    def __init__(self, pool: str, agent: Caster, teammate: Caster, operator: Caster, declare: Declare) -> None:
        self.pool, self.agent, self.teammate, self.operator, self.declare = pool, agent, teammate, operator, declare
        #: As the holder of the slot knows it; a slot that it never had has another token.
        self.grant = {"slot_id": 1, "fencing_token": 1}

    def ask(self, **members: Any) -> None:
        self.declare(self.pool, slots=slots(1), **members)
        self.request = ask(self.agent, self.pool)
        if self.request["grants"]:
            (self.grant,) = self.request["grants"]

    @property
    def address(self) -> str:
        return f"pools/{self.pool}/requests/{self.request['request_id']}"

    def state(self) -> str:
        return str(look(self.operator, self.request)["state"])

    def fail(self, action: str) -> None:
        for _ in range(3):
            fails(action=action)


def queued(scene: Scene) -> None:
    scene.declare(scene.pool, slots=slots(1))
    ask(scene.teammate, scene.pool)
    scene.ask()


def provisioning(scene: Scene) -> None:
    scene.ask(**COMMANDS)


def ready(scene: Scene) -> None:
    scene.ask()


def reset_failed(scene: Scene) -> None:
    scene.ask(**COMMANDS)
    scene.fail("provision")


def health_failed(scene: Scene) -> None:
    scene.ask(**COMMANDS)
    scene.fail("health")


def lease_lost(scene: Scene) -> None:
    scene.ask()
    assert on_slot(scene.agent, scene.grant, "release", scene.pool).status_code == 200


def lease_lost_during_reset(scene: Scene) -> None:
    scene.ask(**COMMANDS)
    take()
    lease = Resource.objects.get(resource_id=f"{scene.pool}/1")
    assert lease.lease_id is not None
    body = {"reason": "test", "fencing_token": lease.last_token}
    assert scene.operator.post(f"leases/lease_{lease.lease_id.hex}/force-release", body).status_code == 200


def dropped(scene: Scene) -> None:
    queued(scene)
    assert scene.operator.delete(scene.address).status_code == 200


def cancelled(scene: Scene) -> None:
    queued(scene)
    assert scene.agent.delete(scene.address).status_code == 200


STATES = (
    queued,
    provisioning,
    ready,
    reset_failed,
    health_failed,
    lease_lost,
    lease_lost_during_reset,
    dropped,
    cancelled,
)
VERBS: dict[str, Callable[[Scene], Any]] = {
    "show": lambda scene: scene.agent.get(scene.address),
    "cancel": lambda scene: scene.agent.delete(scene.address),
    "cancel-by-a-teammate": lambda scene: scene.teammate.delete(scene.address),
    "drop": lambda scene: scene.operator.delete(scene.address),
    "heartbeat": lambda scene: on_slot(scene.agent, scene.grant, "heartbeat", scene.pool),
    "reset": lambda scene: on_slot(scene.agent, scene.grant, "reset", scene.pool),
    "release": lambda scene: on_slot(scene.agent, scene.grant, "release", scene.pool),
}

# Whatever the state, a final one never changes again; cancelling what has ended is only asking how.
ENDS_AS = {"cancel": "cancelled", "drop": "dropped"}
ON_THE_SLOT = ("heartbeat", "reset", "release")


def expected(verb: str, state: str) -> tuple[int, str | None, str]:
    """Status, code, and the state afterwards."""
    if verb == "cancel-by-a-teammate":
        return 404, "NOT_FOUND", state
    if verb == "drop" and state == "ready":
        # Its leases live: they are ended by a force-release alone, with a reason.
        return 409, "CONFLICT", state
    if verb in ENDS_AS:
        return 200, None, ENDS_AS[verb] if state in Request.OPEN else state
    if verb in ON_THE_SLOT and state == "lease_lost":
        return 410, "LEASE_LOST", state
    if verb in ON_THE_SLOT and state != "ready":
        return 409, "STALE_TOKEN", state
    return 200, None, "lease_lost" if verb == "release" else state


def test_every_state_is_in_the_table() -> None:
    assert [state.__name__ for state in STATES] == [state.value for state in Request.State]


@pytest.mark.parametrize("state", STATES)
def test_every_verb_in_every_state(
    state: Callable[[Scene], None], agent: Caster, teammate: Caster, operator: Caster, declare: Declare
) -> None:
    was = state.__name__
    for verb, carry_out in VERBS.items():
        scene = Scene(f"pool-{verb}", agent, teammate, operator, declare)
        state(scene)
        assert scene.state() == was
        answer = carry_out(scene)
        status, code, after = expected(verb, was)
        assert (answer.status_code, answer.json().get("error", {}).get("code")) == (status, code), verb
        assert scene.state() == after, verb
