"""The verbs of the handoff.

Kept here (numbers of docs/architecture.md): a handoff is resolved once, by its addressee, and the offered leases
move in the same transaction (14); one event per transition (8); an outsider learns nothing (15).
"""

import hashlib
import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction

from handoffs import credentials, queries
from handoffs.errors import NotTheAddressee, NotTheGiver
from handoffs.models import MAX_HOPS, Handoff, OfferedLease
from leasehub.db import clock
from leasehub.db.locks import lock_rows
from leasehub.db.rows import insert
from leasehub.errors import NotFound, ValidationError
from leasehub.events.journal import record
from leasehub.identity.models import Principal
from leases import services as leases
from leases.models import public_lease_id
from leases.services import Actor, Transferred

# Small, because a transaction keeps every other writer of SQLite waiting.
EXPIRE_BATCH = 50
# An agent that is handed a lease beats at once; a person has the working day.
PERSON_TTL_SECONDS = 8 * 3600
LONGEST_WAIT = timedelta(days=366)

Status = Handoff.Status
Outcome = OfferedLease.Outcome


@dataclass(frozen=True, slots=True)
class Accepted:
    handoff: Handoff
    moved: list[Transferred]
    lost: list[OfferedLease]
    #: Database time at which the leases began.
    at: datetime


@transaction.atomic
def send(
    *,
    actor: Actor,
    to_principal: str,
    subject_id: str,
    context_id: str = "",
    checkpoint_id: str | None = None,
    message: str = "",
    next_action: str = "",
    content: dict[str, Any] | None = None,
    lease_ids: Sequence[str] = (),
    accept_by: datetime | None = None,
    parent_id: str | None = None,
) -> Handoff:
    """Offer work to another principal, with the leases that go with it. The giver keeps them until it is accepted.

    Raises UnknownAddressee, ValidationError (text that looks like a credential, accept_by in the past, too many
    hops), NotFound for a lease, checkpoint or parent that is not the giver's to pass on.
    """
    assert actor.principal is not None
    content = content or {}
    credentials.refuse(
        subject_id=subject_id, context_id=context_id, message=message, next_action=next_action, **content
    )
    party = {"organization": actor.organization, "principal": actor.principal}
    addressee = queries.addressee(organization=actor.organization, handle=to_principal)
    parent = None if parent_id is None else queries.handoff(**party, handoff_id=parent_id)
    if parent is not None and parent.hop >= MAX_HOPS:
        raise ValidationError(
            f"Work is handed on at most {MAX_HOPS} times.", parent_id=f"was handed on {MAX_HOPS} times"
        )
    checkpoint = (
        None
        if checkpoint_id is None
        else queries.nameable_checkpoint(**party, checkpoint_id=checkpoint_id, subject_id=subject_id)
    )
    offered = queries.offerable(**party, lease_ids=lease_ids) if lease_ids else []
    at = clock.now()
    if accept_by is not None and not at < accept_by <= at + LONGEST_WAIT:
        raise ValidationError("accept_by must be in the future, within a year.", accept_by="must be in the future")
    handoff = Handoff(
        organization_id=actor.organization,
        giver_id=actor.principal,
        addressee=addressee,
        subject_id=subject_id,
        context_id=context_id,
        checkpoint=checkpoint,
        checkpoint_version=None if checkpoint is None else checkpoint.version,
        message=message,
        next_action=next_action,
        content=content,
        state_hash=hash_of_state(content),
        parent=parent,
        hop=0 if parent is None else parent.hop + 1,
        accept_by=accept_by,
        created_at=at,
    )
    insert(handoff)
    OfferedLease.objects.bulk_create(
        [
            OfferedLease(
                handoff=handoff, lease_id=row.lease_id, resource_type=row.resource_type, resource_id=row.resource_id
            )
            for row in offered
            if row.lease_id is not None
        ]
    )
    _record(
        "handoff.created",
        handoff,
        at=at,
        actor=actor,
        data={
            "context_id": context_id or None,
            "checkpoint_id": None if checkpoint is None else checkpoint.checkpoint_id,
            "parent_id": None if parent is None else parent.handoff_id,
            "accept_by": None if accept_by is None else clock.iso(accept_by),
            "lease_ids": _public(row.lease_id for row in offered),
        },
    )
    return handoff


