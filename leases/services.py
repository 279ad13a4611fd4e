"""The verbs of the lease. ``leases.engines`` carries the hot ones out; here they get their meaning.

Invariants kept here and in the engines (numbers of docs/architecture.md):
exclusion (1), tokens only grow (2), no revival (3), no theft (4), no ghost (5), the acquisition is named (6), the
database owns the clock (7), one event per transition (8).
"""

import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet

from leasehub.db import clock
from leasehub.db.locks import lock_rows
from leasehub.errors import DomainError, NotFound, Unauthenticated, ValidationError
from leasehub.events.models import Event
from leasehub.identity.authentication import Caller, check_key
from leases import owners, queries
from leases.endings import end, epitaph
from leases.engines import Outcome, engine, portable
from leases.errors import Conflict, LeaseLost, StaleToken
from leases.granting import Grant, start
from leases.models import Resource
from leases.queues import engines as tasks
from leases.queues.models import TASK

# Leases of these types are made by claim and promote alone.
RESERVED_TYPES = ("task", "slot")
REAP_OWNED_BATCH = 2000
PRUNE_BATCH = 1000
RECONCILE_LIMIT = 5000
# A free row is pruned when its last token is this far behind the clock: the next one's floor is above it.
PRUNE_AFTER = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Ended:
    lease_id: uuid.UUID
    at: datetime
    was_expired: bool


@dataclass(frozen=True, slots=True)
class Actor:
    """Who does an operator's act: a principal, by an API key or in the admin."""

    organization: int
    principal: int | None
    key: int | None = None

    @classmethod
    def of(cls, caller: Caller) -> "Actor":
        return cls(caller.organization, caller.principal, caller.key)


@dataclass(frozen=True, slots=True)
class Reconciled:
    held: list[Resource]
    reaped: list[Resource]
    foreign: list[Resource]
    #: There are more leases than one sweep looks at.
    truncated: bool
    at: datetime


def acquire(
    *,
    caller: Caller,
    resource_type: str,
    resource_id: str,
    ttl_seconds: int,
    holder: str | None = None,
    purpose: str | None = None,
    payload: Any = None,
    max_lifetime_seconds: int | None = None,
    reacquire: bool = True,
) -> Grant:
    """Take the resource, or take it over when its lease ran out.

    Raises Conflict while another holder's lease lives (or, with reacquire=False, one's own); OutsideFence,
    ValidationError, Unauthenticated.
    """
    if resource_type in RESERVED_TYPES:
        raise ValidationError(
            f"Leases of type {resource_type} are made by claims and grants alone.",
            resource_type=f"{resource_type} is reserved",
        )
    check_ttl(ttl_seconds)
    outcome: Outcome = engine().acquire(
        key=caller.key,
        resource_type=resource_type,
        resource_id=resource_id,
        holder=caller.fenced(holder),
        ttl_ms=ttl_seconds * 1000,
        reacquire=reacquire,
        purpose=purpose,
        payload=None if payload is None else json.dumps(payload),
        lifetime_ms=None if max_lifetime_seconds is None else max_lifetime_seconds * 1000,
    )
    match outcome.outcome:
        case "acquired" | "reacquired" | "taken_over":
            return outcome.grant()
        case "held" | "held_by_self":
            assert outcome.expires_at and outcome.at
            raise Conflict.until(outcome.expires_at, at=outcome.at, held_by_self=outcome.outcome == "held_by_self")
    raise Unauthenticated


def heartbeat(*, caller: Caller, lease_id: uuid.UUID, fencing_token: int, ttl_seconds: int | None = None) -> Grant:
    """Move the expiry to now + ttl.

    Raises LeaseLost once the lease has ended or run out, StaleToken, NotFound for what is not one's own.
    """
    if ttl_seconds is not None:
        check_ttl(ttl_seconds)
    check_fence(caller, [lease_id])
    outcome: Outcome = engine().heartbeat(
        key=caller.key,
        lease_id=lease_id,
        fencing_token=fencing_token,
        ttl_ms=None if ttl_seconds is None else ttl_seconds * 1000,
    )
    return _beaten(caller, outcome)


def heartbeats(*, caller: Caller, pairs: Sequence[tuple[uuid.UUID, int]]) -> list[Grant | DomainError]:
    """One beat for each (lease id, fencing token), each with its own answer, in the order given.

    Raises Unauthenticated alone.
    """
    outside = outside_fence(caller, [lease_id for lease_id, _ in pairs])
    allowed = [pair for pair in dict.fromkeys(pairs) if pair[0] not in outside]
    if not allowed:
        # Nothing is left for the engine, which is what checks the key.
        check_key(caller)
        return [NotFound() for _ in pairs]
    answers: dict[tuple[uuid.UUID, int], Grant | DomainError] = {}
    for outcome, pair in _paired(engine().heartbeats(key=caller.key, pairs=allowed), allowed):
        try:
            answers[pair] = _beaten(caller, outcome)
        except Unauthenticated:
            raise
        except DomainError as error:
            answers[pair] = error
    return [answers.get(pair, NotFound()) for pair in pairs]


