"""Reads of the feed."""

from dataclasses import dataclass

from django.db.models import Q, QuerySet

from leasehub.events import feed
from leasehub.events.models import Event, Feed
from leasehub.identity.authentication import Caller

# How many positions one call looks at when few of them match: its cursor then goes on from there.
WINDOW = 50_000


@dataclass(frozen=True, slots=True)
class Reading:
    events: list[Event]
    #: The last position looked at: go on from here.
    cursor: int
    #: There was more when this was read.
    more: bool


def read(*, caller: Caller, after: int, limit: int, types: list[str], resource: tuple[str, str] | None) -> Reading:
    """Events after a position, in the feed's order. What is visible and unnumbered is numbered first."""
    if feed.has_news(organization=caller.organization):
        feed.stamp(organization=caller.organization)
    last = Feed.objects.filter(pk=caller.organization).values_list("last_position", flat=True).first() or 0
    end = min(last, after + WINDOW)
    found = list(
        _matching(caller, types, resource)
        .filter(position__gt=after, position__lte=end)
        .select_related("actor", "principal", "key")
        .order_by("position")[: limit + 1]
    )
    if len(found) > limit:
        position = found[limit - 1].position
        assert position is not None
        return Reading(found[:limit], position, more=True)
    return Reading(found, max(after, end), more=end < last)


def visible(*, caller: Caller) -> QuerySet[Event]:
    """RING-1 sees its organization's events; other keys what their principal did or held."""
    events = Event.objects.filter(organization_id=caller.organization)
    if caller.observes:
        return events
    return events.filter(Q(principal=caller.principal) | Q(actor=caller.principal))


def _matching(caller: Caller, types: list[str], resource: tuple[str, str] | None) -> QuerySet[Event]:
    events = visible(caller=caller)
    if types:
        events = events.filter(type__in=types)
    if resource is not None:
        events = events.filter(resource_type=resource[0], resource_id=resource[1])
    return events
