"""The life of a command run: a worker takes it, keeps the slot's lease alive, and reports how it ended.

A run's outcome changes its slot only while the slot's lease is the one that the run was for. Until its end is
recorded, or its deadline is 10 seconds past, nothing is granted of the slot (invariant 12).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F, Q

from leasehub.db import clock
from leasehub.db.locks import lock_rows
from leases import services as leases
from leases.errors import LeaseLost
from leases.models import Resource
from leases.services import Actor
from pools import endings
from pools.models import CommandRun, Pool, Request, ServedQueue, Slot
from pools.promotion import promote, ready_if_clean

Outcome = CommandRun.Outcome
Purpose = CommandRun.Purpose
State = CommandRun.State

#: What a step may take beyond its limit: it is asked to end, then made to.
STEP_GRACE_MS = 8_000
#: How long after its deadline a run that nobody reported still keeps its slot.
UNREPORTED = timedelta(seconds=10)
#: How long a run that no lease waits for waits for a worker.
UNSERVED = timedelta(seconds=120)
CANDIDATES = 5
FORGOTTEN_AFTER = timedelta(days=14)
FORGET_BATCH = 2000
#: The lease is for whom the commands run, so it lives while they do.
KEEPS_LEASE = (Purpose.GRANT, Purpose.RESET, Purpose.REPROVISION)


@dataclass(frozen=True, slots=True)
class Report:
    """How a run went, from its worker."""

    outcome: Outcome
    failed_action: str = ""
    error: str = ""
    results: Sequence[dict[str, Any]] = ()


def announce(*, worker_name: str, queues: Iterable[str]) -> None:
    """Says that a live worker serves these queues."""
    at = clock.now()
    ServedQueue.objects.bulk_create(
        [ServedQueue(worker=queue, worker_name=worker_name, seen_at=at) for queue in queues],
        update_conflicts=True,
        unique_fields=["worker", "worker_name"],
        update_fields=["seen_at"],
    )
    ServedQueue.objects.filter(seen_at__lt=at - timedelta(days=1)).delete()


def withdraw(*, worker_name: str) -> None:
    """The worker stops: it serves nothing any more."""
    ServedQueue.objects.filter(worker_name=worker_name).delete()


def claim(*, worker_name: str, queues: Sequence[str], nudges: bool) -> CommandRun | None:
    """Takes the oldest waiting run of these queues, what a slot waits for before nudges."""
    waiting = CommandRun.objects.filter(state=State.WAITING, worker__in=queues)
    kinds = [waiting.exclude(purpose=Purpose.NUDGE)]
    if nudges:
        kinds.append(waiting.filter(purpose=Purpose.NUDGE))
    for candidates in kinds:
        for run in candidates.order_by("pk")[:CANDIDATES]:
            if _took(run, worker_name):
                return run
    return None


def _took(run: CommandRun, worker_name: str) -> bool:
    at = clock.now()
    limit_ms = len(run.steps) * (run.step_timeout_ms + STEP_GRACE_MS)
    deadline = at + timedelta(milliseconds=limit_ms)
    # Compare-and-swap: of two workers one changes the row.
    return bool(
        CommandRun.objects.filter(pk=run.pk, state=State.WAITING).update(
            state=State.RUNNING, worker_name=worker_name, started_at=at, deadline=deadline
        )
    )


def to_be_stopped(*, worker_name: str) -> list[int]:
    """The worker's runs whose lease has ended, or that were given up: their commands must end."""
    mine = CommandRun.objects.filter(worker_name=worker_name, state=State.RUNNING, lease_id__isnull=False)
    outlived = mine.filter(purpose__in=KEEPS_LEASE).filter(
        Q(slot__lease_id__isnull=True) | ~Q(slot__lease_id=F("lease_id"))
    )
    return list(outlived.values_list("pk", flat=True))


def still_mine(*, worker_name: str, runs: Sequence[int]) -> set[int]:
    """Those of these runs that are the worker's and not given up."""
    mine = CommandRun.objects.filter(pk__in=runs, worker_name=worker_name, state=State.RUNNING)
    return set(mine.values_list("pk", flat=True))


