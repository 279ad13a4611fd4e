"""Every path that frees capacity wakes the head of the queue, in its own transaction."""

from collections.abc import Callable
from typing import Any

import pytest

from leasehub.events.models import Event
from leases import services as leases
from leases.models import Resource
from pools import services
from pools.models import Slot
from tests.conftest import Caster
from tests.pools.conftest import Declare, ask, look, on_slot, passes, slots


class Scene:
    """A pool of one slot that is not free, and a waiter."""

    def __init__(self, agent: Caster, operator: Caster, declare: Declare, clock: Any) -> None:
        self.agent, self.operator, self.declare, self.clock = agent, operator, declare, clock
        declare(slots=slots(1), ttlMinutes=1)
        self.held = ask(agent)
        self.grant = self.held["grants"][0]

    def operate(self, verb: str) -> None:
        assert self.operator.post(f"pools/e2e/slots/1/{verb}").status_code in (200, 202)


def release(scene: Scene) -> None:
    assert on_slot(scene.agent, scene.grant, "release").status_code == 200


def release_the_lease(scene: Scene) -> None:
    assert scene.agent.delete(f"leases/{scene.grant['lease_id']}").status_code == 200


def force_release(scene: Scene) -> None:
    body = {"reason": "test", "fencing_token": scene.grant["fencing_token"]}
    assert scene.operator.post(f"leases/{scene.grant['lease_id']}/force-release", body).status_code == 200


def reaper(scene: Scene) -> None:
    scene.clock.move(seconds=61)
    assert leases.reap_due() == 1


def reap_by_hand(scene: Scene) -> None:
    scene.clock.move(seconds=61)
    assert scene.agent.post("leases/reap", {"resource_type": "slot", "resource_id": "e2e/1"}).status_code == 200


def reconcile(scene: Scene) -> None:
    scene.clock.move(seconds=61)
    assert len(scene.agent.post("leases/reconcile").json()["data"]["reaped"]) == 1


def cancel(scene: Scene) -> None:
    assert scene.agent.delete(f"pools/e2e/requests/{scene.held['request_id']}").status_code == 200


def pump(scene: Scene) -> None:
    scene.clock.move(seconds=61)
    assert scene.agent.post("pools/e2e/pump").status_code == 200


def slot_added(scene: Scene) -> None:
    scene.declare(slots=slots(2), ttlMinutes=1)


def slot_declared_again(scene: Scene) -> None:
    scene.declare(slots=[{"id": 9}], ttlMinutes=1)
    release(scene)
    Slot.objects.filter(slot_id="9").update(is_draining=True)
    scene.declare(slots=[{"id": 9}, {"id": 1}], ttlMinutes=1)


def undrained(scene: Scene) -> None:
    scene.operate("undrain")


def repaired(scene: Scene) -> None:
    scene.operate("repair")


def health_recovered(scene: Scene) -> None:
    Slot.objects.update(is_broken=True, failures=3)
    scene.declare(slots=slots(1), ttlMinutes=1, health="is-healthy")
    scene.operate("health")
    passes()


def label_changed(scene: Scene) -> None:
    scene.declare(slots=[{"id": 1, "region": "eu"}], ttlMinutes=1)


def a_large_request_leaves(scene: Scene) -> None:
    large = scene.agent.get("pools/e2e/requests?state=queued").json()["data"]["requests"][-1]
    assert scene.operator.delete(f"pools/e2e/requests/{large['request_id']}").status_code == 200


Prepare = Callable[[Scene], Any]


def nothing(scene: Scene) -> None:
    return


def free_but_drained(scene: Scene) -> None:
    scene.operate("drain")
    release(scene)


def free_but_broken(scene: Scene) -> None:
    Slot.objects.update(is_broken=True, failures=3)
    release(scene)


def free_but_elsewhere(scene: Scene) -> None:
    scene.declare(slots=[{"id": 1, "region": "us"}, {"id": 2, "region": "eu"}], ttlMinutes=1)
    ask(scene.operator, selector={"region": "eu"})
    release(scene)


