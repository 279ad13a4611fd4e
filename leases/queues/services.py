"""The verbs of the queues. ``leases.queues.engines`` carries the hot ones out; here they get their meaning.

Invariants kept here and there, besides those of the lease: a task is always somewhere (11), attempts are counted
when claimed and have an end (11), done stays done.
"""

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from leasehub.db import clock
from leasehub.db.constraints import translated
from leasehub.db.locks import lock_rows
from leasehub.errors import NotFound, Unauthenticated
from leasehub.events.journal import record
from leasehub.identity.authentication import Caller, check_key
from leases import queries as leases
from leases.engines import Outcome
from leases.errors import LeaseLost, StaleToken
from leases.granting import Grant
from leases.queues import queries, waiting
from leases.queues.engines import Claim, NewTask, Put, Step, engine
from leases.queues.errors import TaskIsNotDead
from leases.queues.models import TASK, Queue, Task
from leases.services import Actor, Ended, check_ttl

# A look at the whole queue costs more the more dead entries the database still keeps: once a second is enough to
# miss nothing for longer, whatever becomes of the marks.
WHOLE_LOOK_SECONDS = 1.0
# A call may commit this long after it read the clock.
LONGEST_CALL = timedelta(seconds=5)
PRUNE_BATCH = 500
REMEMBERED_QUEUES = 10_000
RETRY_ERRORS = {"task_dedupe_key_is_live_once": TaskIsNotDead("Another live task has this one's dedupe_key.")}
COLUMNS = {"leases_task.queue_id, leases_task.dedupe_key": "task_dedupe_key_is_live_once"}


@dataclass(frozen=True, slots=True)
class Looked:
    until: datetime
    #: On this process's monotonic clock: when the next claim has to look at everything.
    good_until: float


_looked: dict[tuple[int, str], Looked] = {}


def put(*, caller: Caller, queue: str, tasks: Sequence[NewTask]) -> list[Put]:
    """Put tasks into a queue, all or none; it is made if it is new. Answers come in the order given.

    A dedupe key that a live task has answers that task. Raises Unauthenticated.
    """
    answers: list[Put] = engine().put(key=caller.key, queue=queue, tasks=tasks)
    if answers[0].outcome == "unauthenticated":
        raise Unauthenticated
    return answers


def claim(*, caller: Caller, queue: str, ttl_seconds: int, holder: str | None = None, count: int = 1) -> list[Claim]:
    """Take the next tasks: the highest priority first, then the oldest. None when nothing is claimable.

    Raises OutsideFence, ValidationError, Unauthenticated.
    """
    check_ttl(ttl_seconds)
    spot = (caller.organization, queue)
    looked = _looked.get(spot)
    whole = looked is None or time.monotonic() >= looked.good_until
    claims: list[Claim] = engine().claim(
        key=caller.key,
        queue=queue,
        holder=caller.fenced(holder),
        ttl_ms=ttl_seconds * 1000,
        count=count,
        since=None if looked is None or whole else looked.until,
    )
    if claims[0].outcome == "unauthenticated":
        raise Unauthenticated
    _note_look(spot, claims[0].looked_until, None if whole else looked)
    return [] if claims[0].outcome == "nothing" else claims


def heartbeat(*, caller: Caller, task_id: uuid.UUID, fencing_token: int, ttl_seconds: int | None = None) -> Grant:
    """A sign of life of a claim that is named by its task. Refuses as ``leases.services.heartbeat`` does."""
    if ttl_seconds is not None:
        check_ttl(ttl_seconds)
    _check_fence(caller, task_id)
    outcome: Outcome = engine().heartbeat(
        key=caller.key,
        task=task_id,
        fencing_token=fencing_token,
        ttl_ms=None if ttl_seconds is None else ttl_seconds * 1000,
    )
    if outcome.outcome != "refreshed":
        raise _refusal(caller, task_id, fencing_token, outcome.outcome, outcome.expires_at)
    return outcome.grant()


def complete(*, caller: Caller, task_id: uuid.UUID, fencing_token: int, result: Any = None) -> Step:
    """The claim ends and the task is done, for good.

    Raises LeaseLost once the claim has ended or run out, StaleToken, NotFound for what is not one's own.
    """
    _check_fence(caller, task_id)
    step: Step = engine().complete(
        key=caller.key,
        task=task_id,
        fencing_token=fencing_token,
        result=None if result is None else json.dumps(result),
    )
    if step.outcome != "completed":
        raise _refusal(caller, task_id, fencing_token, step.outcome, step.expires_at)
    return step


def fail(
    *,
    caller: Caller,
    task_id: uuid.UUID,
    fencing_token: int,
    error: str,
    retry_in_seconds: int | None = None,
    final: bool = False,
) -> Step:
    """The claim ends: the task is ready after a pause (the queue's back-off), or dead when final or used up.

    Refuses as ``complete`` does.
    """
    _check_fence(caller, task_id)
    step: Step = engine().fail(
        key=caller.key,
        task=task_id,
        fencing_token=fencing_token,
        error=error,
        pause_ms=None if retry_in_seconds is None else retry_in_seconds * 1000,
        final=final,
    )
    if step.outcome != "failed":
        raise _refusal(caller, task_id, fencing_token, step.outcome, step.expires_at)
    return step