@transaction.atomic
def accept(
    *,
    actor: Actor,
    handoff_id: uuid.UUID,
    holder: str,
    ttl_seconds: int | None = None,
    observed_commit: str = "",
    reason: str = "",
) -> Accepted:
    """Take the work over, and its leases with it: new ids, larger tokens, the full ttl from now.

    What was offered and has ended or run out meanwhile is lost, and is told. Raises NotTheAddressee, NotFound when
    it is resolved already or past accept_by, Conflict while an offered slot is being prepared.
    """
    if ttl_seconds is not None:
        leases.check_ttl(ttl_seconds)
    credentials.refuse(reason=reason)
    handoff = _locked(actor, handoff_id)
    _require_addressee(handoff, actor)
    at = _while_pending(handoff)
    offered = {lease.lease_id: lease for lease in handoff.leases.all()}
    moved, _ = leases.transfer(
        actor=actor,
        giver=handoff.giver_id,
        lease_ids=list(offered),
        principal=handoff.addressee_id,
        holder=holder,
        ttl_seconds=_ttl_of(handoff.addressee) if ttl_seconds is None else ttl_seconds,
        data={"handoff_id": handoff.handoff_id},
    )
    lost = _note_outcomes(offered, moved)
    handoff.holder = holder
    handoff.observed_commit = observed_commit
    _resolve(handoff, Status.ACCEPTED, at=at, reason=reason)
    _record(
        "handoff.accepted",
        handoff,
        at=at,
        actor=actor,
        data={
            "state_drift": handoff.state_drifted,
            "holder": holder,
            "moved": _public(transferred.grant.lease_id for transferred in moved),
            "lost": _public(lease.lease_id for lease in lost),
        },
    )
    return Accepted(handoff, moved, lost, moved[0].grant.at if moved else at)


@transaction.atomic
def reject(*, actor: Actor, handoff_id: uuid.UUID, reason: str) -> Handoff:
    """Send the work back, with the reason; its leases stay the giver's.

    Raises ValidationError without a reason, NotTheAddressee, NotFound when it is resolved already or past accept_by.
    """
    if not reason.strip():
        raise ValidationError("Rejecting wants a reason.", reason="is required to reject")
    credentials.refuse(reason=reason)
    handoff = _locked(actor, handoff_id)
    _require_addressee(handoff, actor)
    at = _while_pending(handoff)
    _give_back(handoff, Status.REJECTED, at=at, reason=reason)
    _record("handoff.rejected", handoff, at=at, actor=actor)
    return handoff


@transaction.atomic
def withdraw(*, actor: Actor, handoff_id: uuid.UUID, reason: str = "", as_operator: bool = False) -> Handoff:
    """Take an offer back: its giver, or an operator.

    Raises NotTheGiver, NotFound when it is resolved already or past accept_by.
    """
    credentials.refuse(reason=reason)
    handoff = _locked(actor, handoff_id)
    if not as_operator and handoff.giver_id != actor.principal:
        raise NotTheGiver
    at = _while_pending(handoff)
    _give_back(handoff, Status.WITHDRAWN, at=at, reason=reason)
    _record("handoff.withdrawn", handoff, at=at, actor=actor)
    return handoff


@transaction.atomic
def complete(*, actor: Actor, handoff_id: uuid.UUID, result: Any = None) -> Handoff:
    """The acceptor is done. Raises NotTheAddressee, NotFound when it is not accepted, or completed already."""
    credentials.refuse(result=result)
    handoff = _locked(actor, handoff_id)
    _require_addressee(handoff, actor)
    if handoff.status != Status.ACCEPTED:
        raise NotFound
    handoff.status = Status.COMPLETED
    handoff.completed_at = clock.now()
    handoff.result = result
    handoff.save(update_fields=["status", "completed_at", "result"])
    _record("handoff.completed", handoff, at=handoff.completed_at, actor=actor)
    return handoff


def expire_due(*, batches: int = 20) -> int:
    """The scan: what is past accept_by goes back to its giver. How many. Harmless when run twice or never."""
    total = 0
    for _ in range(batches):
        late = queries.due(limit=EXPIRE_BATCH)
        total += _expire(late) if late else 0
        if len(late) < EXPIRE_BATCH:
            break
    return total


