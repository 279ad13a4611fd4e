"""The verbs of the queues in Python, for SQLite: each in one IMMEDIATE transaction behind the writer lock.

The same steps as leases/sql/task_functions.sql, without the low water of the lanes: SQLite leaves no dead entries
in its indexes. It runs on PostgreSQL too, which is how the tests hold the two against each other.
"""

import json
import random
import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import F, QuerySet

from leasehub.db import clock
from leasehub.db.locks import lock_rows
from leasehub.events import journal
from leasehub.events.models import Event
from leases.endings import FREE, ending, epitaph
from leases.engines import Outcome
from leases.engines import portable as leases
from leases.granting import lock_or_make, start
from leases.models import Resource
from leases.queues import waiting
from leases.queues.endings import described, give_up, move_on, task_of
from leases.queues.engines import Claim, NewTask, Put, Step
from leases.queues.models import LIVE, TASK, Lane, Queue, Task, TaskContent, public_task_id

# On SQLite everybody waits for a transaction that writes: this one stays well under 50 ms.
REAP_BATCH = 100
LOOK_AT_CLAIMS = 20
LOOK_AT_DELAYED = 100


def put(*, key: int, queue: str, tasks: Sequence[NewTask]) -> list[Put]:
    owner = leases.owner_of(key)
    if owner is None:
        return [Put("unauthenticated", uuid.UUID(int=0), "", None, False)]
    with transaction.atomic():
        row = _lock_or_make_queue(owner[1], queue)
        at = clock.now()
        priorities = {task.priority for task in tasks}
        Lane.objects.bulk_create(
            [Lane(queue=row, priority=priority) for priority in sorted(priorities)], ignore_conflicts=True
        )
        keys = [task.dedupe_key for task in tasks if task.dedupe_key is not None]
        live = {task.dedupe_key: task for task in _live(row, keys)}
        made: list[Task] = []
        contents: list[TaskContent] = []
        answers: list[Put] = []
        for new, place in zip(tasks, _places(row, len(tasks)), strict=True):
            known = live.get(new.dedupe_key) if new.dedupe_key is not None else None
            if known is not None:
                answers.append(Put("put", known.pk, known.state, known.ready_at, True))
                continue
            task = _new(new, row, owner[0], place, at)
            made.append(task)
            if new.payload is not None:
                contents.append(TaskContent(task=task, payload=new.payload))
            if new.dedupe_key is not None:
                live[new.dedupe_key] = task
            answers.append(Put("put", task.pk, "ready", task.ready_at, False))
        Task.objects.bulk_create(made)
        TaskContent.objects.bulk_create(contents)
        journal.record_all([_queued(task, row, owner, key, at) for task in made])
        waiting.ring([row.pk])
    return answers


def claim(*, key: int, queue: str, holder: str, ttl_ms: int, count: int, since: datetime | None) -> list[Claim]:
    owner = leases.owner_of(key)
    if owner is None:
        return [_no_claim("unauthenticated")]
    row = Queue.objects.filter(organization_id=owner[1], name=queue).first()
    if row is None or not _has_work(row):
        return [_no_claim("nothing")]
    with transaction.atomic():
        _look(row)
        tasks = _take(row, count)
        claims = [_grant(task, row, owner, key, holder, ttl_ms) for task in tasks]
    return claims or [_no_claim("nothing")]


def heartbeat(*, key: int, task: uuid.UUID, fencing_token: int, ttl_ms: int | None) -> Outcome:
    owner = leases.owner_of(key)
    if owner is None:
        return Outcome("unauthenticated")
    claimed = _claim_on(task, owner[1]).values_list("lease_id", flat=True).first()
    if claimed is None:
        return Outcome("not_found")
    return leases.heartbeat(key=key, lease_id=claimed, fencing_token=fencing_token, ttl_ms=ttl_ms)