def give_back(*, caller: Caller, task_id: uuid.UUID, fencing_token: int) -> Ended:
    """The claim ends unfinished; the task is ready for the next one, or dead when its attempts are used up.

    Raises NotFound when the claim has ended already or is not one's own, StaleToken for another token.
    """
    _check_fence(caller, task_id)
    step: Step = engine().give_back(key=caller.key, task=task_id, fencing_token=fencing_token)
    match step.outcome:
        case "returned":
            assert step.lease_id is not None and step.at is not None and step.expires_at is not None
            return Ended(step.lease_id, step.at, step.expires_at <= step.at)
        case "stale":
            raise StaleToken
        case "unauthenticated":
            raise Unauthenticated
    raise NotFound


@transaction.atomic
def retry(*, actor: Actor, task_id: uuid.UUID) -> Task:
    """A dead task is ready again, with all its attempts. Raises TaskIsNotDead, NotFound."""
    found = Task.objects.filter(pk=task_id, queue__organization_id=actor.organization)
    task = lock_rows(found.select_related("queue")).first()
    if task is None:
        raise NotFound
    if task.state != "dead":
        raise TaskIsNotDead
    with translated(RETRY_ERRORS, columns=COLUMNS):
        Task.objects.filter(pk=task.pk).update(state="ready", attempts=0, out_of_turn=True, finished_at=None)
    record(
        "task.queued",
        at=clock.now(),
        organization=actor.organization,
        actor=actor.principal,
        key=actor.key,
        resource_type=TASK,
        resource_id=task.task_id,
        data={
            "queue": task.queue.name,
            "priority": task.priority,
            "max_attempts": task.max_attempts,
            "dedupe_key": task.dedupe_key,
            "retried": True,
        },
    )
    waiting.ring([task.queue_id])
    task.refresh_from_db()
    return task


@transaction.atomic
def purge(*, organization: int, task_ids: Sequence[uuid.UUID]) -> int:
    """Deletes the dead ones among these tasks. How many."""
    dead = Task.objects.filter(pk__in=task_ids, queue__organization_id=organization, state="dead")
    locked = [task.pk for task in lock_rows(dead)]
    Task.objects.filter(pk__in=locked).delete()
    return len(locked)


def prune(*, batches: int = 200) -> int:
    """Deletes tasks that were finished longer ago than their queue keeps them, in batches. How many."""
    total = 0
    for queue in Queue.objects.order_by("pk"):
        for _ in range(batches):
            pruned = _prune_batch(queue)
            total += pruned
            if pruned < PRUNE_BATCH:
                break
    return total


@transaction.atomic
def _prune_batch(queue: Queue) -> int:
    limit = clock.now() - timedelta(days=queue.keep_days)
    old = Task.objects.filter(queue=queue, state="done", finished_at__lt=limit).order_by("finished_at")
    found = list(old.values_list("pk", flat=True)[:PRUNE_BATCH])
    locked = [task.pk for task in lock_rows(Task.objects.filter(pk__in=found, state="done"), skip_locked=True)]
    Task.objects.filter(pk__in=locked).delete()
    return len(locked)


def _note_look(spot: tuple[int, str], until: datetime | None, earlier: Looked | None) -> None:
    """How far this queue has been looked at, for the next claim; nothing after a look that left something."""
    if until is None:
        _looked.pop(spot, None)
        return
    if len(_looked) >= REMEMBERED_QUEUES:
        _looked.clear()
    good_until = time.monotonic() + WHOLE_LOOK_SECONDS if earlier is None else earlier.good_until
    _looked[spot] = Looked(until - LONGEST_CALL, good_until)


def _check_fence(caller: Caller, task_id: uuid.UUID) -> None:
    """Raises NotFound for a claim whose holder is outside the key's fence; asked only for a fence of its own."""
    if caller.has_default_fence:
        return
    held = queries.claim(organization=caller.organization, task_id=task_id)
    if held is not None and not caller.may_hold_as(held.holder or ""):
        # Before the engine, which is what checks the key otherwise.
        check_key(caller)
        raise NotFound


def _refusal(
    caller: Caller, task_id: uuid.UUID, fencing_token: int, outcome: str, expires_at: datetime | None
) -> Exception:
    if outcome == "unauthenticated":
        return Unauthenticated()
    if outcome in ("expired", "lifetime_over"):
        assert expires_at is not None
        return LeaseLost(ended_by="expired" if outcome == "expired" else "max_lifetime", ended_at=expires_at)
    # An acquisition of one's own that has ended, perhaps long ago.
    lost = queries.acquisition(
        organization=caller.organization, principal=caller.principal, task_id=task_id, fencing_token=fencing_token
    )
    ending = None if lost is None else leases.ending(organization=caller.organization, lease_id=lost)
    if ending is not None:
        return LeaseLost(ended_by=ending.ended_by, ended_at=ending.ended_at)
    return StaleToken() if outcome == "stale" else NotFound()
