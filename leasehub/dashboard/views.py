"""A person's home, the board of live leases, a page per resource, pools and queues, the event log."""

import json
import math
from collections.abc import Iterable
from typing import Any

from django.contrib.auth.views import LoginView, LogoutView
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from handoffs import queries as handoffs
from leasehub.api.paging import cursor_number
from leasehub.dashboard import pools as pool_pages
from leasehub.dashboard import queries
from leasehub.dashboard import queues as queue_pages
from leasehub.errors import NotFound, ValidationError
from leasehub.events import feed
from leasehub.events.models import Event
from leasehub.events.types import TYPES
from leasehub.identity.people import Person, for_people
from leasehub.identity.sign_in import SignInForm
from leases import queries as leases
from leases.models import Resource, public_lease_id
from leases.queues import queries as queues
from pools import queries as pools
from pools.models import RESOURCE_TYPE as SLOT
from pools.models import Pool, Slot
from pools.models import resource_id as resource_id_of_slot

ROWS = 50
FEW = 8
STATES = ("held", "unknown")


class SignIn(LoginView):
    template_name = "dashboard/sign_in.html"
    redirect_authenticated_user = True
    authentication_form = SignInForm

    def form_invalid(self, form: SignInForm) -> HttpResponse:  # type: ignore[override]  # of this form alone
        response = super().form_invalid(form)
        if form.wait is not None:
            response.status_code = 429
            response.headers["Retry-After"] = str(math.ceil(form.wait.total_seconds()))
        return response


sign_in = SignIn.as_view()
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
        .select_related("principal", "queue")
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
        "pool": resource_id.partition("/")[0] if resource_type == SLOT else None,
        "queue": None if row is None or row.queue is None else row.queue.name,
        "lease": None if row is None else lease_rows([row])[0],
        "events": event_rows(events),
        "spans": queries.spans(events, now=now),
    }
    return render(request, "dashboard/resource.html", context)


@require_GET
@for_people
def pool_list(request: HttpRequest, person: Person) -> HttpResponse:
    after = _cursor(request, "after")
    found = list(pools.pools(organization=person.organization).filter(pk__gt=after or 0).order_by("pk")[: ROWS + 1])
    counts = pools.counts(pools=found[:ROWS])
    context = {
        "now": person.at,
        "pools": [_pool_row(pool, counts[pool.pk]) for pool in found[:ROWS]],
        "next": found[ROWS - 1].pk if len(found) > ROWS else None,
        "after": after,
    }
    return render(request, "dashboard/pools.html", context)


def _pool_row(pool: Pool, counts: dict[str, int]) -> dict[str, Any]:
    parts = {"free": counts["slots_free"], "leased": counts["slots_held"], "out": counts["slots_out"]}
    return {
        "pool": pool,
        "counts": counts,
        "stretches": pool_pages.stretches(parts),
        "average": pools.moving_average(pool) / 1000,
    }


@require_GET
@for_people
def pool(request: HttpRequest, person: Person, name: str) -> HttpResponse:
    found = pools.pool_on_show(organization=person.organization, name=name)
    at = person.at
    drawn = pool_pages.drawn(found)
    counts = pool_pages.counts(found, drawn)
    waiting = pool_pages.waiting(found, at=at)
    first_slot, first_waiter = _place(request, "slots"), _place(request, "queue")
    page = pool_pages.shown(found).order_by("place", "pk")
    slots = list(page[first_slot : first_slot + ROWS])
    requests = list(waiting[first_waiter : first_waiter + ROWS])
    positions = range(first_waiter + 1, first_waiter + len(requests) + 1)
    estimates = pool_pages.estimates(found, positions, at=at, slots=drawn)
    total = sum(counts.values())
    whole_queue = not first_waiter and len(requests) < ROWS
    waiting_count = len(requests) if whole_queue else waiting.count()
    context = {
        "now": at,
        "pool": found,
        "served": pools.served(found),
        "counts": counts,
        "stretches": pool_pages.stretches(counts),
        "picture": None if drawn is None else pool_pages.picture(drawn),
        "average": pools.moving_average(found) / 1000,
        "durations": pool_pages.durations(found),
        "slots": [_slot_row(found, slot, lease) for slot, lease in _with_leases(slots)],
        "first_slot": first_slot,
        "total": total,
        "slots_before": max(0, first_slot - ROWS) if first_slot else None,
        "slots_after": first_slot + ROWS if total > first_slot + ROWS else None,
        "waiters": list(zip(requests, estimates, strict=True)),
        "waiting": waiting_count,
        "first_waiter": first_waiter,
        "queue_before": max(0, first_waiter - ROWS) if first_waiter else None,
        "queue_after": first_waiter + ROWS if waiting_count > first_waiter + ROWS else None,
    }
    return render(request, "dashboard/pool.html", context)


def _with_leases(slots: list[Slot]) -> list[tuple[Slot, Resource | None]]:
    return [(held.slot, held.lease) for held in pools.with_leases(slots)]


def _slot_row(pool: Pool, slot: Slot, lease: Resource | None) -> dict[str, Any]:
    return {
        "slot": slot,
        "state": pool_pages.state_of(slot),
        "resource_id": resource_id_of_slot(pool.name, slot.slot_id),
        "lease": lease,
        "principal": lease.principal.handle if lease and lease.principal else "",
        "attributes": json.dumps(slot.attributes, indent=2, ensure_ascii=False) if slot.attributes else "",
    }


@require_GET
@for_people
def queue_list(request: HttpRequest, person: Person) -> HttpResponse:
    after = _cursor(request, "after")
    found = list(queues.queues(organization=person.organization).filter(pk__gt=after or 0)[: ROWS + 1])
    context = {
        "now": person.at,
        "rows": queue_pages.rows(queues.figures(queues=found[:ROWS], at=person.at)),
        "next": found[ROWS - 1].pk if len(found) > ROWS else None,
        "after": after,
    }
    return render(request, "dashboard/queues.html", context)


@require_GET
@for_people
def queue(request: HttpRequest, person: Person) -> HttpResponse:
    found = queue_pages.queue(organization=person.organization, name=_text(request, "name"))
    after = _cursor(request, "after")
    claims = list(queue_pages.claims(found).filter(pk__gt=after or 0)[: ROWS + 1])
    (depth,) = queues.depths(queues=[found], at=person.at)
    minutes = queue_pages.minutes(found, at=person.at)
    context = {
        "now": person.at,
        "queue": found,
        "depth": depth,
        "minutes": minutes,
        "put": sum(minute.put for minute in minutes),
        "claimed": sum(minute.claimed for minute in minutes),
        "most": max(max(minute.put, minute.claimed) for minute in minutes),
        "claims": lease_rows(claims[:ROWS]),
        "next": claims[ROWS - 1].pk if len(claims) > ROWS else None,
        "after": after,
        "dead": queue_pages.dead(found),
    }
    return render(request, "dashboard/queue.html", context)


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


def _place(request: HttpRequest, name: str) -> int:
    """Where in a list with an order of its own a page begins, from 0."""
    text = request.GET.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 5 else 0


def _cursor(request: HttpRequest, name: str) -> int | None:
    try:
        return cursor_number(request.GET[name]) if name in request.GET else None
    except ValidationError:
        return None
