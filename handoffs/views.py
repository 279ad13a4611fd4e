"""A person's inbox: what waits, one handoff with everything it carries, and what can be done with it."""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from handoffs import forms, queries, services
from handoffs.api import handoff_view
from handoffs.errors import UnknownAddressee
from handoffs.models import Handoff
from leasehub.api.paging import cursor_number
from leasehub.db import clock
from leasehub.errors import DomainError, NotFound, ValidationError
from leasehub.identity.models import Principal
from leasehub.identity.people import Person, for_people
from leases import queries as leases
from leases.models import Resource
from leases.services import Actor

ROWS = 25
HANDLES = 500
BOXES = {
    "inbox": "Waiting",
    "accepted": "Accepted",
    "sent": "Sent",
}
Status = Handoff.Status


@require_GET
@for_people
def inbox(request: HttpRequest, person: Person, box: str = "inbox") -> HttpResponse:
    rows = {
        "inbox": lambda: queries.inbox(principal=person.principal, at=person.at),
        "accepted": lambda: queries.inbox(principal=person.principal, at=person.at, status=Status.ACCEPTED),
        "sent": lambda: queries.sent(principal=person.principal, at=person.at),
    }[box]()
    newest_first = box == "sent"
    if (after := _after(request)) is not None:
        rows = rows.filter(pk__lt=after) if newest_first else rows.filter(pk__gt=after)
    found = list(queries.whole(rows).order_by("-pk" if newest_first else "pk")[: ROWS + 1])
    now = person.at
    context = {
        "now": now,
        "box": box,
        "title": BOXES[box],
        "boxes": [(name, title, _count(person, name)) for name, title in BOXES.items()],
        "handoffs": [(handoff, handoff.status_at(now)) for handoff in found[:ROWS]],
        "next": found[ROWS - 1].pk if len(found) > ROWS else None,
        "after": after,
    }
    return render(request, "handoffs/inbox.html", context)


@require_GET
@for_people
def badge(request: HttpRequest, person: Person) -> HttpResponse:
    """How many wait, for the menu of every page."""
    waiting = queries.count_pending(principal=person.principal, at=person.at)
    return render(request, "handoffs/badge.html", {"waiting": waiting})


@require_GET
@for_people
def show(request: HttpRequest, person: Person, handoff_id: str) -> HttpResponse:
    handoff = _handoff(person, handoff_id)
    response = render(request, "handoffs/handoff.html", _shown(person, handoff))
    # The page that polls shows forms of a status that is no more.
    if request.GET.get("status") not in (None, handoff.status_at(person.at)):
        response.headers["HX-Refresh"] = "true"
    return response


@require_http_methods(["GET", "POST"])
@for_people
def send(request: HttpRequest, person: Person) -> HttpResponse:
    own = list(_own_leases(person))
    parent = _parent(person, request.GET.get("parent_id"))
    if request.method == "GET":
        form = forms.SendForm(leases=own, initial=_handed_on(parent))
    else:
        form = forms.SendForm(request.POST, leases=own)
        if form.is_valid():
            try:
                sent = _send(person, form, parent)
            except DomainError as error:
                _add_errors(form, error)
            else:
                messages.success(request, f"Sent to {sent.addressee.handle}.")
                return redirect("handoff", sent.handoff_id)
    alive = Principal.objects.filter(organization=person.organization, retired_at=None).order_by("handle")
    context = {"form": form, "parent": parent, "handles": alive.values_list("handle", flat=True)[:HANDLES]}
    return render(request, "handoffs/send.html", context)


@require_POST
@for_people
def accept(request: HttpRequest, person: Person, handoff_id: str) -> HttpResponse:
    def effect(handoff: Handoff) -> str:
        accepted = services.accept(actor=_actor(person), handoff_id=handoff.public_id, holder=person.handle)
        moved, lost = len(accepted.moved), len(accepted.lost)
        told = ["Accepted."]
        if moved:
            told.append(f"{moved} lease{'' if moved == 1 else 's'} moved to you.")
        if lost:
            told.append(f"{lost} ended before that.")
        return " ".join(told)

    return _decide(request, person, handoff_id, effect)


@require_POST
@for_people
def reject(request: HttpRequest, person: Person, handoff_id: str) -> HttpResponse:
    form = forms.ReasonForm(request.POST)
    if not form.is_valid():
        shown = _shown(person, _handoff(person, handoff_id)) | {"reject": form}
        return render(request, "handoffs/handoff.html", shown)

    def effect(handoff: Handoff) -> str:
        services.reject(actor=_actor(person), handoff_id=handoff.public_id, reason=_lines(form.cleaned_data["reason"]))
        return "Rejected."

    return _decide(request, person, handoff_id, effect)


@require_POST
@for_people
def withdraw(request: HttpRequest, person: Person, handoff_id: str) -> HttpResponse:
    def effect(handoff: Handoff) -> str:
        services.withdraw(actor=_actor(person), handoff_id=handoff.public_id)
        return "Withdrawn."

    return _decide(request, person, handoff_id, effect)


