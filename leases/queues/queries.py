"""Reads of queues and tasks."""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import CharField, Count, Min, QuerySet, Value

from leasehub.db import clock
from leasehub.errors import NotFound
from leasehub.events.models import Event
from leasehub.identity.authentication import Caller
from leases import queries as leases
from leases.models import Resource
from leases.queues.models import TASK, Queue, Task, public_task_id

# The rate is counted in the newest events. When these are not enough for a minute, their span is.
RATE_WINDOW = 20_000
#: The events that give somebody a task.
STARTS = ["task.claimed", "lease.transferred"]


@dataclass(frozen=True, slots=True)
class Figures:
    """A queue in numbers."""

    queue: Queue
    #: Claimable now.
    ready: int
    #: Claimable later.
    delayed: int
    leased: int
    dead: int
    #: When the task was put that has been claimable for longest; None when nothing is.
    oldest: datetime | None
    claims_per_minute: int
    at: datetime

    @property
    def oldest_age_ms(self) -> int | None:
        return None if self.oldest is None else max(0, clock.milliseconds_between(self.oldest, self.at))


@dataclass(frozen=True, slots=True)
class Depth:
    """What is in a queue; the words are those of Figures."""

    queue: Queue
    ready: int
    delayed: int
    leased: int
    dead: int
    oldest: datetime | None


def queues(*, organization: int) -> QuerySet[Queue]:
    return Queue.objects.filter(organization_id=organization).order_by("pk")


def figures(*, queues: Iterable[Queue], at: datetime | None = None) -> list[Figures]:
    """The queues in numbers, in a handful of statements however many they are."""
    queues = list(queues)
    at = at or clock.now()
    rates = _claims_per_minute(queues, at)
    return [
        _figures(depth, at, rates.get((depth.queue.organization_id, depth.queue.name), 0))
        for depth in depths(queues=queues, at=at)
    ]


def _figures(depth: Depth, at: datetime, claims_per_minute: int) -> Figures:
    return Figures(
        queue=depth.queue,
        ready=depth.ready,
        delayed=depth.delayed,
        leased=depth.leased,
        dead=depth.dead,
        oldest=depth.oldest,
        claims_per_minute=claims_per_minute,
        at=at,
    )


def depths(*, queues: list[Queue], at: datetime) -> list[Depth]:
    """Counted in the indexes of what waits, is held and is dead: finished tasks cost nothing."""
    if not queues:
        return []
    counted = _counted(queues, at)
    firsts: dict[int, int] = {}
    for (queue_id, what), (_, first) in counted.items():
        if what in ("ready", "late"):
            firsts[queue_id] = min(first, firsts.get(queue_id, first))
    oldest = _put_at(firsts)

    def count(queue: Queue, *what: str) -> int:
        return sum(counted.get((queue.pk, word), (0, 0))[0] for word in what)

    return [
        Depth(
            queue=queue,
            ready=count(queue, "ready", "late"),
            delayed=count(queue, "delayed"),
            leased=count(queue, "leased"),
            dead=count(queue, "dead"),
            oldest=oldest.get(queue.pk),
        )
        for queue in queues
    ]


def _counted(queues: list[Queue], at: datetime) -> dict[tuple[int, str], tuple[int, int]]:
    """How many there are of what in each queue, and of what waits the first place; in one statement."""
    tasks = Task.objects.filter(queue__in=queues)
    claims = Resource.objects.filter(queue__in=queues, lease_id__isnull=False)
    # Each counts a column of the index that it walks.
    groups = [
        _grouped(tasks.filter(state="ready", ready_at=None), "ready", Count("place"), Min("place")),
        _grouped(tasks.filter(state="ready", ready_at__lte=at), "late", Count("ready_at"), Min("place")),
        _grouped(tasks.filter(state="ready", ready_at__gt=at), "delayed", Count("ready_at"), Min("queue")),
        _grouped(tasks.filter(state="dead"), "dead", Count("finished_at"), Min("queue")),
        _grouped(claims, "leased", Count("pk"), Min("queue")),
    ]
    rows = groups[0].union(*groups[1:], all=True)
    return {(queue, what): (found, first) for queue, what, found, first in rows}


def _grouped(rows: QuerySet[Any], what: str, found: Count, first: Min) -> QuerySet[Any, Any]:
    labelled = rows.order_by().annotate(what=Value(what, output_field=CharField()))
    grouped: QuerySet[Any, Any] = labelled.values_list("queue", "what").annotate(found=found, first=first)
    return grouped


def _put_at(places: dict[int, int]) -> dict[int, datetime]:
    """When the tasks at these places, one of each queue, were put."""
    named = [
        Task.objects.filter(queue=queue, state="ready", place=place).order_by().values_list("queue", "created_at")
        for queue, place in places.items()
    ]
    return dict(named[0].union(*named[1:], all=True)) if named else {}