def _expire(late: list[int]) -> int:
    with transaction.atomic():
        # Whoever holds a row decides it.
        pending = Handoff.objects.filter(pk__in=late, status=Status.PENDING).select_related("addressee")
        rows = list(lock_rows(pending, skip_locked=True))
        at = clock.now()
        for handoff in rows:
            _give_back(handoff, Status.EXPIRED, at=at)
            _record("handoff.expired", handoff, at=at, actor=None)
    return len(rows)


def hash_of_state(content: dict[str, Any]) -> str:
    """SHA-256 of the canonical JSON of state and artifacts; empty when it carries neither."""
    stated = {name: content[name] for name in ("state", "artifacts") if content.get(name)}
    return hash_of(stated) if stated else ""


def hash_of(value: Any) -> str:
    """SHA-256 of a value's JSON with sorted keys and no spaces."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _locked(actor: Actor, handoff_id: uuid.UUID) -> Handoff:
    named = Handoff.objects.filter(organization_id=actor.organization, public_id=handoff_id)
    handoff = lock_rows(named.select_related("giver", "addressee")).first()
    if handoff is None:
        raise NotFound
    return handoff


def _require_addressee(handoff: Handoff, actor: Actor) -> None:
    if handoff.addressee_id != actor.principal:
        raise NotTheAddressee


def _while_pending(handoff: Handoff) -> datetime:
    """The time of the decision, read after the lock. Raises NotFound when the handoff is not pending any more then."""
    at = clock.now()
    if handoff.status_at(at) != Status.PENDING:
        raise NotFound
    return at


def _resolve(handoff: Handoff, status: Handoff.Status, *, at: datetime, reason: str = "") -> None:
    handoff.status = status
    handoff.resolved_at = at
    handoff.reason = reason
    handoff.save(update_fields=["status", "resolved_at", "reason", "holder", "observed_commit"])


def _give_back(handoff: Handoff, status: Handoff.Status, *, at: datetime, reason: str = "") -> None:
    _resolve(handoff, status, at=at, reason=reason)
    handoff.leases.filter(outcome=Outcome.OFFERED).update(outcome=Outcome.KEPT)


def _ttl_of(addressee: Principal) -> int | None:
    """The ttl of leases that move to a principal; None: each its own."""
    if addressee.kind != Principal.Kind.HUMAN:
        return None
    return max(settings.LEASEHUB_MIN_TTL_SECONDS, min(PERSON_TTL_SECONDS, settings.LEASEHUB_MAX_TTL_SECONDS))


def _note_outcomes(offered: dict[uuid.UUID, OfferedLease], moved: list[Transferred]) -> list[OfferedLease]:
    """Writes what became of each lease; those that were lost."""
    for transferred in moved:
        assert transferred.before.lease_id is not None
        lease = offered[transferred.before.lease_id]
        lease.outcome = Outcome.MOVED
        lease.moved_to = transferred.grant.lease_id
        lease.fencing_token = transferred.grant.fencing_token
    lost = [lease for lease in offered.values() if lease.outcome == Outcome.OFFERED]
    for lease in lost:
        lease.outcome = Outcome.LOST
    OfferedLease.objects.bulk_update(offered.values(), ["outcome", "moved_to", "fencing_token"])
    return lost


def _public(lease_ids: Iterable[uuid.UUID | None]) -> list[str] | None:
    """As the API writes them; None when there is none."""
    return [public_lease_id(lease_id) for lease_id in lease_ids if lease_id is not None] or None


def _record(
    type: str, handoff: Handoff, *, at: datetime, actor: Actor | None, data: dict[str, Any] | None = None
) -> None:
    """What the organization may know of it: who and what about, never what it carries."""
    record(
        type,
        at=at,
        organization=handoff.organization_id,
        actor=None if actor is None else actor.principal,
        key=None if actor is None else actor.key,
        principal=handoff.giver_id,
        addressee=handoff.addressee_id,
        data={
            "handoff_id": handoff.handoff_id,
            "to_principal": handoff.addressee.handle,
            "subject_id": handoff.subject_id,
            "status": handoff.status,
            **(data or {}),
        },
    )
