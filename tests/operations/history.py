"""A random history of every verb, by one who does not look at what is refused."""

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from handoffs import checkpoints
from handoffs import services as handoffs
from handoffs.models import Handoff
from leasehub.errors import DomainError
from leasehub.events import feed
from leases import services as leases
from leases.models import Resource
from leases.queues import services as queues
from leases.queues.engines import NewTask
from leases.queues.models import Task
from leases.services import Actor
from pools import runs
from pools import services as pools
from pools.models import CommandRun, Request, Slot
from pools.runs import Outcome, Report
from tests.conftest import Caster

WORKER = "host/boot:1:1"
PAUSES = [timedelta(seconds=5), timedelta(seconds=500)]


class History:
    def __init__(self, seed: int, casters: list[Caster], clock: Any) -> None:
        self.random = random.Random(seed)
        self.callers = [caster.caller for caster in casters]
        self.clock = clock
        self.refused = self.done = 0
        self.verbs: list[Callable[[], object]] = [
            *[self.acquire] * 3, self.end_a_lease, self.end_a_lease, self.reap, self.reconcile, self.beat,
            self.put, self.put, self.claim, self.claim, self.step, self.step, self.retry, self.purge,
            self.declare, self.request, self.request, self.request, self.seen, self.cancel, self.release_slot,
            self.operate, self.operate, self.run_commands, self.run_commands, self.run_commands, self.pump,
            self.send, self.resolve, self.resolve, self.withdraw, self.save,
            self.time_passes, self.sweep, feed.stamp_all, leases.prune,
        ]  # fmt: skip

    def go(self, steps: int) -> None:
        self.declare()
        for _ in range(steps):
            verb = self.random.choice(self.verbs)
            try:
                verb()
                self.done += 1
            except DomainError:
                self.refused += 1

    def one(self, found: Any) -> Any:
        rows = list(found.order_by("place" if found.model is Task else "pk"))
        if not rows:
            raise DomainError("nothing there")
        return self.random.choice(rows)

    @property
    def caller(self) -> Any:
        return self.random.choice(self.callers)

    @property
    def operator(self) -> Actor:
        return Actor.of(self.callers[-1])

    # --- leases

    def acquire(self) -> object:
        return leases.acquire(
            caller=self.caller,
            resource_type=self.random.choice(["deploy", "Deploy", "repo/x", "ü"]),
            resource_id=self.random.choice(["a", "b", "b/c", "é"]),
            ttl_seconds=self.random.choice([10, 60, 3600]),
            holder=self.random.choice([None, "x-1"]),
            reacquire=self.random.random() < 0.7,
            max_lifetime_seconds=self.random.choice([None, None, 100]),
        )

    def lease(self, **where: Any) -> Resource:
        found: Resource = self.one(Resource.objects.filter(lease_id__isnull=False, **where))
        return found

    def by_holder(self, row: Resource) -> Any:
        return next(caller for caller in self.callers if caller.principal == row.principal_id)

    def beat(self) -> object:
        row = self.lease()
        assert row.lease_id
        return leases.heartbeat(caller=self.by_holder(row), lease_id=row.lease_id, fencing_token=row.last_token)

    def end_a_lease(self) -> object:
        row = self.lease()
        assert row.lease_id
        if self.random.random() < 0.3:
            return leases.force_release(
                actor=self.operator, lease_id=row.lease_id, fencing_token=row.last_token, reason="stuck"
            )
        return leases.release(caller=self.by_holder(row), lease_id=row.lease_id, fencing_token=row.last_token)

    def reap(self) -> object:
        row = self.lease()
        return leases.reap(actor=self.operator, resource_type=row.resource_type, resource_id=row.resource_id)

    def reconcile(self) -> object:
        return leases.reconcile(caller=self.caller)

    # --- queues

    def put(self) -> object:
        new = [
            NewTask(
                payload=n,
                priority=self.random.choice([0, 5]),
                delay_seconds=self.random.choice([0, 0, 30]),
                max_attempts=self.random.choice([1, 2, None]),
                dedupe_key=self.random.choice([None, None, "once"]),
            )
            for n in range(self.random.choice([1, 3]))
        ]
        return queues.put(caller=self.caller, queue=self.random.choice(["q", "r"]), tasks=new)

    def claim(self) -> object:
        return queues.claim(
            caller=self.caller, queue=self.random.choice(["q", "r"]), ttl_seconds=60, count=self.random.choice([1, 2])
        )

    def step(self) -> object:
        row = self.lease(resource_type="task")
        task = self.one(Task.objects.filter(pk=row.resource_id[2:]))
        named = {"caller": self.by_holder(row), "task_id": task.pk, "fencing_token": row.last_token}
        choice = self.random.random()
        if choice < 0.4:
            return queues.complete(**named, result={"ok": True})
        if choice < 0.7:
            return queues.fail(**named, error="broken", final=self.random.random() < 0.3)
        return queues.give_back(**named)

    def retry(self) -> object:
        return queues.retry(actor=self.operator, task_id=self.one(Task.objects.filter(state="dead")).pk)

    def purge(self) -> object:
        dead = list(Task.objects.filter(state="dead").values_list("pk", flat=True)[:1])
        return queues.purge(organization=self.operator.organization, task_ids=dead)

    # --- pools

    def declare(self) -> object:
        names = self.random.sample(["a", "b", 3, "d-e"], self.random.choice([2, 3, 4]))
        slots = [{"id": name, "attributes": {"size": self.random.choice(["s", "l"])}} for name in names]
        pools.declare(actor=self.operator, name="plain", document={"slots": slots})
        clean = {"slots": slots[:2], "provision": "true", "health": "true"}
        return pools.declare(actor=self.operator, name="clean", document=clean)

    @property
    def pool(self) -> str:
        return self.random.choice(["plain", "clean"])

    def request(self) -> object:
        return pools.request(
            caller=self.caller,
            pool=self.pool,
            mode=self.random.choice(["async", "blocking"]),
            ttl_seconds=self.random.choice([60, 3600]),
            count=self.random.choice([1, 1, 1, 2]),
            no_wait=self.random.random() < 0.1,
            selector=self.random.choice([None, None, {"size": "l"}]),
        )

    def open_request(self) -> Request:
        found: Request = self.one(Request.objects.filter(state__in=Request.OPEN).select_related("pool", "principal"))
        return found

    def seen(self) -> object:
        request = self.open_request()
        caller = next(caller for caller in self.callers if caller.principal == request.principal_id)
        return pools.seen(caller=caller, request=request, fetch=True)

    def cancel(self) -> object:
        return pools.cancel(caller=self.caller, request=self.open_request())

    def release_slot(self) -> object:
        row = self.lease(resource_type="slot")
        pool, _, slot = row.resource_id.partition("/")
        verb = self.random.choice([pools.release, pools.release, pools.reset])
        return verb(caller=self.by_holder(row), pool=pool, slot_id=slot, fencing_token=row.last_token)

    def operate(self) -> object:
        slot = self.one(Slot.objects.select_related("pool"))
        verb = self.random.choice([pools.drain, pools.undrain, pools.undrain, pools.repair, pools.health])
        if self.random.random() < 0.2:
            return pools.reprovision(actor=self.operator, pool=slot.pool.name, slot_id=slot.slot_id, holder="op")
        return verb(actor=self.operator, pool=slot.pool.name, slot_id=slot.slot_id)

    def run_commands(self) -> object:
        run = runs.claim(worker_name=WORKER, queues=["default"], nudges=True)
        if run is None:
            run = self.one(CommandRun.objects.filter(state="running"))
        if self.random.random() < 0.2:
            return None
        outcome = self.random.choice([Outcome.PASSED, Outcome.PASSED, Outcome.FAILED, Outcome.INTERRUPTED])
        action = "" if outcome == Outcome.PASSED else self.random.choice(["provision", "health"])
        return runs.finish(run=run.pk, worker_name=WORKER, report=Report(outcome, action, "broken" if action else ""))

    def pump(self) -> object:
        return pools.pump(organization=self.operator.organization, pool=self.pool)

    # --- handoffs

    def send(self) -> object:
        giver = self.caller
        rows = Resource.objects.filter(lease_id__isnull=False, principal=giver.principal).order_by("pk")
        offered = [f"lease_{row.lease_id.hex}" for row in rows[:2] if row.lease_id]
        return handoffs.send(
            actor=Actor.of(giver),
            to_principal=self.caller.handle,
            subject_id="s",
            lease_ids=self.random.choice([[], offered]),
            accept_by=self.random.choice([None, self.clock.now() + self.random.choice(PAUSES)]),
        )

    def resolve(self) -> object:
        handoff = self.one(Handoff.objects.filter(status__in=["pending", "accepted"]))
        addressee = next(caller for caller in self.callers if caller.principal == handoff.addressee_id)
        named = {"actor": Actor.of(addressee), "handoff_id": handoff.public_id}
        if handoff.status == "accepted":
            return handoffs.complete(**named, result={"ok": True})
        if self.random.random() < 0.3:
            return handoffs.reject(**named, reason="no time")
        return handoffs.accept(**named, holder=addressee.handle)

    def withdraw(self) -> object:
        handoff = self.one(Handoff.objects.filter(status="pending"))
        giver = next(caller for caller in self.callers if caller.principal == handoff.giver_id)
        return handoffs.withdraw(actor=Actor.of(giver), handoff_id=handoff.public_id)

    def save(self) -> object:
        return checkpoints.save(
            actor=Actor.of(self.caller), subject_id="s", kind="k", state={"n": 1}, expected_version=None
        )

    # --- time

    def time_passes(self) -> None:
        self.clock.move(seconds=self.random.choice([1, 20, 70, 700]))

    def sweep(self) -> None:
        leases.reap_due()
        handoffs.expire_due()
        runs.give_up_overdue()
        pools.sweep_pools()
