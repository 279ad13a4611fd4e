"""/v1/handoffs and /v1/checkpoints."""

import re
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal

from django.http import HttpRequest, HttpResponse
from pydantic import BaseModel, BeforeValidator, Field, StringConstraints

from handoffs import checkpoints, queries, services
from handoffs.errors import NotTheAddressee, NotTheGiver, UnknownAddressee, VersionConflict
from handoffs.models import Checkpoint, CheckpointVersion, Handoff, OfferedLease
from leasehub.api import paging
from leasehub.api.parsing import (
    MAX_INTEGER,
    MAX_PAYLOAD_BYTES,
    Body,
    Holder,
    Identifier,
    Instant,
    Message,
    Page,
    Payload,
    Token,
    bounded_json,
    parse_body,
    parse_query,
    validated,
)
from leasehub.api.rendering import data
from leasehub.api.views import Operation, operation
from leasehub.db import clock
from leasehub.errors import NotFound, ValidationError
from leasehub.identity.authentication import Caller
from leasehub.identity.errors import MissingRing, OutsideFence
from leasehub.identity.models import Principal
from leasehub.identity.rings import ACT, OBSERVE
from leases import services as leases
from leases.api import Seconds
from leases.errors import Conflict, StaleToken
from leases.models import Resource, public_lease_id
from leases.replays import with_time_left

MAX_NOTES = 50
MAX_ARTIFACTS = 50
MAX_LEASES = 100

Status = Literal["pending", "accepted", "rejected", "withdrawn", "expired", "completed"]
Short = Annotated[Message, StringConstraints(max_length=2000)]
Commit = Annotated[str, StringConstraints(pattern=r"^[0-9A-Fa-f]{4,64}$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9A-Fa-f]{64}$")]
Notes = Annotated[list[Short], Field(max_length=MAX_NOTES)]
Version = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
StateTtl = Annotated[int, Field(ge=checkpoints.MIN_TTL_SECONDS, le=checkpoints.MAX_TTL_SECONDS)]


class Explained(Body):
    what: Short
    why: Short | None = None


def _explained(value: Any) -> Any:
    """What may be given as a plain sentence, too."""
    return {"what": value} if isinstance(value, str) else value


Decisions = Annotated[list[Annotated[Explained, BeforeValidator(_explained)]], Field(max_length=MAX_NOTES)]


class Artifact(Body):
    kind: Annotated[Identifier, StringConstraints(max_length=40)]
    #: Inert: shown as text, never fetched.
    uri: Short
    sha256: Sha256 | None = None
    note: Short | None = None


class WorkState(Body):
    repo: Short | None = None
    branch: Identifier | None = None
    commit: Commit | None = None
    dirty: bool | None = None


class SendHandoff(Body):
    EXAMPLE: ClassVar = {
        "to_principal": "bob",
        "subject_id": "release-41",
        "message": "Six of eight hosts run release 41.",
        "next_action": "Drain web-07 and web-08, then go on.",
        "lease_ids": ["lease_8f14e45fceea467a9575b2e4a0c1d3e7"],
    }

    to_principal: Identifier
    subject_id: Identifier
    context_id: Identifier | None = None
    checkpoint_id: Identifier | None = None
    message: Message | None = None
    next_action: Message | None = None
    done: Notes | None = None
    decisions: Decisions | None = None
    failed_approaches: Decisions | None = None
    blockers: Notes | None = None
    artifacts: Annotated[list[Artifact], Field(max_length=MAX_ARTIFACTS)] | None = None
    state: WorkState | None = None
    #: Lease ids, or the ids of claimed tasks.
    lease_ids: Annotated[list[Identifier], Field(max_length=MAX_LEASES)] = []
    accept_by: Instant | None = None
    parent_id: Identifier | None = None


CONTENT = ("done", "decisions", "failed_approaches", "blockers", "artifacts", "state")


class SentHandoff(BaseModel):
    handoff_id: str
    status: Status
    state_hash: str | None


class OfferedLeaseView(BaseModel):
    lease_id: str
    resource_type: str
    resource_id: str
    #: offered: still the giver's, to move when accepted; lost: it ended meanwhile; kept: back with the giver.
    outcome: Literal["offered", "moved", "lost", "kept"]
    expires_at: str | None
    expires_in_ms: int | None
    #: The lease that it was before it moved.
    previous_lease_id: str | None
    #: Shown to the acceptor.
    fencing_token: int | None


