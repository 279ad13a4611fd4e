"""/v1/leases and /v1/fence."""

import uuid
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from pydantic import BaseModel, Field, RootModel

from leasehub.api import paging
from leasehub.api.parsing import (
    Body,
    Holder,
    Identifier,
    Message,
    Page,
    Payload,
    QueryToken,
    Reason,
    Token,
    parse_body,
    parse_query,
)
from leasehub.api.rendering import data, error_body
from leasehub.api.views import Operation, operation
from leasehub.db import clock
from leasehub.errors import DomainError, NotFound, ValidationError
from leasehub.events.models import Event
from leasehub.identity.authentication import Caller, check_key
from leasehub.identity.errors import OutsideFence
from leasehub.identity.rings import ACT, OBSERVE, OPERATE
from leases import queries, services
from leases.errors import Conflict, LeaseLost, StaleToken
from leases.granting import Grant
from leases.models import Resource, public_lease_id
from leases.queues import queries as task_queries
from leases.queues import services as tasks
from leases.queues.models import TASK
from leases.replays import with_time_left

MAX_BEATS = 200
MAX_LIFETIME_SECONDS = 366 * 86400

Seconds = Annotated[int, Field(ge=1, le=settings.LEASEHUB_MAX_TTL_SECONDS)]
State = Literal["free", "held", "unknown"]


class AcquireLease(Body):
    EXAMPLE: ClassVar = {
        "resource_type": "deploy",
        "resource_id": "checkout-service",
        "ttl_seconds": 60,
        "purpose": "release 41",
    }

    resource_type: Identifier
    resource_id: Identifier
    ttl_seconds: Seconds
    purpose: Message | None = None
    holder: Holder | None = None
    payload: Payload = None
    max_lifetime_seconds: Annotated[int, Field(ge=1, le=MAX_LIFETIME_SECONDS)] | None = None
    reacquire: bool = True


class PreviousLease(BaseModel):
    lease_id: str
    holder: str
    acquired_at: str
    heartbeat_at: str
    expires_at: str


class HeldLease(BaseModel):
    lease_id: str
    fencing_token: int
    expires_at: str
    expires_in_ms: int


class AcquiredLease(HeldLease):
    took_over_expired: bool
    previous: PreviousLease | None


class LeaseView(BaseModel):
    resource_type: str
    resource_id: str
    state: State
    expires_at: str | None
    expires_in_ms: int | None
    expired_for_ms: int | None
    #: The key's own principal holds it.
    mine: bool
    lease_id: str | None
    principal: str | None
    holder: str | None
    purpose: str | None
    payload: Any
    ttl_seconds: int | None
    acquired_at: str | None
    heartbeat_at: str | None
    lifetime_ends_at: str | None
    #: Shown to its own principal and to RING-3.
    fencing_token: int | None


class EndedLease(BaseModel):
    resource_type: str
    resource_id: str
    state: Literal["ended"]
    lease_id: str
    principal: str | None
    holder: str
    ended_by: str
    ended_at: str


class ShownLease(RootModel[LeaseView | EndedLease]):
    """A lease that lives or is yet to be reaped, or how it ended."""


class LeasePage(BaseModel):
    leases: list[LeaseView]
    next: str | None


class ListLeases(Page):
    resource_type: Identifier | None = None
    resource_id: Identifier | None = None
    holder: Holder | None = None
    state: State | None = None


class ResourceName(Body):
    EXAMPLE: ClassVar = {"resource_type": "deploy", "resource_id": "checkout-service"}

    resource_type: Identifier
    resource_id: Identifier


class Heartbeat(Body):
    EXAMPLE: ClassVar = {"fencing_token": 1796036293829}

    fencing_token: Token
    ttl_seconds: Seconds | None = None


class Beat(Body):
    lease_id: Identifier
    fencing_token: Token


class Heartbeats(Body):
    EXAMPLE: ClassVar = {
        "leases": [{"lease_id": "lease_8f14e45fceea467a9575b2e4a0c1d3e7", "fencing_token": 1796036293829}],
    }

    leases: Annotated[list[Beat], Field(min_length=1, max_length=MAX_BEATS)]