def free_but_kept(scene: Scene) -> None:
    scene.declare(slots=slots(2), ttlMinutes=1)
    ask(scene.operator, count=2)


PATHS: list[tuple[Prepare, Prepare, dict[str, Any]]] = [
    (nothing, release, {}),
    (nothing, release_the_lease, {}),
    (nothing, force_release, {}),
    (nothing, reaper, {}),
    (nothing, reap_by_hand, {}),
    (nothing, reconcile, {}),
    (nothing, cancel, {}),
    (nothing, pump, {}),
    (nothing, slot_added, {}),
    (nothing, slot_declared_again, {}),
    (free_but_drained, undrained, {}),
    (free_but_broken, repaired, {}),
    (free_but_broken, health_recovered, {}),
    (free_but_elsewhere, label_changed, {"selector": {"region": "eu"}}),
    (free_but_kept, a_large_request_leaves, {}),
]


@pytest.mark.parametrize(("before", "path", "wish"), PATHS, ids=[path.__name__ for _, path, _ in PATHS])
def test_the_head_of_the_queue_is_woken(
    before: Prepare,
    path: Prepare,
    wish: dict[str, Any],
    agent: Caster,
    teammate: Caster,
    operator: Caster,
    declare: Declare,
    clock: Any,
) -> None:
    scene = Scene(agent, operator, declare, clock)
    before(scene)
    waiter = ask(teammate, **wish)
    assert waiter["state"] == "queued"
    path(scene)
    from pools.models import Request

    stored = Request.objects.get(request_id=waiter["request_id"].removeprefix("req_"))
    # As the path left it: no look of the waiter's helped.
    assert stored.state in ("ready", "provisioning")
    assert Resource.objects.filter(principal=teammate.principal, lease_id__isnull=False).count() == 1


def test_a_lease_that_is_handed_on_leaves_its_request(agent: Caster, teammate: Caster, declare: Declare) -> None:
    from django.db import transaction

    declare(slots=slots(1))
    held = ask(agent)
    row = Resource.objects.get(lease_id__isnull=False)
    assert row.lease_id is not None
    with transaction.atomic():
        moved, lost = leases.transfer(
            actor=leases.Actor.of(teammate.caller),
            giver=agent.principal.pk,
            lease_ids=[row.lease_id],
            principal=teammate.principal.pk,
            holder="teammate",
        )
    assert (len(moved), lost) == (1, [])
    ended = look(agent, held)
    assert (ended["state"], ended["reason"]) == ("lease_lost", "transferred")
    waiter = ask(agent)
    grant = {"slot_id": 1, "fencing_token": moved[0].grant.fencing_token}
    assert on_slot(teammate, grant, "heartbeat").status_code == 200
    assert on_slot(teammate, grant, "release").status_code == 200
    assert look(agent, waiter)["state"] == "ready"


def test_a_slot_that_is_not_clean_is_not_handed_on(agent: Caster, teammate: Caster, declare: Declare) -> None:
    from django.db import transaction

    from leases.errors import Conflict

    declare(slots=slots(1), provision="make-clean")
    ask(agent)
    row = Resource.objects.get(lease_id__isnull=False)
    assert row.lease_id is not None
    with pytest.raises(Conflict), transaction.atomic():
        leases.transfer(
            actor=leases.Actor.of(teammate.caller),
            giver=agent.principal.pk,
            lease_ids=[row.lease_id],
            principal=teammate.principal.pk,
            holder="teammate",
        )
    assert services.pump(organization=row.organization_id, pool="e2e").reaped == []


def test_two_dead_leases_of_one_request_end_once_each(agent: Caster, declare: Declare, clock: Any) -> None:
    """A reconcile that meets both: the end of the first takes the second with it."""
    declare(slots=slots(2), provision="make-clean", ttlMinutes=1)
    ask(agent, count=2)
    clock.move(minutes=2)
    assert agent.post("leases/reconcile").status_code == 200
    ends = ("lease.reaped", "pool.released", "pool.grant_failed")
    ended = list(Event.objects.filter(type__in=ends, resource_type="slot").values_list("lease_id", flat=True))
    assert len(ended) == len(set(ended)) == 2