def release(*, caller: Caller, lease_id: uuid.UUID, fencing_token: int | None = None) -> Ended:
    """End one's own lease. One that ran out and that nobody reaped or took over is only tidied away.

    Raises NotFound when it has ended already or is not one's own, StaleToken when a token is given that is not
    the lease's.
    """
    check_fence(caller, [lease_id])
    outcome: Outcome = engine().release(key=caller.key, lease_id=lease_id, fencing_token=fencing_token)
    if outcome.outcome == "owned":
        outcome = portable.release(key=caller.key, lease_id=lease_id, fencing_token=fencing_token)
    match outcome.outcome:
        case "released" | "released_expired":
            assert outcome.at is not None
            return Ended(lease_id, outcome.at, outcome.outcome == "released_expired")
        case "stale":
            raise StaleToken
        case "not_found":
            raise NotFound
    raise Unauthenticated


@transaction.atomic
def force_release(*, actor: Actor, lease_id: uuid.UUID, fencing_token: int, reason: str) -> Ended:
    """End anybody's lease, by an operator, recorded with the reason.

    Raises NotFound when it has ended already, StaleToken when another acquisition is meant.
    """
    row = _locked(Resource.objects.filter(organization_id=actor.organization, lease_id=lease_id))
    if row is None:
        raise NotFound
    at = clock.now()
    if row.last_token != fencing_token:
        raise StaleToken
    assert row.expires_at is not None and row.acquired_at is not None
    was_expired = row.expires_at <= at
    data = {"reason": reason, "was_expired": was_expired, "acquired_at": clock.iso(row.acquired_at)}
    end(row, "lease.force_released", at=at, actor=actor.principal, key=actor.key, data=data)
    return Ended(lease_id, at, was_expired)


@transaction.atomic
def reap(*, actor: Actor, resource_type: str, resource_id: str) -> tuple[Resource, datetime]:
    """End a lease that ran out. The row as it was, and when.

    Raises Conflict while the lease lives, NotFound when the resource is free.
    """
    row = _locked(
        Resource.objects.filter(
            organization_id=actor.organization,
            resource_type=resource_type,
            resource_id=resource_id,
            lease_id__isnull=False,
        )
    )
    if row is None:
        raise NotFound("The resource is free.")
    at = clock.now()
    assert row.expires_at is not None
    if row.expires_at > at:
        raise Conflict.until(row.expires_at, at=at)
    end(row, "lease.reaped", at=at, actor=actor.principal, key=actor.key, data=epitaph(row))
    return row, at


@transaction.atomic
def reconcile(*, caller: Caller) -> Reconciled:
    """A start-up sweep: ends the dead leases whose holder is inside the caller's fence.

    What is outside the fence is foreign and never touched. A key without RING-1 sweeps its principal's own alone.
    """
    seen = list(queries.visible_leases(caller=caller)[: RECONCILE_LIMIT + 1])
    at = clock.now()
    inside, foreign = _fenced(caller, seen[:RECONCILE_LIMIT])
    dead = [row.pk for row in inside if row.expires_at is not None and row.expires_at <= at]
    found = queries.visible_leases(caller=caller).filter(pk__in=dead)
    owners.lock(found)
    # Asked again under the lock: the dead lease may have made way for another one, even for a foreign one.
    locked, taken_by_foreign = _fenced(caller, lock_rows(found))
    at = clock.now()
    over = [row for row in locked if row.expires_at is not None and row.expires_at <= at]
    reaped = [
        row
        for row in over
        if end(row, "lease.reaped", at=at, actor=caller.principal, key=caller.key, data=epitaph(row))
    ]
    return Reconciled(
        held=[row for row in inside if row.pk not in dead] + [row for row in locked if row not in over],
        reaped=reaped,
        foreign=foreign + taken_by_foreign,
        truncated=len(seen) > RECONCILE_LIMIT,
        at=at,
    )


def _fenced(caller: Caller, rows: Iterable[Resource]) -> tuple[list[Resource], list[Resource]]:
    """The rows whose holder is inside the caller's fence, and the others."""
    inside: list[Resource] = []
    foreign: list[Resource] = []
    for row in rows:
        (inside if caller.may_hold_as(row.holder or "") else foreign).append(row)
    return inside, foreign