def _claims_per_minute(queues: list[Queue], at: datetime) -> dict[tuple[int, str], int]:
    newest = Event.objects.order_by("-pk").values_list("pk", flat=True).first()
    if newest is None or not queues:
        return {}
    window = Event.objects.filter(pk__gt=newest - RATE_WINDOW)
    start = at - timedelta(minutes=1)
    first = window.order_by("pk").values_list("at", flat=True).first()
    # A window that is younger than a minute, with older events behind it, stands for the minute.
    span = timedelta(minutes=1)
    if first is not None and first > start and Event.objects.filter(pk__lte=newest - RATE_WINDOW).exists():
        span = max(at - first, timedelta(seconds=1))
    counted = (
        window.filter(
            type="task.claimed",
            at__gt=start,
            organization__in={queue.organization_id for queue in queues},
            data__queue__in=[queue.name for queue in queues],
        )
        .order_by()
        .values_list("organization_id", "data__queue")
        .annotate(Count("pk"))
    )
    return {(organization, name): round(found * 60 / span.total_seconds()) for organization, name, found in counted}


def queue(*, caller: Caller, name: str) -> Queue:
    """Raises NotFound."""
    found = queues(organization=caller.organization).filter(name=name).first()
    if found is None:
        raise NotFound
    return found


def task(*, caller: Caller, task_id: uuid.UUID) -> Task:
    """Raises NotFound."""
    found = Task.objects.filter(queue__organization_id=caller.organization, pk=task_id)
    row = found.select_related("queue", "content").first()
    if row is None or not (caller.observes or row.principal_id == caller.principal or _holds(caller, row)):
        raise NotFound
    return row


def claim(*, organization: int, task_id: uuid.UUID) -> Resource | None:
    """The lease on a task, live or ran out unreaped."""
    return (
        leases.leases(organization=organization).filter(resource_type=TASK, resource_id=public_task_id(task_id)).first()
    )


def claims(*, organization: int, task_ids: Iterable[str]) -> dict[str, uuid.UUID]:
    """The leases on those of these tasks that are claimed, by task id; what is no task id is left out."""
    named = [text for text in task_ids if parsed_task_id(text) is not None]
    if not named:
        return {}
    rows = Resource.objects.filter(
        organization_id=organization, resource_type=TASK, resource_id__in=named, lease_id__isnull=False
    )
    return {task_id: lease_id for task_id, lease_id in rows.values_list("resource_id", "lease_id") if lease_id}


def acquisition(*, organization: int, principal: int, task_id: uuid.UUID, fencing_token: int) -> uuid.UUID | None:
    """The lease that a principal got on a task with a token, however long ago."""
    pair = (public_task_id(task_id), fencing_token)
    return acquisitions(organization=organization, principal=principal, pairs=[pair]).get(pair)


def acquisitions(
    *, organization: int, principal: int, pairs: Iterable[tuple[str, int]]
) -> dict[tuple[str, int], uuid.UUID]:
    """The leases that a principal got on tasks with tokens, however long ago, by (task id, token)."""
    wanted = {pair for pair in pairs if parsed_task_id(pair[0]) is not None}
    if not wanted:
        return {}
    starts = Event.objects.filter(
        organization_id=organization,
        resource_type=TASK,
        resource_id__in={task_id for task_id, _ in wanted},
        principal=principal,
        type__in=STARTS,
    ).values_list("resource_id", "fencing_token", "lease_id")
    return {
        (task_id, token): lease_id
        for task_id, token, lease_id in starts
        if token is not None and lease_id is not None and (task_id, token) in wanted
    }


def last_lease(*, organization: int, task_id: uuid.UUID) -> uuid.UUID | None:
    """The lease on a task, or the one that ended last."""
    return (
        Event.objects.filter(
            organization_id=organization,
            resource_type=TASK,
            resource_id=public_task_id(task_id),
            type__in=STARTS,
        )
        .order_by("-pk")
        .values_list("lease_id", flat=True)
        .first()
    )


def parse_task_id(text: str) -> uuid.UUID:
    """Raises NotFound: a malformed id names nothing."""
    found = parsed_task_id(text)
    if found is None:
        raise NotFound
    return found


def parsed_task_id(text: str) -> uuid.UUID | None:
    digits = text.removeprefix("t_")
    if len(text) != 34 or len(digits) != 32:
        return None
    try:
        return uuid.UUID(hex=digits)
    except ValueError:
        return None


def _holds(caller: Caller, row: Task) -> bool:
    held = claim(organization=caller.organization, task_id=row.pk)
    return held is not None and held.principal_id == caller.principal