def complete(*, key: int, task: uuid.UUID, fencing_token: int, result: str | None) -> Step:
    def finish(row: Resource, work: Task, at: datetime) -> Step:
        move_on([work], "done", at=at)
        if result is not None:
            _keep(work, result=json.loads(result))
        _free(row, "task.completed", key, at, described(work, "done"))
        return Step("completed", at, None, "done", None, row.lease_id)

    return _step(key, task, fencing_token, ("mine",), finish)


def fail(*, key: int, task: uuid.UUID, fencing_token: int, error: str, pause_ms: int | None, final: bool) -> Step:
    def finish(row: Resource, work: Task, at: datetime) -> Step:
        is_last = final or work.attempts >= work.max_attempts
        state = "dead" if is_last else "ready"
        pause = _backoff_ms(work) if pause_ms is None else pause_ms
        ready_at = at + timedelta(milliseconds=pause) if pause > 0 and not is_last else None
        move_on([work], state, at=at, ready_at=ready_at)
        _keep(work, error=error)
        told = described(work, state)
        told |= {"error": error[:500], "ended_by": "failed", "ready_at": clock.iso(ready_at) if ready_at else None}
        _free(row, "task.dead" if is_last else "task.failed", key, at, told)
        return Step("failed", at, None, state, ready_at, row.lease_id)

    return _step(key, task, fencing_token, ("mine",), finish)


def give_back(*, key: int, task: uuid.UUID, fencing_token: int) -> Step:
    def finish(row: Resource, work: Task, at: datetime) -> Step:
        assert row.acquired_at is not None and row.expires_at is not None
        data = {"was_expired": row.expires_at <= at, "acquired_at": clock.iso(row.acquired_at)}
        event, told = give_up(row, "lease.released", at=at, data=data)
        _free(row, event, key, at, told)
        return Step("returned", at, row.expires_at, told["task_state"], None, row.lease_id)

    return _step(key, task, fencing_token, ("mine", "expired", "lifetime_over"), finish)


def reap_due(*, limit: int) -> tuple[int, int]:
    """How many claims were due, and how many of them were dead and are ended now."""
    due = list(
        Resource.objects.filter(resource_type=TASK, lease_id__isnull=False, check_at__lte=clock.now())
        .order_by("check_at")
        .values_list("pk", flat=True)[:limit]
    )
    if not due:
        return 0, 0
    with transaction.atomic():
        return len(due), _reap(due)


def _lock_or_make_queue(organization: int, name: str) -> Queue:
    named = Queue.objects.filter(organization_id=organization, name=name)
    while (row := lock_rows(named).first()) is None:
        Queue.objects.bulk_create(
            [Queue(organization_id=organization, name=name, created_at=clock.now())], ignore_conflicts=True
        )
    return row


def _live(queue: Queue, keys: Iterable[str]) -> Iterable[Task]:
    keys = list(keys)
    return Task.objects.filter(queue=queue, state__in=LIVE, dedupe_key__in=keys) if keys else ()


def _places(queue: Queue, count: int) -> Iterable[int]:
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT nextval('leases_task_place') FROM generate_series(1, %s)", [count])
            return [place for (place,) in cursor.fetchall()]
    Queue.objects.filter(pk=queue.pk).update(last_place=F("last_place") + count)
    return range(queue.last_place + 1, queue.last_place + count + 1)


def _new(new: NewTask, queue: Queue, principal: int, place: int, at: datetime) -> Task:
    delayed = new.delay_seconds > 0
    return Task(
        id=new_id(at),
        place=place,
        queue=queue,
        principal_id=principal,
        priority=new.priority,
        ready_at=at + timedelta(seconds=new.delay_seconds) if delayed else None,
        out_of_turn=delayed,
        max_attempts=queue.max_attempts if new.max_attempts is None else new.max_attempts,
        dedupe_key=new.dedupe_key,
        created_at=at,
    )


def new_id(at: datetime) -> uuid.UUID:
    """A version 7 UUID: the newest at one end of its indexes instead of all over them."""
    return uuid.UUID(hex=f"{clock.milliseconds(at):012x}7{uuid.uuid4().hex[13:]}")