def reap_due(*, batches: int = 50) -> int:
    """The reaper: ends leases that ran out, in batches of their own transactions. How many.

    Harmless when run twice or never: rows that another process has locked are skipped, and an expired lease
    blocks nobody.
    """
    total = 0
    # Claims first: their tasks wait for it, and what is left of what is due is the other scan's.
    for scanning in (tasks.engine(), engine()):
        for _ in range(batches):
            looked_at, reaped = scanning.reap_due(limit=scanning.REAP_BATCH)
            total += reaped
            if looked_at < scanning.REAP_BATCH:
                break
    owned = [resource_type for resource_type in owners.types() if resource_type != TASK]
    return total + sum(reap_owned(row) for row in queries.due(resource_types=owned)[:REAP_OWNED_BATCH])


@transaction.atomic
def reap_owned(seen: Resource) -> bool:
    """One lease of an owned resource, in a transaction of its own: its owner promotes the next in it."""
    row = _locked(Resource.objects.filter(pk=seen.pk, lease_id=seen.lease_id))
    if row is None or row.expires_at is None:
        return False
    at = clock.now()
    if row.expires_at > at:
        Resource.objects.filter(pk=row.pk).update(check_at=row.expires_at)
        return False
    end(row, "lease.reaped", at=at, data=epitaph(row))
    return True


def _locked(lease: QuerySet[Resource]) -> Resource | None:
    """The lease's row, locked after its owner."""
    owners.lock(lease)
    return lock_rows(lease).first()


def grant(
    *,
    organization: int,
    resource_type: str,
    resource_id: str,
    principal: int,
    holder: str,
    ttl_seconds: int,
    event: str,
    actor: Actor,
    payload: dict[str, Any],
    data: dict[str, Any],
) -> Grant:
    """For the owner of a type: a lease on one of its resources, in its transaction, with its own rows locked.

    Raises Conflict while a lease lives. One that ran out unreaped must be ended first (``reap``).
    """
    outcome: Outcome = engine().grant(
        organization=organization,
        resource_type=resource_type,
        resource_id=resource_id,
        principal=principal,
        holder=holder,
        ttl_ms=ttl_seconds * 1000,
        payload=json.dumps(payload),
        event=event,
        actor=actor.principal,
        key=actor.key,
        data=json.dumps(data),
    )
    if outcome.outcome == "held":
        assert outcome.expires_at and outcome.at
        raise Conflict.until(outcome.expires_at, at=outcome.at)
    return outcome.grant()


@transaction.atomic
def keep_alive(*, lease_id: uuid.UUID) -> Grant:
    """For the owner of a type: its own sign of life for a lease, while it works on the resource for the holder.

    Raises LeaseLost once it has ended or run out.
    """
    row = lock_rows(Resource.objects.filter(lease_id=lease_id)).first()
    at = clock.now()
    if row is None or row.expires_at is None or row.ttl_ms is None:
        raise LeaseLost(ended_by="released", ended_at=at)
    if row.expires_at <= at:
        raise LeaseLost(ended_by="expired", ended_at=row.expires_at)
    expires_at = at + timedelta(milliseconds=row.ttl_ms)
    if row.lifetime_ends_at is not None:
        expires_at = min(expires_at, row.lifetime_ends_at)
    Resource.objects.filter(pk=row.pk).update(heartbeat_at=at, expires_at=expires_at)
    return Grant(lease_id, row.last_token, expires_at, at)


@dataclass(frozen=True, slots=True)
class Transferred:
    """A lease that went to another holder: the row as it was, and the new acquisition."""

    before: Resource
    grant: Grant


def transfer(
    *,
    actor: Actor,
    giver: int,
    lease_ids: Sequence[uuid.UUID],
    principal: int,
    holder: str,
    ttl_seconds: int | None = None,
    data: dict[str, Any] | None = None,
) -> tuple[list[Transferred], list[uuid.UUID]]:
    """Moves live leases of one principal to another, in the caller's transaction: what moved and what was lost.

    The giver's tokens die, the receiver's are larger, and the clock starts again with the full ttl (the lease's own
    without ``ttl_seconds``); a lifetime stays. Lost is what ended, ran out, or is the giver's no more.
    """
    offered = Resource.objects.filter(organization_id=actor.organization, lease_id__in=lease_ids, principal_id=giver)
    owners.lock(offered)
    rows = list(lock_rows(offered))
    at = clock.now()
    moved = [
        _moved(row, actor=actor, at=at, principal=principal, holder=holder, ttl_seconds=ttl_seconds, data=data)
        for row in rows
        if row.expires_at is not None and row.expires_at > at
    ]
    alive = {transferred.before.lease_id for transferred in moved}
    return moved, [lease_id for lease_id in lease_ids if lease_id not in alive]