class BeatAnswer(BaseModel):
    lease_id: str
    ok: bool
    fencing_token: int | None = None
    expires_at: str | None = None
    expires_in_ms: int | None = None
    error: dict[str, Any] | None = None


class BeatAnswers(BaseModel):
    leases: list[BeatAnswer]


class Release(Body):
    fencing_token: QueryToken | None = None


class ReleasedLease(BaseModel):
    lease_id: str
    released_at: str
    was_expired: bool


class ForceRelease(Body):
    EXAMPLE: ClassVar = {"fencing_token": 1796036293829, "reason": "its machine is gone"}

    reason: Reason
    fencing_token: Token


class ReapedLease(BaseModel):
    resource_type: str
    resource_id: str
    lease_id: str
    #: Of others' leases to RING-1 alone, like the holder.
    fencing_token: int | None
    principal: str | None
    holder: str | None
    acquired_at: str
    heartbeat_at: str
    expired_at: str
    reaped_at: str
    #: Of a claim that was reaped.
    task_id: str | None


class ReapedPage(BaseModel):
    leases: list[ReapedLease]
    next: str | None


class Reconciled(BaseModel):
    held: list[LeaseView]
    reaped: list[ReapedLease]
    foreign: list[LeaseView]
    truncated: bool


class CheckFence(ResourceName):
    EXAMPLE: ClassVar = {"resource_type": "deploy", "resource_id": "checkout-service", "fencing_token": 1796036293829}

    fencing_token: Token


class FenceAnswer(BaseModel):
    current: bool
    highest_token: int