class HandoffView(BaseModel):
    handoff_id: str
    status: Status
    from_principal: str
    to_principal: str
    subject_id: str
    context_id: str | None
    checkpoint_id: str | None
    checkpoint_version: int | None
    message: str | None
    next_action: str | None
    done: list[str]
    decisions: list[Explained]
    failed_approaches: list[Explained]
    blockers: list[str]
    artifacts: list[Artifact]
    state: WorkState | None
    state_hash: str | None
    state_drift: bool | None
    leases: list[OfferedLeaseView]
    parent_id: str | None
    hop: int
    accept_by: str | None
    accept_by_in_ms: int | None
    created_at: str
    resolved_at: str | None
    reason: str | None
    holder: str | None
    observed_commit: str | None
    completed_at: str | None
    result: Any


class HandoffPage(BaseModel):
    handoffs: list[HandoffView]
    next: str | None


class ListHandoffs(Page):
    box: Annotated[Literal["inbox", "sent"], Field(description="What is addressed to me, or what I gave")] = "inbox"
    status: Annotated[Status | None, Field(description="pending for the inbox, any for the sent box")] = None


class ResolveHandoffBody(Body):
    EXAMPLE: ClassVar = {"status": "accepted", "holder": "bob"}

    status: Literal["accepted", "rejected"]
    reason: Message | None = None
    holder: Holder | None = None
    ttl_seconds: Seconds | None = None
    observed_commit: Commit | None = None


class ResolvedHandoff(BaseModel):
    handoff_id: str
    status: Status
    resolved_at: str
    #: With their new ids and tokens.
    leases: list[OfferedLeaseView]
    lost: list[OfferedLeaseView]
    state_drift: bool | None


class WithdrawHandoffBody(Body):
    reason: Message | None = None


class CompleteHandoffBody(Body):
    EXAMPLE: ClassVar = {"result": {"hosts": 8}}

    result: Payload = None


class CompletedHandoff(BaseModel):
    handoff_id: str
    status: Status
    completed_at: str


class WithdrawnHandoff(BaseModel):
    handoff_id: str
    status: Status
    resolved_at: str


class ShowStatistics(Body):
    principal: Annotated[Identifier | None, Field(description="A handle; mine without it")] = None


class RejectReason(BaseModel):
    reason: str
    count: int


class StatisticsView(BaseModel):
    principal: str
    pending: int
    accepted: int
    rejected: int
    withdrawn: int
    expired: int
    completed: int
    mean_seconds_to_accept: float | None
    longest_seconds_to_accept: float | None
    #: Null for another principal: what was written to it is its own.
    reject_reasons: list[RejectReason] | None


class FenceBody(Body):
    resource_type: Identifier
    resource_id: Identifier
    fencing_token: Token


class SaveCheckpoint(Body):
    EXAMPLE: ClassVar = {"state": {"done": ["web-01", "web-02"]}, "expected_version": 3}

    state: Payload
    #: The version that is there now, 0 for none (as when left out), null for whichever.
    expected_version: Version | None = 0
    ttl_seconds: StateTtl | None = None
    run_id: Identifier | None = None
    fence: FenceBody | None = None


class PostCheckpoint(SaveCheckpoint):
    EXAMPLE: ClassVar = {
        "subject_id": "release-41",
        "kind": "progress",
        "state": {"done": ["web-01"]},
        "expected_version": None,
    }

    subject_id: Identifier
    kind: Identifier
    agent_id: Identifier | None = None


class CheckpointName(Body):
    subject_id: Identifier
    kind: Identifier


class ReadCheckpoint(Body):
    version: Annotated[
        Annotated[int, Field(ge=1, le=MAX_INTEGER)] | None,
        BeforeValidator(lambda value: int(value) if re.fullmatch(r"[0-9]{1,16}", str(value)) else value),
        Field(description="One of the last 10; the newest without it"),
    ] = None


class FindCheckpoint(ReadCheckpoint):
    subject_id: Identifier
    kind: Identifier
    agent_id: Identifier | None = None


class SavedCheckpoint(BaseModel):
    checkpoint_id: str
    version: int
    state_hash: str
    expires_at: str | None
    updated: bool


class CheckpointView(BaseModel):
    checkpoint_id: str
    subject_id: str
    kind: str
    version: int
    state: Any
    state_hash: str
    principal: str
    run_id: str | None
    resource_type: str | None
    resource_id: str | None
    ttl_seconds: int | None
    expires_at: str | None
    created_at: str
    updated_at: str
    #: Those that can still be read.
    versions: list[int]