def keep_leases_alive(*, queues: Sequence[str]) -> int:
    """A sign of life for the slots that are being prepared, or wait for that, in the pools of these queues.

    Not for a waiter that has gone silent while it is short of its count: that is the sweep's.
    """
    preparing = Q(request__state__in=Request.UNCLEAN) | Q(
        runs__purpose__in=KEEPS_LEASE, runs__state__in=(State.WAITING, State.RUNNING)
    )
    slots = Slot.objects.filter(pool__worker__in=queues, lease_id__isnull=False).filter(preparing)
    at = clock.now()
    beaten = 0
    for row in Resource.objects.filter(lease_id__in=list(slots.values_list("lease_id", flat=True).distinct())):
        if row.lease_id is None or row.heartbeat_at is None or row.ttl_ms is None:
            continue
        # A third of the ttl between two beats: two may fail before the lease does.
        if at - row.heartbeat_at < timedelta(milliseconds=row.ttl_ms / 3):
            continue
        try:
            leases.keep_alive(lease_id=row.lease_id)
            beaten += 1
        except LeaseLost:
            # Its run is stopped at the next look; the reaper or a waiter ends it.
            continue
    return beaten


def finish(*, run: int, worker_name: str, report: Report) -> bool:
    """Records how a run ended and applies it; whether this worker still had the say."""
    return _end(CommandRun.objects.filter(pk=run, state=State.RUNNING, worker_name=worker_name), report)


def give_up_overdue() -> int:
    """Ends the runs that nobody reported in time, and those that nobody took. How many."""
    at = clock.now()
    overdue = CommandRun.objects.filter(state=State.RUNNING, deadline__lt=at - UNREPORTED)
    lost = Report(Outcome.LOST, error="nobody reported how the command ended")
    given_up = sum(
        _end(overdue.filter(pk=run), _with_action(lost, steps))
        for run, steps in overdue.values_list("pk", "steps")[: CANDIDATES * 20]
    )
    unserved = CommandRun.objects.filter(
        state=State.WAITING,
        created_at__lt=at - UNSERVED,
        purpose__in=(Purpose.HEALTH, Purpose.RECOVER, Purpose.NUDGE),
    )
    for run, worker in unserved.values_list("pk", "worker")[: CANDIDATES * 20]:
        report = Report(Outcome.UNSERVED, error=f'no worker serves the queue "{worker}"')
        given_up += _end(unserved.filter(pk=run), report)
    return given_up


def give_up_orphans(*, worker_names: Iterable[str], report: Report) -> int:
    """Ends the runs of workers that are known to be gone, with every process of theirs. How many."""
    return sum(
        _end(CommandRun.objects.filter(pk=run, state=State.RUNNING), _with_action(report, steps))
        for run, steps in CommandRun.objects.filter(
            state=State.RUNNING, worker_name__in=list(worker_names)
        ).values_list("pk", "steps")
    )


def running_by(prefix: str) -> list[tuple[str, str]]:
    """(worker, run id) of what runs on workers whose names begin so."""
    running = CommandRun.objects.filter(state=State.RUNNING, worker_name__startswith=prefix)
    return [(name, run.hex) for name, run in running.values_list("worker_name", "run_id")]


def _with_action(report: Report, steps: Sequence[dict[str, Any]]) -> Report:
    return Report(report.outcome, str(steps[0]["action"]) if steps else "", report.error, report.results)