def _queued(task: Task, queue: Queue, owner: tuple[int, int], key: int, at: datetime) -> Event:
    return journal.event(
        "task.queued",
        at=at,
        organization=owner[1],
        actor=owner[0],
        key=key,
        resource_type=TASK,
        resource_id=task.task_id,
        data={
            "queue": queue.name,
            "priority": task.priority,
            "max_attempts": task.max_attempts,
            "ready_at": clock.iso(task.ready_at) if task.ready_at else None,
            "dedupe_key": task.dedupe_key,
        },
    )


def _no_claim(outcome: str) -> Claim:
    nobody = uuid.UUID(int=0)
    return Claim(outcome, nobody, 0, nobody, 0, clock.now(), clock.now(), None, None)


def _has_work(queue: Queue) -> bool:
    """Asked before the writer lock is taken: pollers of an empty queue must not queue up for it."""
    at = clock.now()
    return (
        Task.objects.filter(queue=queue, state="ready", ready_at=None).exists()
        or Task.objects.filter(queue=queue, state="ready", ready_at__lte=at).exists()
        or Resource.objects.filter(queue=queue, lease_id__isnull=False, check_at__lte=at).exists()
    )


def _look(queue: Queue) -> None:
    """Ends claims that ran out and makes claimable what was delayed until now, so that nothing waits for the reaper."""
    at = clock.now()
    due = Resource.objects.filter(queue=queue, lease_id__isnull=False, check_at__lte=at).order_by("check_at")
    if rows := list(due.values_list("pk", flat=True)[:LOOK_AT_CLAIMS]):
        _reap(rows)
    delayed = Task.objects.filter(queue=queue, state="ready", ready_at__lte=at).order_by("ready_at")
    if tasks := list(delayed.values_list("pk", flat=True)[:LOOK_AT_DELAYED]):
        locked = [task.pk for task in lock_rows(Task.objects.filter(pk__in=tasks, state="ready"), skip_locked=True)]
        Task.objects.filter(pk__in=locked).update(ready_at=None)


def _reap(rows: list[int]) -> int:
    """Ends the claims among these whose lease ran out, pushes check_at of the others; how many ended."""
    claimed = {task_of(row): row.pk for row in Resource.objects.filter(pk__in=rows)}
    leased = Task.objects.filter(pk__in=claimed, state="leased").select_related("queue")
    tasks = {task.pk: task for task in lock_rows(leased, skip_locked=True)}
    mine = Resource.objects.filter(pk__in=[claimed[task] for task in tasks], lease_id__isnull=False)
    locked = list(lock_rows(mine, skip_locked=True))
    at = clock.now()
    dead = [row for row in locked if row.expires_at is not None and row.expires_at <= at]
    last = [task for row in dead if (task := tasks[task_of(row)]).attempts >= task.max_attempts]
    move_on(last, "dead", at=at)
    move_on([task for row in dead if (task := tasks[task_of(row)]) not in last], "ready", at=at)
    Resource.objects.filter(pk__in=[row.pk for row in dead]).update(**FREE)
    journal.record_all([_reaped(row, tasks[task_of(row)], at) for row in dead])
    Resource.objects.filter(pk__in=[row.pk for row in locked], expires_at__gt=at, check_at__lte=at).update(
        check_at=F("expires_at")
    )
    return len(dead)


def _reaped(row: Resource, task: Task, at: datetime) -> Event:
    state = "dead" if task.attempts >= task.max_attempts else "ready"
    data = {**epitaph(row), **described(task, state), "ended_by": "reaped"}
    return ending(row, "task.dead" if state == "dead" else "lease.reaped", at=at, data=data)