def _moved(
    row: Resource,
    *,
    actor: Actor,
    at: datetime,
    principal: int,
    holder: str,
    ttl_seconds: int | None,
    data: dict[str, Any] | None,
) -> Transferred:
    assert row.ttl_ms is not None
    grant = start(
        row,
        "lease.transferred",
        at=at,
        principal=principal,
        holder=holder,
        ttl_ms=row.ttl_ms if ttl_seconds is None else ttl_seconds * 1000,
        purpose=row.purpose,
        payload=row.payload,
        lifetime_ends_at=row.lifetime_ends_at,
        actor=actor.principal,
        key=actor.key,
        data=data,
    )
    owner = owners.of(row)
    if owner is not None:
        owner.moved(row, Resource.objects.get(pk=row.pk))
    return Transferred(row, grant)


def prune(*, batches: int = 100) -> int:
    """Deletes free rows whose last token is a day behind the clock, in batches. How many.

    Stops while the clock is behind the newest event: tokens of pruned rows are kept growing by the clock alone.
    """
    total = 0
    for _ in range(batches):
        at = clock.now()
        newest = Event.objects.order_by("-pk").values_list("at", flat=True).first()
        if newest is not None and newest > at + timedelta(seconds=1):
            break
        pruned = _prune_before(clock.milliseconds(at - PRUNE_AFTER))
        total += pruned
        if pruned < PRUNE_BATCH:
            break
    return total


@transaction.atomic
def _prune_before(token: int) -> int:
    old = Resource.objects.filter(lease_id=None, last_token__lt=token)
    rows = list(lock_rows(old, skip_locked=True).values_list("pk", flat=True)[:PRUNE_BATCH])
    pruned, _ = Resource.objects.filter(pk__in=rows).delete()
    return pruned


def check_ttl(ttl_seconds: int) -> None:
    """Raises ValidationError."""
    least, most = settings.LEASEHUB_MIN_TTL_SECONDS, settings.LEASEHUB_MAX_TTL_SECONDS
    if not least <= ttl_seconds <= most:
        raise ValidationError(
            f"ttl_seconds must be from {least} to {most}.", ttl_seconds=f"must be from {least} to {most}"
        )


def check_fence(caller: Caller, lease_ids: Iterable[uuid.UUID]) -> None:
    """Raises NotFound for a lease whose holder is outside the key's fence, Unauthenticated."""
    if outside_fence(caller, lease_ids):
        # Before the engine, which is what checks the key otherwise.
        check_key(caller)
        raise NotFound


def outside_fence(caller: Caller, lease_ids: Iterable[uuid.UUID]) -> set[uuid.UUID]:
    """The leases whose holder this key may not act as; asked only for a key with a fence of its own.

    Safe before the lock: the holder of an acquisition never changes.
    """
    if caller.has_default_fence:
        return set()
    holders = Resource.objects.filter(lease_id__in=list(lease_ids)).values_list("lease_id", "holder")
    return {lease_id for lease_id, holder in holders if lease_id and not caller.may_hold_as(holder or "")}


def _beaten(caller: Caller, outcome: Outcome) -> Grant:
    match outcome.outcome:
        case "refreshed":
            return outcome.grant()
        case "stale":
            raise StaleToken
        case "expired" | "lifetime_over":
            assert outcome.expires_at is not None
            ended_by = "expired" if outcome.outcome == "expired" else "max_lifetime"
            raise LeaseLost(ended_by=ended_by, ended_at=outcome.expires_at)
        case "not_found":
            assert outcome.lease_id is not None
            ending = queries.ending(organization=caller.organization, lease_id=outcome.lease_id)
            if ending is None or ending.principal != caller.principal or not caller.may_hold_as(ending.holder):
                raise NotFound
            raise LeaseLost(ended_by=ending.ended_by, ended_at=ending.ended_at)
    raise Unauthenticated


def _paired(
    outcomes: list[Outcome], pairs: Sequence[tuple[uuid.UUID, int]]
) -> Iterable[tuple[Outcome, tuple[uuid.UUID, int]]]:
    """Each outcome with the pair it answers: the engine locks in its own order.

    One that names its token goes to that pair; of the others a lease's are all alike.
    """
    waiting: dict[uuid.UUID, list[tuple[uuid.UUID, int]]] = {}
    for pair in pairs:
        waiting.setdefault(pair[0], []).append(pair)
    for outcome in sorted(outcomes, key=lambda outcome: outcome.fencing_token is None):
        assert outcome.lease_id is not None
        candidates = waiting[outcome.lease_id]
        exact = next((pair for pair in candidates if pair[1] == outcome.fencing_token), candidates[0])
        candidates.remove(exact)
        yield outcome, exact