def _end(live: Any, report: Report) -> bool:
    """Ends one live run under its pool's lock, by compare-and-swap, and applies the outcome."""
    seen = live.values_list("pk", "pool_id").first()
    if seen is None:
        return False
    with transaction.atomic():
        pool = lock_rows(Pool.objects.filter(pk=seen[1])).get()
        at = clock.now()
        ended = live.filter(pk=seen[0]).update(
            state=State.ENDED,
            outcome=report.outcome,
            failed_action=report.failed_action,
            error=report.error[:4000],
            results=list(report.results),
            ended_at=at,
        )
        if not ended:
            return False
        run = CommandRun.objects.select_related("slot", "slot__request").get(pk=seen[0])
        if run.slot is not None and run.purpose != Purpose.NUDGE:
            Slot.objects.filter(pk=run.slot.pk).update(is_busy=False)
            _apply(pool, run.slot, run, at)
            promote(pool, at=at)
    return True


def _apply(pool: Pool, slot: Slot, run: CommandRun, at: datetime) -> None:
    slot.is_busy = False
    if run.purpose in (Purpose.HEALTH, Purpose.RECOVER):
        _apply_health(pool, slot, run, at)
    elif run.lease_id == slot.lease_id:
        {Purpose.GRANT: _apply_grant, Purpose.RESET: _apply_reset, Purpose.REPROVISION: _apply_reprovision}[
            Purpose(run.purpose)
        ](pool, slot, run, at)


def _apply_grant(pool: Pool, slot: Slot, run: CommandRun, at: datetime) -> None:
    request = slot.request
    if request is None or request.state not in Request.UNCLEAN:
        return
    if run.outcome == Outcome.PASSED:
        Slot.objects.filter(pk=slot.pk).update(is_clean=True)
        endings.note_repaired(pool, slot, at=at, actor=endings.server(pool), by="provision")
        ready_if_clean(pool, request, at=at)
    else:
        endings.grant_failed(pool, slot, request, run, at=at)


def _apply_reset(pool: Pool, slot: Slot, run: CommandRun, at: datetime) -> None:
    if run.outcome == Outcome.PASSED:
        endings.note_repaired(pool, slot, at=at, actor=endings.server(pool), by="reset")
        _check_still_held(run)
    elif run.outcome != Outcome.INTERRUPTED:
        # The holder keeps the slot, and knows.
        endings.note_failure(pool, slot, run.error, at=at)


def _check_still_held(run: CommandRun) -> None:
    """A reset that outlived its holder's lease is no success."""
    assert run.lease_id is not None
    try:
        leases.keep_alive(lease_id=run.lease_id)
    except LeaseLost:
        CommandRun.objects.filter(pk=run.pk).update(outcome=Outcome.FAILED, error="lease lost during reset")


def _apply_reprovision(pool: Pool, slot: Slot, run: CommandRun, at: datetime) -> None:
    actor = Actor(pool.organization_id, run.actor_id)
    if run.outcome == Outcome.PASSED:
        endings.note_repaired(pool, slot, at=at, actor=actor, by="reprovision")
    elif run.outcome != Outcome.INTERRUPTED:
        endings.note_failure(pool, slot, run.error, at=at)
    endings.take_back(slot, "pool.released", actor=actor, reason="reprovision", outcome=run.outcome)


def _apply_health(pool: Pool, slot: Slot, run: CommandRun, at: datetime) -> None:
    if run.outcome == Outcome.PASSED and slot.is_broken:
        endings.note_repaired(pool, slot, at=at, actor=Actor(pool.organization_id, run.actor_id), by="health")
    elif run.outcome in (Outcome.FAILED, Outcome.LOST) and run.purpose == Purpose.HEALTH:
        endings.note_failure(pool, slot, run.error, at=at)


def forget() -> int:
    """Deletes runs and requests that ended two weeks ago. How many."""
    before = clock.now() - FORGOTTEN_AFTER
    runs = list(
        CommandRun.objects.filter(state=State.ENDED, ended_at__lt=before).values_list("pk", flat=True)[:FORGET_BATCH]
    )
    requests = list(
        Request.objects.filter(ended_at__lt=before)
        .exclude(state__in=Request.OPEN)
        .values_list("pk", flat=True)[:FORGET_BATCH]
    )
    CommandRun.objects.filter(pk__in=runs).delete()
    Request.objects.filter(pk__in=requests, slots__isnull=True).delete()
    return len(runs) + len(requests)
