"""Reads of the feed, and of the journal for those who run the server."""

import uuid
from dataclasses import dataclass
from datetime import datetime

from django.db.models import BooleanField, Q, QuerySet
from django.db.models.expressions import RawSQL

from leasehub.events import feed
from leasehub.events.models import Event, Feed
from leasehub.events.types import COMMON_TYPES
from leasehub.identity.authentication import Caller
from leasehub.identity.models import Organization

# How many positions one call looks at when few of them match: its cursor then goes on from there.
WINDOW = 50_000
LAST_CHARACTER = "\U0010ffff"
# The condition of event_by_rare_type.
RARE = "NOT (events_event.type IN ({}))".format(", ".join(f"'{type}'" for type in COMMON_TYPES))


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
        .select_related("actor", "principal", "addressee", "key")
        .order_by("position")[: limit + 1]
    )
    if len(found) > limit:
        position = found[limit - 1].position
        assert position is not None
        return Reading(found[:limit], position, more=True)
    return Reading(found, max(after, end), more=end < last)


def visible(*, caller: Caller) -> QuerySet[Event]:
    """RING-1 sees its organization's events; other keys what their principal did or held, or is addressed to it."""
    events = Event.objects.filter(organization_id=caller.organization)
    if caller.observes:
        return events
    mine = Q(principal=caller.principal) | Q(actor=caller.principal) | Q(addressee=caller.principal)
    return events.filter(mine)


def _matching(caller: Caller, types: list[str], resource: tuple[str, str] | None) -> QuerySet[Event]:
    events = visible(caller=caller)
    if types:
        events = events.filter(type__in=types)
    if resource is not None:
        events = events.filter(resource_type=resource[0], resource_id=resource[1])
    return events


def of_lease(lease_id: uuid.UUID) -> Q:
    """What happened to a lease, its successor's beginning included."""
    return Q(lease_id=lease_id) | Q(previous_lease_id=lease_id)


def of_resources(name: str) -> Q:
    """What happened to the resource "type/id", or with a star at the end to all that begin so.

    Names every organization, because the index of resources begins with it.
    """
    found = Q()
    for resource_type, resource_id in readings(name):
        if resource_id.endswith("*"):
            # Both databases order these columns by code point, so the range is what begins with the prefix.
            prefix = resource_id[:-1]
            meant = Q(resource_id__gte=prefix, resource_id__lt=prefix + LAST_CHARACTER)
        else:
            meant = Q(resource_id=resource_id)
        found |= Q(resource_type=resource_type) & meant
    everybody = list(Organization.objects.values_list("pk", flat=True))
    return found & Q(organization__in=everybody) if found else Q(pk__in=[])


def readings(name: str) -> list[tuple[str, str]]:
    """What "type/id" can mean: a type may hold a slash too, so each could be the one between the two."""
    return [(name[:at], name[at + 1 :]) for at, letter in enumerate(name) if letter == "/"]


def of_type(type: str) -> Q:
    if type in COMMON_TYPES:
        return Q(type=type)
    # SQLite takes a partial index only for a query that repeats its condition word for word.
    return Q(type=type) & Q(RawSQL(RARE, (), output_field=BooleanField()))


def first_since(at: datetime) -> int:
    """The lowest id from which on events are of that time or later, found by halving: ids grow with the time."""
    lowest, beyond = 0, (Event.objects.order_by("-pk").values_list("pk", flat=True).first() or 0) + 1
    while lowest < beyond:
        middle = (lowest + beyond) // 2
        seen = Event.objects.filter(pk__gte=middle).order_by("pk").values_list("pk", "at").first()
        if seen is None or seen[1] >= at:
            beyond = middle
        else:
            lowest = seen[0] + 1
    return lowest
