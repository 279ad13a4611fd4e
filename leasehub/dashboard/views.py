"""The board of live leases, a page per resource, the event log, and a person's home."""

import json
from collections.abc import Iterable
from typing import Any

from django.contrib.auth.views import LoginView, LogoutView
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from handoffs import queries as handoffs
from leasehub.api.paging import cursor_number
from leasehub.dashboard import queries
from leasehub.errors import NotFound, ValidationError
from leasehub.events import feed
from leasehub.events.models import Event
from leasehub.events.types import TYPES
from leasehub.identity.people import Person, for_people
from leases import queries as leases
from leases.models import Resource, public_lease_id

ROWS = 50
FEW = 8
STATES = ("held", "unknown")

sign_in = LoginView.as_view(template_name="dashboard/sign_in.html", redirect_authenticated_user=True)
sign_out = LogoutView.as_view()


@require_GET
@for_people
def home(request: HttpRequest, person: Person) -> HttpResponse:
    at = person.at
    pending = handoffs.whole(handoffs.inbox(principal=person.principal, at=at)).order_by("pk")
    own = leases.leases(organization=person.organization).filter(principal=person.principal)
    context = {
        "now": at,
        "counts": queries.counts(organization=person.organization, at=at),
        "counted_up_to": queries.COUNTED_UP_TO,
        "waiting": handoffs.count_pending(principal=person.principal, at=at),
        "pending": list(pending[:FEW]),
        "leases": lease_rows(own[:FEW]),
        "events": event_rows(_newest(person, types=[], before=None, limit=FEW)[0]),
    }
    return render(request, "dashboard/home.html", context)


@require_GET
@for_people
def board(request: HttpRequest, person: Person) -> HttpResponse:
    text, state = _text(request, "q"), _text(request, "state")
    found = queries.board(organization=person.organization, text=text, state=state if state in STATES else None)
    after = _cursor(request, "after")
    rows = list(found.filter(pk__gt=after or 0)[: ROWS + 1])
    context = {
        "now": person.at,
        "leases": lease_rows(rows[:ROWS]),
        "next": rows[ROWS - 1].pk if len(rows) > ROWS else None,
        "after": after,
        "q": text,
        "state": state,
        "states": STATES,
    }
    return render(request, "dashboard/board.html", context)


@require_GET
@for_people
def resource(request: HttpRequest, person: Person) -> HttpResponse:
    resource_type, resource_id = _text(request, "resource_type"), _text(request, "resource_id")
    row = (
        leases.leases(organization=person.organization)
        .filter(resource_type=resource_type, resource_id=resource_id)
        .first()
    )
    events = queries.timeline(organization=person.organization, resource_type=resource_type, resource_id=resource_id)
    if row is None and not events:
        raise NotFound
    now = person.at
    context = {
        "now": now,
        "resource_type": resource_type,
        "resource_id": resource_id,
        "lease": None if row is None else lease_rows([row])[0],
        "events": event_rows(events),
        "spans": queries.spans(events, now=now),
    }
    return render(request, "dashboard/resource.html", context)


@require_GET
@for_people
def events(request: HttpRequest, person: Person) -> HttpResponse:
    type = _text(request, "type")
    before = _cursor(request, "before")
    found, more = _newest(person, types=[type] if type in TYPES else [], before=before, limit=ROWS)
    context = {
        "now": person.at,
        "events": event_rows(found),
        "next": found[-1].position if more else None,
        "before": before,
        "type": type,
        "types": TYPES,
    }
    return render(request, "dashboard/events.html", context)


def _newest(person: Person, *, types: list[str], before: int | None, limit: int) -> tuple[list[Event], bool]:
    """A page of events, newest first, and whether there are older ones. What is unnumbered is numbered first."""
    if before is None and feed.has_news(organization=person.organization):
        feed.stamp(organization=person.organization)
    found = queries.newest_events(organization=person.organization, types=types, before=before, limit=limit + 1)
    return found[:limit], len(found) > limit


def lease_rows(rows: Iterable[Resource]) -> list[dict[str, Any]]:
    """What a page shows of each lease."""
    return [
        {
            "row": row,
            "lease_id": public_lease_id(row.lease_id),
            "principal": row.principal.handle if row.principal else "",
            "payload": "" if row.payload is None else json.dumps(row.payload, indent=2, ensure_ascii=False),
        }
        for row in rows
        if row.lease_id is not None
    ]


def event_rows(found: list[Event]) -> list[dict[str, Any]]:
    """What a page shows of each event."""
    return [
        {"event": event, "data": json.dumps(event.data, indent=2, ensure_ascii=False) if event.data else ""}
        for event in found
    ]


def _text(request: HttpRequest, name: str) -> str:
    """A parameter as both databases take it."""
    return request.GET.get(name, "").replace("\0", "").encode("utf-8", "ignore").decode()[:200]


def _cursor(request: HttpRequest, name: str) -> int | None:
    try:
        return cursor_number(request.GET[name]) if name in request.GET else None
    except ValidationError:
        return None
