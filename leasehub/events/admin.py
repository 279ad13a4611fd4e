"""The journal. Every list is read along an index, from the newest event back: there may be millions."""

import uuid
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.safestring import SafeString

from leasehub.admin import NOTHING, MachineWritten, link, pretty
from leasehub.db import clock
from leasehub.events import queries
from leasehub.events.models import Event
from leasehub.events.types import COMMON_TYPES, TYPES
from leasehub.identity.admin import OrganizationFilter

SINCE = {
    "quarter": ("Past 15 minutes", timedelta(minutes=15)),
    "hour": ("Past hour", timedelta(hours=1)),
    "day": ("Past day", timedelta(days=1)),
    "week": ("Past week", timedelta(days=7)),
}


class TypeFilter(admin.SimpleListFilter):
    """The types that there can be: looking for those that there are would read the whole journal."""

    title = "type"
    parameter_name = "type"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(type, type) for type in TYPES]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Event]) -> QuerySet[Event]:
        value = self.value()
        return queryset if value is None else queryset.filter(queries.of_type(value))


class SinceFilter(admin.SimpleListFilter):
    title = "time"
    parameter_name = "since"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, title) for name, (title, _) in SINCE.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Event]) -> QuerySet[Event]:
        chosen = SINCE.get(self.value() or "")
        if chosen is None:
            return queryset
        _, length = chosen
        return queryset.filter(pk__gte=queries.first_since(clock.now() - length))


def by_position(request: HttpRequest) -> bool:
    """The page is of one organization, and of a type that is not rare, which would have an index of its own."""
    return "organization" in request.GET and request.GET.get("type", COMMON_TYPES[0]) in COMMON_TYPES


@admin.register(Event)
class EventAdmin(MachineWritten):
    list_display = ("time", "type", "resource", "holder", "by", "organization", "token")
    list_filter = (TypeFilter, SinceFilter, OrganizationFilter)
    list_select_related = ("organization", "actor")
    search_fields = ("lease_id",)
    search_help_text = "lease_…, or the type/id of a resource; a * at the end: every resource that begins so."
    sortable_by = ()
    fields = (
        "shown_id", "organization", "position", "type", "time", "actor", "key", "resource", "lease", "previous_lease",
        "fencing_token", "principal", "holder", "details",
    )  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[Event]:
        rows = super().get_queryset(request)
        # What has no position yet, two seconds' worth, is not in the index that finds an organization's.
        return rows.filter(position__isnull=False) if by_position(request) else rows

    def get_ordering(self, request: HttpRequest) -> tuple[str]:
        # Whichever is the end of the index that finds the rows.
        return ("-position",) if by_position(request) else ("-pk",)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Event], search_term: str
    ) -> tuple[QuerySet[Event], bool]:
        if not search_term:
            return queryset, False
        lease_id = _lease_id(search_term)
        meant = queries.of_resources(search_term) if lease_id is None else queries.of_lease(lease_id)
        return queryset.filter(meant), False

    @admin.display(description="event")
    def shown_id(self, event: Event) -> str:
        return f"evt_{event.event_id.hex}"

    @admin.display(description="time (UTC)")
    def time(self, event: Event) -> str:
        return f"{event.at:%Y-%m-%d %H:%M:%S}.{event.at.microsecond // 1000:03d}"

    @admin.display(description="resource")
    def resource(self, event: Event) -> SafeString | str:
        name = f"{event.resource_type}/{event.resource_id}"
        return link(timeline(name), name) if event.resource_type else NOTHING

    @admin.display(description="by")
    def by(self, event: Event) -> str:
        return "the server" if event.actor is None else event.actor.handle

    @admin.display(description="token")
    def token(self, event: Event) -> int | None:
        return event.fencing_token

    @admin.display(description="lease")
    def lease(self, event: Event) -> SafeString | str:
        return _lease_link(event.lease_id)

    @admin.display(description="previous lease")
    def previous_lease(self, event: Event) -> SafeString | str:
        return _lease_link(event.previous_lease_id)

    @admin.display(description="details")
    def details(self, event: Event) -> SafeString | str:
        return pretty(event.data)


def timeline(name: str) -> str:
    """The address of the events of a resource ("type/id") or of a lease ("lease_…")."""
    return f"{reverse('admin:events_event_changelist')}?{urlencode({'q': name})}"


def _lease_link(lease_id: uuid.UUID | None) -> SafeString | str:
    name = "" if lease_id is None else f"lease_{lease_id.hex}"
    return link(timeline(name), name) if name else NOTHING


def _lease_id(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(hex=text.removeprefix("lease_"))
    except ValueError:
        return None


# The admin looks for this module alone.
from leasehub.events.webhooks import admin as webhooks  # noqa: E402, F401