def _take(queue: Queue, count: int) -> list[Task]:
    """Up to ``count`` claimable tasks, locked: the highest priority first, then the oldest.

    Each half comes in the order of the index; together they are sorted again.
    """
    # "IN" instead of "NOT out_of_turn": SQLite looks up no index for a negation.
    ready = Task.objects.filter(queue=queue, state="ready", ready_at=None).order_by("-priority", "place")
    candidates = [
        task
        for out_of_turn in (False, True)
        for task in ready.filter(out_of_turn__in=[out_of_turn]).select_for_update(
            skip_locked=connection.features.has_select_for_update_skip_locked
        )[:count]
    ]
    return sorted(candidates, key=lambda task: (-task.priority, task.place))[:count]


def _grant(task: Task, queue: Queue, owner: tuple[int, int], key: int, holder: str, ttl_ms: int) -> Claim:
    Task.objects.filter(pk=task.pk).update(state="leased", attempts=F("attempts") + 1)
    named = Resource.objects.filter(organization_id=owner[1], resource_type=TASK, resource_id=task.task_id)
    row = lock_or_make(named, organization=owner[1], resource_type=TASK, resource_id=task.task_id)
    at = clock.now()
    grant = start(
        row,
        "task.claimed",
        at=at,
        principal=owner[0],
        holder=holder,
        ttl_ms=ttl_ms,
        purpose=None,
        payload=None,
        lifetime_ends_at=None,
        actor=owner[0],
        key=key,
        data={"queue": queue.name, "attempt": task.attempts + 1},
    )
    Resource.objects.filter(pk=row.pk).update(queue=queue)
    payload = TaskContent.objects.filter(task=task).values_list("payload", flat=True).first()
    return Claim(
        "claimed",
        task.pk,
        task.attempts + 1,
        grant.lease_id,
        grant.fencing_token,
        grant.expires_at,
        at,
        None if payload is None else json.dumps(payload),
        None,
    )


def _claim_on(task: uuid.UUID, organization: int) -> QuerySet[Resource]:
    return Resource.objects.filter(
        organization_id=organization, resource_type=TASK, resource_id=public_task_id(task), lease_id__isnull=False
    )


def _step(
    key: int,
    task: uuid.UUID,
    fencing_token: int,
    allowed: tuple[str, ...],
    finish: Callable[[Resource, Task, datetime], Step],
) -> Step:
    """Locks the task and the lease on it, judges the claim, and lets ``finish`` end it."""
    owner = leases.owner_of(key)
    if owner is None:
        return Step("unauthenticated")
    with transaction.atomic():
        work = lock_rows(Task.objects.filter(pk=task)).first()
        row = lock_rows(_claim_on(task, owner[1]).filter(principal_id=owner[0])).first() if work else None
        if work is None or row is None:
            return Step("not_found")
        at = clock.now()
        verdict = _verdict(row, fencing_token, at)
        if verdict not in allowed:
            return Step(verdict, at, row.expires_at)
        return finish(row, work, at)


def _verdict(row: Resource, fencing_token: int, at: datetime) -> str:
    assert row.expires_at is not None
    if row.last_token != fencing_token:
        return "stale"
    if row.expires_at > at:
        return "mine"
    over = row.lifetime_ends_at is not None and row.lifetime_ends_at <= row.expires_at
    return "lifetime_over" if over else "expired"


def _free(row: Resource, event: str, key: int, at: datetime, data: dict[str, Any]) -> None:
    """The claim's row becomes free; its task has moved on already, and this is the event of both."""
    Resource.objects.filter(pk=row.pk).update(**FREE)
    journal.record_all([ending(row, event, at=at, data=data, actor=row.principal_id, key=key)])


def _keep(task: Task, **what: Any) -> None:
    TaskContent.objects.update_or_create(task=task, defaults=what)


def _backoff_ms(task: Task) -> int:
    queue = task.queue
    longest = min(queue.backoff_max_seconds, queue.backoff_base_seconds * 2 ** min(task.attempts - 1, 30))
    # Half fixed, half by chance: those that failed together do not come back together.
    return int(1000 * longest * (0.5 + random.random() / 2))