def still_running(caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
    """A remembered grant, with the time that is left of it now."""
    (granted,) = with_time_left(caller, [body["data"]])
    return {"data": granted}


class Leases(Operation):
    @operation(
        "lease_list",
        ring=OBSERVE,
        query=ListLeases,
        answers={200: LeasePage},
        summary="The leases that are held, or ran out and were not reaped yet",
    )
    def get(self, request: HttpRequest) -> HttpResponse:
        given = parse_query(request, ListLeases)
        rows = queries.filtered(
            queries.visible_leases(caller=self.caller),
            resource_type=given.resource_type,
            resource_id=given.resource_id,
            holder=given.holder,
            state=given.state,
        )
        found, following = paging.page(rows, given)
        at = clock.now()
        return data({"leases": [lease_view(self.caller, row, at) for row in found], "next": following})

    @operation(
        "lease_acquire",
        ring=ACT,
        body=AcquireLease,
        answers={201: AcquiredLease},
        errors=[Conflict, OutsideFence],
        service_checks_key=True,
        replayed=still_running,
        summary="Take a resource, or take it over when its lease ran out",
    )
    def post(self, request: HttpRequest) -> HttpResponse:
        given = parse_body(request, AcquireLease)
        grant = services.acquire(
            caller=self.caller,
            resource_type=given.resource_type,
            resource_id=given.resource_id,
            ttl_seconds=given.ttl_seconds,
            holder=given.holder,
            purpose=given.purpose,
            payload=given.payload,
            max_lifetime_seconds=given.max_lifetime_seconds,
            reacquire=given.reacquire,
        )
        body = grant_view(grant)
        body["took_over_expired"] = grant.took_over_expired
        body["previous"] = grant.previous
        return data(body, 201, {"Location": f"/v1/leases/{body['lease_id']}"})


class Lease(Operation):
    @operation(
        "lease_show",
        answers={200: ShownLease},
        errors=[NotFound],
        summary="One lease; an ended one says how it ended",
    )
    def get(self, request: HttpRequest, lease_id: str) -> HttpResponse:
        parse_query(request, Body)
        meant = _meant(self.caller, lease_id)
        row = queries.lease(caller=self.caller, lease_id=meant)
        if row is not None:
            return data(lease_view(self.caller, row, clock.now()))
        ending = queries.ending(organization=self.caller.organization, lease_id=meant)
        return data(ended_view(self.caller, public_lease_id(meant), ending))

    @operation(
        "lease_release",
        ring=ACT,
        query=Release,
        answers={200: ReleasedLease},
        errors=[NotFound, StaleToken],
        service_checks_key=True,
        remembers=False,
        summary="End one's own lease; give a task back unfinished",
    )
    def delete(self, request: HttpRequest, lease_id: str) -> HttpResponse:
        given = parse_query(request, Release)
        if (task_id := task_queries.parsed_task_id(lease_id)) is not None:
            if given.fencing_token is None:
                raise ValidationError("A task id needs the claim's fencing_token.", fencing_token="is required")
            token = given.fencing_token
            return data(released_view(tasks.give_back(caller=self.caller, task_id=task_id, fencing_token=token)))
        ended = services.release(
            caller=self.caller, lease_id=named(self.caller, lease_id), fencing_token=given.fencing_token
        )
        return data(released_view(ended))


class HeartbeatLease(Operation):
    @operation(
        "lease_heartbeat",
        ring=ACT,
        body=Heartbeat,
        answers={200: HeldLease},
        errors=[NotFound, StaleToken, LeaseLost],
        service_checks_key=True,
        remembers=False,
        summary="A sign of life: the lease lasts another ttl from now",
    )
    def post(self, request: HttpRequest, lease_id: str) -> HttpResponse:
        given = parse_body(request, Heartbeat)
        if (task_id := task_queries.parsed_task_id(lease_id)) is not None:
            beaten = tasks.heartbeat(
                caller=self.caller,
                task_id=task_id,
                fencing_token=given.fencing_token,
                ttl_seconds=given.ttl_seconds,
            )
            return data(grant_view(beaten))
        grant = services.heartbeat(
            caller=self.caller,
            lease_id=named(self.caller, lease_id),
            fencing_token=given.fencing_token,
            ttl_seconds=given.ttl_seconds,
        )
        return data(grant_view(grant))


class HeartbeatLeases(Operation):
    @operation(
        "lease_heartbeats",
        ring=ACT,
        body=Heartbeats,
        answers={200: BeatAnswers},
        service_checks_key=True,
        remembers=False,
        summary="One sign of life for up to 200 leases, each with its own answer",
    )
    def post(self, request: HttpRequest) -> HttpResponse:
        given = parse_body(request, Heartbeats)
        named = _meant_by_beats(self.caller, given.leases)
        pairs = [(lease_id, beat.fencing_token) for lease_id, beat in zip(named, given.leases, strict=True) if lease_id]
        answers = iter(services.heartbeats(caller=self.caller, pairs=pairs))
        return data(
            {
                "leases": [
                    beat_view(beat.lease_id, next(answers) if lease_id else NotFound())
                    for lease_id, beat in zip(named, given.leases, strict=True)
                ]
            }
        )


class ForceReleaseLease(Operation):
    @operation(
        "lease_force_release",
        ring=OPERATE,
        body=ForceRelease,
        answers={200: ReleasedLease},
        errors=[NotFound, StaleToken],
        summary="End anybody's lease, recorded with the reason",
    )
    def post(self, request: HttpRequest, lease_id: str) -> HttpResponse:
        given = parse_body(request, ForceRelease)
        ended = services.force_release(
            actor=services.Actor.of(self.caller),
            lease_id=_meant(self.caller, lease_id),
            fencing_token=given.fencing_token,
            reason=given.reason,
        )
        return data(released_view(ended))


class LeaseStatus(Operation):
    @operation(
        "lease_status",
        query=ResourceName,
        answers={200: LeaseView},
        summary="Whether a resource is free, held, or unknown (its lease ran out and nobody has reaped it)",
    )
    def get(self, request: HttpRequest) -> HttpResponse:
        given = parse_query(request, ResourceName)
        row = queries.resource(caller=self.caller, resource_type=given.resource_type, resource_id=given.resource_id)
        row = row or Resource(resource_type=given.resource_type, resource_id=given.resource_id)
        return data(lease_view(self.caller, row, clock.now()))


class ReapedLeases(Operation):
    @operation(
        "lease_reaped",
        ring=OBSERVE,
        query=Page,
        answers={200: ReapedPage},
        summary="What the reaper reclaimed, newest first",
    )
    def get(self, request: HttpRequest) -> HttpResponse:
        rows = queries.reaped(organization=self.caller.organization)
        found, following = paging.page(rows, parse_query(request, Page), newest_first=True)
        return data({"leases": [reaped_event_view(event) for event in found], "next": following})


class ReapLease(Operation):
    @operation(
        "lease_reap",
        ring=ACT,
        body=ResourceName,
        answers={200: ReapedLease},
        errors=[NotFound, Conflict],
        summary="End a lease that ran out; a live one is refused",
    )
    def post(self, request: HttpRequest) -> HttpResponse:
        given = parse_body(request, ResourceName)
        row, at = services.reap(
            actor=services.Actor.of(self.caller),
            resource_type=given.resource_type,
            resource_id=given.resource_id,
        )
        return data(reaped_view(self.caller, row, at))


class ReconcileLeases(Operation):
    @operation(
        "lease_reconcile",
        ring=ACT,
        body=Body,
        answers={200: Reconciled},
        summary="A start-up sweep: reaps the dead leases inside the key's fence, reports the others",
    )
    def post(self, request: HttpRequest) -> HttpResponse:
        parse_body(request, Body)
        report = services.reconcile(caller=self.caller)
        return data(
            {
                "held": [lease_view(self.caller, row, report.at) for row in report.held],
                "reaped": [reaped_view(self.caller, row, report.at) for row in report.reaped],
                "foreign": [lease_view(self.caller, row, report.at) for row in report.foreign],
                "truncated": report.truncated,
            }
        )


class FenceCheck(Operation):
    @operation(
        "fence_check",
        body=CheckFence,
        answers={200: FenceAnswer},
        remembers=False,
        summary="Whether a fencing token is the current one, for anything that wants to refuse a stale writer",
    )
    def post(self, request: HttpRequest) -> HttpResponse:
        given = parse_body(request, CheckFence)
        row = queries.resource(caller=self.caller, resource_type=given.resource_type, resource_id=given.resource_id)
        live = row is not None and row.expires_at is not None and row.expires_at > clock.now()
        highest = row.last_token if row else 0
        return data({"current": live and highest == given.fencing_token, "highest_token": highest})


def named(caller: Caller, lease_id: str) -> uuid.UUID:
    """Raises NotFound, and Unauthenticated first: for an id that is none the hot path asks nobody."""
    try:
        return queries.parse_lease_id(lease_id)
    except NotFound:
        check_key(caller)
        raise


def grant_view(grant: Grant) -> dict[str, Any]:
    return {
        "lease_id": public_lease_id(grant.lease_id),
        "fencing_token": grant.fencing_token,
        "expires_at": clock.iso(grant.expires_at),
        "expires_in_ms": clock.milliseconds_between(grant.at, grant.expires_at),
    }


def released_view(ended: services.Ended) -> dict[str, Any]:
    return {
        "lease_id": public_lease_id(ended.lease_id),
        "released_at": clock.iso(ended.at),
        "was_expired": ended.was_expired,
    }


def beat_view(lease_id: str, answer: Grant | DomainError) -> dict[str, Any]:
    if isinstance(answer, DomainError):
        return {"lease_id": lease_id, "ok": False, "error": error_body(answer)}
    return {"ok": True, **grant_view(answer)}


def lease_view(caller: Caller, row: Resource, at: datetime) -> dict[str, Any]:
    """A resource and its lease, as far as the caller may see it."""
    mine = row.principal_id == caller.principal and row.lease_id is not None
    shown = row.lease_id is not None and (mine or caller.observes)
    remaining = None if row.expires_at is None else clock.milliseconds_between(at, row.expires_at)
    return {
        "resource_type": row.resource_type,
        "resource_id": row.resource_id,
        "state": "free" if remaining is None else "held" if remaining > 0 else "unknown",
        "expires_at": _iso(row.expires_at),
        "expires_in_ms": None if remaining is None else max(0, remaining),
        "expired_for_ms": -remaining if remaining is not None and remaining <= 0 else None,
        "mine": mine,
        "lease_id": public_lease_id(row.lease_id) if shown and row.lease_id else None,
        "principal": row.principal.handle if shown and row.principal else None,
        "holder": row.holder if shown else None,
        "purpose": row.purpose if shown else None,
        "payload": row.payload if shown else None,
        "ttl_seconds": row.ttl_ms // 1000 if shown and row.ttl_ms is not None else None,
        "acquired_at": _iso(row.acquired_at) if shown else None,
        "heartbeat_at": _iso(row.heartbeat_at) if shown else None,
        "lifetime_ends_at": _iso(row.lifetime_ends_at) if shown else None,
        "fencing_token": row.last_token if mine or (shown and caller.operates) else None,
    }


def ended_view(caller: Caller, lease_id: str, ending: queries.Ending | None) -> dict[str, Any]:
    """Raises NotFound for a lease that never was or that the caller may not see."""
    if ending is None or not (caller.observes or ending.principal == caller.principal):
        raise NotFound
    return {
        "resource_type": ending.resource_type,
        "resource_id": ending.resource_id,
        "state": "ended",
        "lease_id": lease_id,
        "principal": ending.handle,
        "holder": ending.holder,
        "ended_by": ending.ended_by,
        "ended_at": clock.iso(ending.ended_at),
    }


def reaped_view(caller: Caller, row: Resource, at: datetime) -> dict[str, Any]:
    """A lease as it was when it was reaped; whose it was only to those who might have seen it."""
    assert row.lease_id is not None
    shown = caller.observes or row.principal_id == caller.principal
    return {
        "resource_type": row.resource_type,
        "resource_id": row.resource_id,
        "lease_id": public_lease_id(row.lease_id),
        "fencing_token": row.last_token if shown else None,
        "principal": row.principal.handle if shown and row.principal else None,
        "holder": row.holder if shown else None,
        "acquired_at": _iso(row.acquired_at),
        "heartbeat_at": _iso(row.heartbeat_at),
        "expired_at": _iso(row.expires_at),
        "reaped_at": clock.iso(at),
        "task_id": row.resource_id if row.resource_type == TASK else None,
    }


def reaped_event_view(event: Event) -> dict[str, Any]:
    assert event.lease_id is not None
    return {
        "resource_type": event.resource_type,
        "resource_id": event.resource_id,
        "lease_id": public_lease_id(event.lease_id),
        "fencing_token": event.fencing_token,
        "principal": None if event.principal is None else event.principal.handle,
        "holder": event.holder,
        "acquired_at": event.data["acquired_at"],
        "heartbeat_at": event.data["heartbeat_at"],
        "expired_at": event.data["expired_at"],
        "reaped_at": clock.iso(event.at),
        "task_id": event.resource_id if event.resource_type == TASK else None,
    }


def _meant(caller: Caller, text: str) -> uuid.UUID:
    """The lease of a lease id; of a task id the lease on the task, or the last one. Raises NotFound."""
    task_id = task_queries.parsed_task_id(text)
    if task_id is None:
        return queries.parse_lease_id(text)
    found = task_queries.last_lease(organization=caller.organization, task_id=task_id)
    if found is None:
        raise NotFound
    return found


def _meant_by_beats(caller: Caller, beats: list[Beat]) -> list[uuid.UUID | None]:
    """The lease that each beat means; a task id with a token means that claim, or else the task's present one."""
    claims = task_queries.claims(organization=caller.organization, task_ids=[beat.lease_id for beat in beats])
    mine = task_queries.acquisitions(
        organization=caller.organization,
        principal=caller.principal,
        pairs=[(beat.lease_id, beat.fencing_token) for beat in beats],
    )
    return [
        mine.get((beat.lease_id, beat.fencing_token)) or claims.get(beat.lease_id) or _known_lease_id(beat.lease_id)
        for beat in beats
    ]


def _known_lease_id(text: str) -> Any:
    try:
        return queries.parse_lease_id(text)
    except NotFound:
        return None


def _iso(at: datetime | None) -> str | None:
    return None if at is None else clock.iso(at)