def still_moved(caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
    """A remembered acceptance, with the time that is left of its leases now."""
    resolved = body["data"]
    return {"data": {**resolved, "leases": with_time_left(caller, resolved["leases"])}}


class Handoffs(Operation):
    @operation(
        "handoff_list",
        query=ListHandoffs,
        answers={200: HandoffPage},
        summary="My inbox, oldest first; box=sent: what I gave, newest first",
    )
    def get(self, request: HttpRequest) -> HttpResponse:
        given = parse_query(request, ListHandoffs)
        mine, at = self.caller.principal, clock.now()
        if given.box == "sent":
            rows = queries.sent(principal=mine, at=at, status=given.status)
        else:
            rows = queries.inbox(principal=mine, at=at, status=given.status or "pending")
        found, following = paging.page(queries.whole(rows), given, newest_first=given.box == "sent")
        return data({"handoffs": handoff_views(self.caller.principal, found), "next": following})

    @operation(
        "handoff_send",
        ring=ACT,
        body=SendHandoff,
        answers={201: SentHandoff},
        errors=[NotFound, UnknownAddressee],
        summary="Offer unfinished work, with its leases, to another principal",
    )
    def post(self, request: HttpRequest) -> HttpResponse:
        handoff = offer(self.caller, parse_body(request, SendHandoff))
        sent = {
            "handoff_id": handoff.handoff_id,
            "status": handoff.status,
            "state_hash": handoff.state_hash or None,
        }
        return data(sent, 201, {"Location": f"/v1/handoffs/{handoff.handoff_id}"})


class HandoffStatistics(Operation):
    @operation(
        "handoff_statistics",
        query=ShowStatistics,
        answers={200: StatisticsView},
        errors=[NotFound, MissingRing],
        summary="What became of the handoffs that were addressed to a principal",
    )
    def get(self, request: HttpRequest) -> HttpResponse:
        given = parse_query(request, ShowStatistics)
        handle = given.principal or self.caller.handle
        if handle != self.caller.handle:
            self.caller.require(OBSERVE)
        principal = Principal.objects.filter(organization_id=self.caller.organization, handle=handle).first()
        if principal is None:
            raise NotFound
        return data(statistics_view(self.caller, principal, queries.statistics(principal=principal.pk)))


class ShowHandoff(Operation):
    @operation(
        "handoff_show",
        answers={200: HandoffView},
        errors=[NotFound],
        summary="One handoff with everything it carries, for its two parties",
    )
    def get(self, request: HttpRequest, handoff_id: str) -> HttpResponse:
        parse_query(request, Body)
        found = queries.handoff(
            organization=self.caller.organization, principal=self.caller.principal, handoff_id=handoff_id
        )
        return data(handoff_views(self.caller.principal, [found])[0])


class ResolveHandoff(Operation):
    @operation(
        "handoff_resolve",
        ring=ACT,
        body=ResolveHandoffBody,
        answers={200: ResolvedHandoff},
        errors=[NotFound, NotTheAddressee, OutsideFence, Conflict],
        replayed=still_moved,
        summary="Accept, which moves the offered leases, or reject with a reason",
    )
    def post(self, request: HttpRequest, handoff_id: str) -> HttpResponse:
        given = parse_body(request, ResolveHandoffBody)
        actor = leases.Actor.of(self.caller)
        named = queries.known(caller=self.caller, handoff_id=handoff_id)
        if given.status == "rejected":
            rejected = services.reject(actor=actor, handoff_id=named, reason=given.reason or "")
            assert rejected.resolved_at is not None
            return data(resolved_view(self.caller.principal, rejected, rejected.resolved_at))
        accepted = services.accept(
            actor=actor,
            handoff_id=named,
            holder=self.caller.fenced(given.holder),
            ttl_seconds=given.ttl_seconds,
            observed_commit=given.observed_commit or "",
            reason=given.reason or "",
        )
        return data(resolved_view(self.caller.principal, accepted.handoff, accepted.at))


class WithdrawHandoff(Operation):
    @operation(
        "handoff_withdraw",
        ring=ACT,
        body=WithdrawHandoffBody,
        answers={200: WithdrawnHandoff},
        errors=[NotFound, NotTheGiver],
        summary="Take an offer back",
    )
    def post(self, request: HttpRequest, handoff_id: str) -> HttpResponse:
        given = parse_body(request, WithdrawHandoffBody)
        withdrawn = services.withdraw(
            actor=leases.Actor.of(self.caller),
            handoff_id=queries.known(caller=self.caller, handoff_id=handoff_id),
            reason=given.reason or "",
        )
        return data(
            {
                "handoff_id": withdrawn.handoff_id,
                "status": withdrawn.status,
                "resolved_at": _iso(withdrawn.resolved_at),
            }
        )


class CompleteHandoff(Operation):
    @operation(
        "handoff_complete",
        ring=ACT,
        body=CompleteHandoffBody,
        answers={200: CompletedHandoff},
        errors=[NotFound, NotTheAddressee],
        summary="Close an accepted handoff with its result",
    )
    def post(self, request: HttpRequest, handoff_id: str) -> HttpResponse:
        given = parse_body(request, CompleteHandoffBody)
        completed = services.complete(
            actor=leases.Actor.of(self.caller),
            handoff_id=queries.known(caller=self.caller, handoff_id=handoff_id),
            result=given.result,
        )
        return data(
            {
                "handoff_id": completed.handoff_id,
                "status": completed.status,
                "completed_at": _iso(completed.completed_at),
            }
        )


class Checkpoints(Operation):
    @operation(
        "checkpoint_find",
        query=FindCheckpoint,
        answers={200: CheckpointView},
        errors=[NotFound],
        summary="The checkpoint of a subject and a kind",
    )
    def get(self, request: HttpRequest) -> HttpResponse:
        given = parse_query(request, FindCheckpoint)
        _require_self(self.caller, given.agent_id)
        return _checkpoint_answer(self.caller, given.version, name=(given.subject_id, given.kind))

    @operation(
        "checkpoint_post",
        ring=ACT,
        body=PostCheckpoint,
        answers={200: SavedCheckpoint, 201: SavedCheckpoint},
        errors=[NotFound, VersionConflict, StaleToken],
        summary="Save the next version of a checkpoint that the body names",
    )
    def post(self, request: HttpRequest) -> HttpResponse:
        given = parse_body(request, PostCheckpoint)
        _require_self(self.caller, given.agent_id)
        return _save(self.caller, request, given, CheckpointName(subject_id=given.subject_id, kind=given.kind))


class CheckpointById(Operation):
    @operation(
        "checkpoint_show",
        query=ReadCheckpoint,
        answers={200: CheckpointView},
        errors=[NotFound],
        summary="A checkpoint by its id: one's own, one's resource's, or one that a handoff names",
    )
    def get(self, request: HttpRequest, checkpoint_id: str) -> HttpResponse:
        given = parse_query(request, ReadCheckpoint)
        return _checkpoint_answer(self.caller, given.version, checkpoint_id=checkpoint_id)


class CheckpointByName(Operation):
    @operation(
        "checkpoint_get",
        query=ReadCheckpoint,
        answers={200: CheckpointView},
        errors=[NotFound],
        summary="The checkpoint of a subject and a kind: of the resource that one holds, one's own, or handed on",
    )
    def get(self, request: HttpRequest, subject_id: str, kind: str) -> HttpResponse:
        given = parse_query(request, ReadCheckpoint)
        named = validated(CheckpointName, {"subject_id": subject_id, "kind": kind})
        return _checkpoint_answer(self.caller, given.version, name=(named.subject_id, named.kind))

    @operation(
        "checkpoint_save",
        ring=ACT,
        body=SaveCheckpoint,
        answers={200: SavedCheckpoint, 201: SavedCheckpoint},
        errors=[VersionConflict, StaleToken],
        summary="Save the next version, by compare-and-swap, optionally behind a fence",
    )
    def put(self, request: HttpRequest, subject_id: str, kind: str) -> HttpResponse:
        given = parse_body(request, SaveCheckpoint)
        named = validated(CheckpointName, {"subject_id": subject_id, "kind": kind})
        return _save(self.caller, request, given, named)


def _save(caller: Caller, request: HttpRequest, given: SaveCheckpoint, named: CheckpointName) -> HttpResponse:
    fence = None
    if given.fence is not None:
        fence = checkpoints.Fence(**given.fence.model_dump())
        _require_holder_in_fence(caller, fence)
    saved = checkpoints.save(
        actor=leases.Actor.of(caller),
        subject_id=named.subject_id,
        kind=named.kind,
        state=given.state,
        expected_version=_expected_version(given, request.META.get("HTTP_IF_MATCH")),
        ttl_seconds=given.ttl_seconds,
        run_id=given.run_id or "",
        fence=fence,
    )
    body = {
        "checkpoint_id": saved.checkpoint_id,
        "version": saved.version,
        "state_hash": saved.state_hash,
        "expires_at": _iso(saved.expires_at),
        "updated": saved.version > 1,
    }
    headers = {"ETag": f'"{saved.version}"'}
    if saved.version > 1:
        return data(body, 200, headers)
    return data(body, 201, headers | {"Location": f"/v1/checkpoints/{saved.checkpoint_id}"})


def _expected_version(given: SaveCheckpoint, if_match: str | None) -> int | None:
    """Raises ValidationError when the header is malformed or says another version than the body."""
    if if_match is None:
        return given.expected_version
    matched = re.fullmatch(r'"?([0-9]{1,16})"?', if_match.strip())
    if matched is None:
        raise ValidationError("If-Match must be a version.", if_match='must be a version, like "3"')
    version = int(matched[1])
    if "expected_version" in given.model_fields_set and given.expected_version != version:
        raise ValidationError("If-Match and expected_version differ.", expected_version="differs from If-Match")
    return version


def _checkpoint_answer(
    caller: Caller, version: int | None, *, name: tuple[str, str] | None = None, checkpoint_id: str | None = None
) -> HttpResponse:
    found = queries.checkpoint(
        organization=caller.organization, principal=caller.principal, name=name, checkpoint_id=checkpoint_id
    )
    row = queries.version(of=found, number=version)
    return data(checkpoint_view(found, row), 200, {"ETag": f'"{row.version}"'})


def _require_self(caller: Caller, agent_id: str | None) -> None:
    """Raises NotFound: other principals' checkpoints are theirs."""
    if agent_id is not None and agent_id != caller.handle:
        raise NotFound


def _require_holder_in_fence(caller: Caller, fence: checkpoints.Fence) -> None:
    """Raises StaleToken when the resource is held by a holder that this key may not act as."""
    if caller.has_default_fence:
        return
    holder = (
        Resource.objects.filter(
            organization_id=caller.organization, resource_type=fence.resource_type, resource_id=fence.resource_id
        )
        .values_list("holder", flat=True)
        .first()
    )
    if holder is not None and not caller.may_hold_as(holder):
        raise StaleToken


def offer(caller: Caller, given: SendHandoff) -> Handoff:
    """The handoff that somebody at one of the doors asks for, within the fence of the key. Raises as services.send."""
    content = given.model_dump(include=set(CONTENT), exclude_none=True)
    _bound(content)
    if given.lease_ids:
        check_fence(caller, given.lease_ids)
    return services.send(
        actor=leases.Actor.of(caller),
        to_principal=given.to_principal,
        subject_id=given.subject_id,
        context_id=given.context_id or "",
        checkpoint_id=given.checkpoint_id,
        message=given.message or "",
        next_action=given.next_action or "",
        content=content,
        lease_ids=given.lease_ids,
        accept_by=given.accept_by,
        parent_id=given.parent_id,
    )


def check_fence(caller: Caller, lease_ids: list[str]) -> None:
    """Raises NotFound for a lease whose holder is outside the key's fence."""
    if caller.has_default_fence:
        return
    rows = queries.offerable(organization=caller.organization, principal=caller.principal, lease_ids=lease_ids)
    leases.check_fence(caller, [row.lease_id for row in rows if row.lease_id is not None])


def _bound(content: Mapping[str, Any]) -> None:
    """Raises ValidationError when the parts together are larger than a payload may be."""
    try:
        bounded_json(dict(content))
    except ValueError as error:
        raise ValidationError(
            f"A handoff carries at most {MAX_PAYLOAD_BYTES} bytes: reference the rest as artifacts.",
            **{name: str(error) for name in content},
        ) from None


def handoff_views(viewer: int, handoffs: list[Handoff]) -> list[dict[str, Any]]:
    at = clock.now()
    live = queries.live_leases(lease for handoff in handoffs for lease in handoff.leases.all())
    return [handoff_view(viewer, handoff, at, live) for handoff in handoffs]


def handoff_view(viewer: int, handoff: Handoff, at: datetime, live: Mapping[uuid.UUID, Resource]) -> dict[str, Any]:
    content = handoff.content
    accept_by = handoff.accept_by
    return {
        "handoff_id": handoff.handoff_id,
        "status": handoff.status_at(at),
        "from_principal": handoff.giver.handle,
        "to_principal": handoff.addressee.handle,
        "subject_id": handoff.subject_id,
        "context_id": handoff.context_id or None,
        "checkpoint_id": None if handoff.checkpoint is None else handoff.checkpoint.checkpoint_id,
        "checkpoint_version": handoff.checkpoint_version,
        "message": handoff.message or None,
        "next_action": handoff.next_action or None,
        "done": content.get("done", []),
        "decisions": content.get("decisions", []),
        "failed_approaches": content.get("failed_approaches", []),
        "blockers": content.get("blockers", []),
        "artifacts": content.get("artifacts", []),
        "state": content.get("state"),
        "state_hash": handoff.state_hash or None,
        "state_drift": handoff.state_drifted,
        "leases": [lease_view(viewer, handoff, lease, at, live) for lease in handoff.leases.all()],
        "parent_id": None if handoff.parent is None else handoff.parent.handoff_id,
        "hop": handoff.hop,
        "accept_by": _iso(accept_by),
        "accept_by_in_ms": None if accept_by is None else max(0, clock.milliseconds_between(at, accept_by)),
        "created_at": clock.iso(handoff.created_at),
        "resolved_at": _iso(handoff.resolved_at),
        "reason": handoff.reason or None,
        "holder": handoff.holder or None,
        "observed_commit": handoff.observed_commit or None,
        "completed_at": _iso(handoff.completed_at),
        "result": handoff.result,
    }


def lease_views(viewer: int, handoff: Handoff, at: datetime) -> list[dict[str, Any]]:
    live = queries.live_leases(handoff.leases.all())
    return [lease_view(viewer, handoff, lease, at, live) for lease in handoff.leases.all()]


def lease_view(
    viewer: int, handoff: Handoff, lease: OfferedLease, at: datetime, live: Mapping[uuid.UUID, Resource]
) -> dict[str, Any]:
    row = live.get(lease.moved_to or lease.lease_id)
    alive = row is not None and row.expires_at is not None and row.expires_at > at
    outcome = str(lease.outcome)
    if outcome == "offered" and not (alive and row is not None and row.principal_id == handoff.giver_id):
        outcome = "lost"
    shown = alive and outcome in ("offered", "moved")
    expires_at = row.expires_at if row is not None and shown else None
    acceptor = viewer == handoff.addressee_id
    return {
        "lease_id": public_lease_id(lease.moved_to or lease.lease_id),
        "resource_type": lease.resource_type,
        "resource_id": lease.resource_id,
        "outcome": outcome,
        "expires_at": _iso(expires_at),
        "expires_in_ms": None if expires_at is None else clock.milliseconds_between(at, expires_at),
        "previous_lease_id": None if lease.moved_to is None else public_lease_id(lease.lease_id),
        "fencing_token": lease.fencing_token if acceptor else None,
    }


def resolved_view(viewer: int, handoff: Handoff, at: datetime) -> dict[str, Any]:
    views = lease_views(viewer, handoff, at)
    return {
        "handoff_id": handoff.handoff_id,
        "status": handoff.status,
        "resolved_at": _iso(handoff.resolved_at),
        "leases": [view for view in views if view["outcome"] == "moved"],
        "lost": [view for view in views if view["outcome"] == "lost"],
        "state_drift": handoff.state_drifted,
    }


def statistics_view(caller: Caller, principal: Principal, found: queries.Statistics) -> dict[str, Any]:
    own = principal.pk == caller.principal
    reasons = [{"reason": reason, "count": count} for reason, count in found.reject_reasons]
    return {
        "principal": principal.handle,
        **found.counts,
        "mean_seconds_to_accept": None if found.mean_to_accept is None else found.mean_to_accept.total_seconds(),
        "longest_seconds_to_accept": (
            None if found.longest_to_accept is None else found.longest_to_accept.total_seconds()
        ),
        "reject_reasons": reasons if own else None,
    }


def checkpoint_view(head: Checkpoint, row: CheckpointVersion) -> dict[str, Any]:
    return {
        "checkpoint_id": head.checkpoint_id,
        "subject_id": head.subject_id,
        "kind": head.kind,
        "version": row.version,
        "state": row.state,
        "state_hash": row.state_hash,
        "principal": head.principal.handle,
        "run_id": head.run_id or None,
        "resource_type": head.resource_type or None,
        "resource_id": head.resource_id or None,
        "ttl_seconds": head.ttl_seconds,
        "expires_at": _iso(head.expires_at),
        "created_at": clock.iso(head.created_at),
        "updated_at": clock.iso(row.created_at),
        "versions": list(head.versions.order_by("version").values_list("version", flat=True)),
    }


def _iso(at: datetime | None) -> str | None:
    return None if at is None else clock.iso(at)
