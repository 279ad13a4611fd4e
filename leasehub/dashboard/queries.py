"""Reads of the operator's and the person's pages. A person sees what a key with RING-1 sees."""

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q, QuerySet

from leasehub.events.models import Event
from leases import queries as leases
from leases.models import Resource

COUNTED_UP_TO = 1000
TIMELINE = 100
SPANS = 24
SHADES = 6
# Each of these begins a lease on its resource.
STARTS = (*leases.ENDED_BY_SUCCESSOR, "task.claimed", "pool.granted")


@dataclass(frozen=True, slots=True)
class Counts:
    """Each up to one above COUNTED_UP_TO."""

    held: int
    unknown: int


def counts(*, organization: int, at: datetime) -> Counts:
    found = leases.leases(organization=organization).order_by()
    return Counts(
        held=_bounded(found.filter(expires_at__gt=at)),
        unknown=_bounded(found.filter(check_at__lte=at, expires_at__lte=at)),
    )


def _bounded(rows: QuerySet[Resource]) -> int:
    return rows.values("pk")[: COUNTED_UP_TO + 1].count()


def board(*, organization: int, text: str, state: str | None) -> QuerySet[Resource]:
    """The leases, those whose resource or holder begins with a text."""
    found = leases.filtered(
        leases.leases(organization=organization), resource_type=None, resource_id=None, holder=None, state=state
    )
    if not text:
        return found
    begins = Q(resource_type__startswith=text) | Q(resource_id__startswith=text) | Q(holder__startswith=text)
    resource_type, slash, resource_id = text.partition("/")
    if slash:
        begins |= Q(resource_type=resource_type, resource_id__startswith=resource_id)
    return found.filter(begins)


def newest_events(*, organization: int, types: list[str], before: int | None, limit: int) -> list[Event]:
    """Numbered events, newest first."""
    found = Event.objects.filter(organization_id=organization, position__isnull=False)
    if types:
        found = found.filter(type__in=types)
    if before is not None:
        found = found.filter(position__lt=before)
    return list(found.select_related("actor", "principal", "addressee").order_by("-position")[:limit])


def timeline(*, organization: int, resource_type: str, resource_id: str) -> list[Event]:
    """The events of a resource, newest first."""
    found = Event.objects.filter(organization_id=organization, resource_type=resource_type, resource_id=resource_id)
    return list(found.select_related("actor", "principal", "addressee").order_by("-pk")[:TIMELINE])


@dataclass(frozen=True, slots=True)
class Span:
    """One lease in the picture of a resource's timeline."""

    holder: str
    start: datetime
    end: datetime
    #: The type of the event that ended it; empty while it lasts.
    ended_by: str
    #: Of the picture's width, 0 to 1000.
    x: int
    width: int
    #: One holder has one shade.
    shade: int


def spans(events: list[Event], *, now: datetime) -> list[Span]:
    """When who held a resource, from its events, newest first; what they do not reach back to is left out."""
    held: list[tuple[Event, datetime, str]] = []
    opened: Event | None = None
    for event in reversed(events):
        if event.lease_id is None:
            continue
        if opened is not None:
            held.append((opened, event.at, event.type))
        opened = event if event.type in STARTS else None
    if opened is not None:
        held.append((opened, now, ""))
    held = held[-SPANS:]
    if not held:
        return []
    first = held[0][0].at
    length = max((now - first).total_seconds(), 0.001)
    shades: dict[str, int] = {}
    return [
        Span(
            holder=event.holder,
            start=event.at,
            end=end,
            ended_by=ended_by,
            x=round((event.at - first).total_seconds() / length * 1000),
            width=max(3, round((end - event.at).total_seconds() / length * 1000)),
            shade=shades.setdefault(event.holder, len(shades)) % SHADES,
        )
        for event, end, ended_by in held
    ]
