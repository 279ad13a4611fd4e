"""Reads of the feed, and of the journal for those who run the server."""

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from django.db.models import BooleanField, Q, QuerySet
from django.db.models.expressions import RawSQL

from leasehub.events import feed
from leasehub.events.errors import CursorAhead, CursorExpired, Extent
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


class Shown(Protocol):
    """What a view looks at of an event."""

    @property
    def type(self) -> str: ...
    @property
    def resource_type(self) -> str: ...
    @property
    def resource_id(self) -> str: ...
    @property
    def holder(self) -> str: ...
    @property
    def principal_id(self) -> int | None: ...
    @property
    def actor_id(self) -> int | None: ...
    @property
    def addressee_id(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class View:
    """Which events of an organization somebody is shown: those they may see, and of these what they asked for.

    Whoever observes sees all of the organization's; other keys what their principal did or held, or is addressed to
    it. An event never carries what a handoff carries, so there is nothing in it to leave out.
    """

    organization: int
    #: Whose own events alone; None: everybody's.
    only_of: int | None
    types: tuple[str, ...] = ()
    #: Any of them.
    resources: tuple[tuple[str, str], ...] = ()
    holder: str = ""

    @classmethod
    def of(cls, caller: Caller, **asked_for: Any) -> "View":
        return cls(caller.organization, None if caller.observes else caller.principal, **asked_for)

    def events(self) -> QuerySet[Event]:
        events = Event.objects.filter(organization_id=self.organization)
        if self.only_of is not None:
            events = events.filter(Q(principal=self.only_of) | Q(actor=self.only_of) | Q(addressee=self.only_of))
        if self.types:
            events = events.filter(type__in=self.types)
        if self.resources:
            asked_for = Q()
            for resource_type, resource_id in self.resources:
                asked_for |= Q(resource_type=resource_type, resource_id=resource_id)
            events = events.filter(asked_for)
        if self.holder:
            events = events.filter(holder=self.holder)
        return events

    def shows(self, event: Shown) -> bool:
        """Whether ``events`` has it, told without the database."""
        return (
            (self.only_of is None or self.only_of in (event.principal_id, event.actor_id, event.addressee_id))
            and (not self.types or event.type in self.types)
            and (not self.resources or (event.resource_type, event.resource_id) in self.resources)
            and (not self.holder or self.holder == event.holder)
        )


def extent(*, organization: int) -> Extent:
    """What is visible and unnumbered is numbered first."""
    if feed.has_news(organization=organization):
        feed.stamp(organization=organization)
    return _extent(organization)


def _extent(organization: int) -> Extent:
    found = Feed.objects.filter(pk=organization).values_list("pruned_through", "last_position").first()
    return Extent(*(found or (0, 0)))


def read(*, view: View, after: int, limit: int) -> Reading:
    """Events after a position, in the feed's order. What is visible and unnumbered is numbered first.

    Raises CursorAhead, CursorExpired.
    """
    known = extent(organization=view.organization)
    check_cursor(after, known)
    last = known.tail
    end = min(last, after + WINDOW)
    found = list(
        view.events()
        .filter(position__gt=after, position__lte=end)
        .select_related("actor", "principal", "addressee", "key")
        .order_by("position")[: limit + 1]
    )
    if not found or found[0].position != after + 1:
        # What seems to be left out by the view may have been moved out since the cursor was checked.
        check_cursor(after, _extent(view.organization))
    if len(found) > limit:
        position = found[limit - 1].position
        assert position is not None
        return Reading(found[:limit], position, more=True)
    return Reading(found, max(after, end), more=end < last)


def check_cursor(after: int, known: Extent) -> None:
    """Raises CursorAhead, CursorExpired."""
    if after > known.tail:
        raise CursorAhead(known)
    if after < known.start:
        raise CursorExpired(known)


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