@require_POST
@for_people
def complete(request: HttpRequest, person: Person, handoff_id: str) -> HttpResponse:
    form = forms.CompleteForm(request.POST)
    if not form.is_valid():
        shown = _shown(person, _handoff(person, handoff_id)) | {"complete": form}
        return render(request, "handoffs/handoff.html", shown)

    def effect(handoff: Handoff) -> str:
        services.complete(
            actor=_actor(person),
            handoff_id=handoff.public_id,
            result=_lines(form.cleaned_data["result"]) or None,
        )
        return "Completed."

    return _decide(request, person, handoff_id, effect)


def _decide(request: HttpRequest, person: Person, handoff_id: str, effect: Callable[[Handoff], str]) -> HttpResponse:
    """Carries a decision out and shows the handoff as it is then, whoever came first."""
    handoff = _handoff(person, handoff_id)
    try:
        messages.success(request, effect(handoff))
    except NotFound:
        messages.error(request, "That was too late: it is decided already.")
    except DomainError as error:
        messages.error(request, error.message)
    return redirect("handoff", handoff_id)


def _send(person: Person, form: forms.SendForm, parent: Handoff | None) -> Handoff:
    given = form.cleaned_data
    wait = form.wait()
    return services.send(
        actor=_actor(person),
        to_principal=given["to_principal"],
        subject_id=given["subject_id"],
        message=_lines(given["message"]),
        next_action=_lines(given["next_action"]),
        lease_ids=given["lease_ids"],
        accept_by=None if wait is None else clock.now() + wait,
        parent_id=None if parent is None else parent.handoff_id,
    )


def _add_errors(form: forms.SendForm, error: DomainError) -> None:
    if isinstance(error, UnknownAddressee):
        close = error.fields["did_you_mean"]
        hint = f" Did you mean {' or '.join(close)}?" if isinstance(close, list) and close else ""
        form.add_error("to_principal", f"Nobody of that handle can be handed work.{hint}")
        return
    wrong = error.fields.get("fields")
    named = [name for name in form.fields if isinstance(wrong, dict) and name in wrong]
    for name in named:
        assert isinstance(wrong, dict)
        form.add_error(name, str(wrong[name]))
    if not named:
        form.add_error(None, error.message)


def _shown(person: Person, handoff: Handoff) -> dict[str, Any]:
    now = person.at
    live = queries.live_leases(handoff.leases.all())
    view = handoff_view(person.principal, handoff, now, live)
    for lease in view["leases"]:
        lease["until"] = None if lease["expires_at"] is None else datetime.fromisoformat(lease["expires_at"])
    return {
        "now": now,
        "handoff": handoff,
        "view": view,
        "status": view["status"],
        "received": handoff.addressee_id == person.principal,
        "given": handoff.giver_id == person.principal,
        "checkpoint": _checkpoint(person, handoff),
        "result": None if handoff.result is None else _pretty(handoff.result),
        "reject": forms.ReasonForm(),
        "complete": forms.CompleteForm(),
    }


def _checkpoint(person: Person, handoff: Handoff) -> dict[str, Any] | None:
    """The checkpoint that it names, while the person may read it."""
    if handoff.checkpoint is None:
        return None
    try:
        head = queries.checkpoint(
            organization=person.organization,
            principal=person.principal,
            checkpoint_id=handoff.checkpoint.checkpoint_id,
            at=person.at,
        )
        row = queries.version(of=head)
    except NotFound:
        return None
    return {"head": head, "version": row.version, "state": _pretty(row.state)}


def _pretty(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)


def _handoff(person: Person, handoff_id: str) -> Handoff:
    return queries.handoff(organization=person.organization, principal=person.principal, handoff_id=handoff_id)


def _parent(person: Person, handoff_id: str | None) -> Handoff | None:
    return None if not handoff_id else _handoff(person, handoff_id)


def _handed_on(parent: Handoff | None) -> dict[str, Any]:
    """What a handoff that is passed on starts from."""
    return {} if parent is None else {"subject_id": parent.subject_id, "next_action": parent.next_action}


def _own_leases(person: Person) -> list[Resource]:
    return list(
        leases.leases(organization=person.organization).filter(principal=person.principal, expires_at__gt=person.at)[
            :100
        ]
    )


def _count(person: Person, box: str) -> int | None:
    if box == "sent":
        return None
    status = Status.PENDING if box == "inbox" else Status.ACCEPTED
    rows = queries.inbox(principal=person.principal, at=person.at, status=status)
    return rows.values("pk")[: queries.COUNTED_UP_TO + 1].count()


def _after(request: HttpRequest) -> int | None:
    try:
        return cursor_number(request.GET["after"]) if "after" in request.GET else None
    except ValidationError:
        return None


def _lines(text: str) -> str:
    """Browsers send line breaks as CR LF."""
    return text.replace("\r\n", "\n")


def _actor(person: Person) -> Actor:
    return Actor(person.organization, person.principal)
