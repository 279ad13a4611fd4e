"""Reads of the queues' pages, and where things stand in their pictures."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db.models import Count, Max, QuerySet, TextField
from django.db.models.functions import Cast, Left

from leasehub.errors import NotFound
from leasehub.events.models import Event
from leases import queries as leases
from leases.models import Resource
from leases.queues import queries
from leases.queues.models import Queue, Task
from leases.queues.queries import Figures

MINUTES = 30
#: Of the newest events of the server: beyond them nothing is drawn.
WINDOW = 20_000
FEW_DEAD = 20
#: The picture of the last minutes: puts stand above its middle, claims hang below.
COLUMN = 10
HALF = 50
WIDTH = 1000
PUT, CLAIMED = "task.queued", "task.claimed"
WHOLE_MINUTE = "%Y-%m-%d %H:%M"


@dataclass(frozen=True, slots=True)
class Minute:
    """What happened in a minute, and its two bars."""

    start: datetime
    put: int
    claimed: int
    x: int
    put_height: int
    claimed_height: int

    @property
    def put_y(self) -> int:
        return HALF - self.put_height


@dataclass(frozen=True, slots=True)
class Row:
    """A queue in the list, and its bar in thousandths of the deepest one."""

    figures: Figures
    ready_width: int
    leased_x: int
    leased_width: int


def queue(*, organization: int, name: str) -> Queue:
    """Raises NotFound."""
    found = queries.queues(organization=organization).filter(name=name).first()
    if found is None:
        raise NotFound
    return found


def rows(found: Iterable[Figures]) -> list[Row]:
    figures = list(found)
    deepest = max((of.ready + of.delayed + of.leased for of in figures), default=0) or 1

    def width(count: int) -> int:
        return max(6, round(count / deepest * WIDTH)) if count else 0

    return [Row(of, width(of.ready + of.delayed), width(of.ready + of.delayed), width(of.leased)) for of in figures]


def claims(queue: Queue) -> QuerySet[Resource]:
    """The leases on its tasks, live or ran out unreaped."""
    return leases.leases(organization=queue.organization_id).filter(queue=queue)


def dead(queue: Queue) -> list[Task]:
    """Those that gave up last."""
    found = Task.objects.filter(queue=queue, state="dead").select_related("content")
    return list(found.order_by("-finished_at")[:FEW_DEAD])


def minutes(queue: Queue, *, at: datetime) -> list[Minute]:
    """The last MINUTES, the newest last, as far as the window of events reaches back."""
    newest = Event.objects.order_by().values("pk").aggregate(newest=Max("pk"))["newest"] or 0
    counted = (
        Event.objects.filter(
            pk__gt=newest - WINDOW,
            organization_id=queue.organization_id,
            type__in=(PUT, CLAIMED),
            at__gt=at - timedelta(minutes=MINUTES),
            data__queue=queue.name,
        )
        # Both databases write a time alike up to its minute; cutting it is cheaper than reckoning with it.
        .annotate(minute=Left(Cast("at", TextField()), 16))
        .order_by()
        .values_list("minute", "type")
        .annotate(found=Count("pk"))
    )
    found: dict[tuple[str, str], int] = defaultdict(int)
    for minute, type, count in counted:
        found[minute, type] += count
    highest = max(found.values(), default=0) or 1
    this = at.astimezone(UTC).replace(second=0, microsecond=0)

    def height(count: int) -> int:
        return max(2, round(count / highest * HALF)) if count else 0

    drawn = []
    for number in range(MINUTES):
        start = this - timedelta(minutes=MINUTES - 1 - number)
        put, claimed = (found.get((start.strftime(WHOLE_MINUTE), type), 0) for type in (PUT, CLAIMED))
        drawn.append(Minute(start, put, claimed, number * COLUMN, height(put), height(claimed)))
    return drawn
