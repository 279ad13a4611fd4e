"""The hot verbs in Python, for SQLite: each in one IMMEDIATE transaction behind the writer lock.

The same steps as leases/sql/lease_functions.sql. It runs on PostgreSQL too, which is how the tests hold the two
against each other.
"""

import json
import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F, Q

from leasehub.db import clock
from leasehub.db.locks import lock_rows
from leasehub.identity.models import ApiKey
from leases import owners
from leases.endings import end, reap_all
from leases.engines import Outcome
from leases.granting import lock_or_make, start
from leases.models import Resource

# On SQLite everybody waits for a transaction that writes: this one stays well under 50 ms.
REAP_BATCH = 100


def acquire(
    *,
    key: int,
    resource_type: str,
    resource_id: str,
    holder: str,
    ttl_ms: int,
    reacquire: bool,
    purpose: str | None,
    payload: str | None,
    lifetime_ms: int | None,
) -> Outcome:
    """acquired, reacquired, taken_over; held, held_by_self (refused); unauthenticated."""
    owner = owner_of(key)
    if owner is None:
        return Outcome("unauthenticated")
    principal, organization = owner
    named = Resource.objects.filter(organization_id=organization, resource_type=resource_type, resource_id=resource_id)
    if (seen := named.first()) is not None:
        refusal = _refusal(seen, principal, holder, reacquire, clock.now())
        if refusal is not None:
            return refusal
    with transaction.atomic():
        row = lock_or_make(named, organization=organization, resource_type=resource_type, resource_id=resource_id)
        at = clock.now()
        if (refusal := _refusal(row, principal, holder, reacquire, at)) is not None:
            return refusal
        outcome = "acquired"
        if row.expires_at is not None:
            outcome = "taken_over" if row.expires_at <= at else "reacquired"
        grant = start(
            row,
            "lease.taken_over" if outcome == "taken_over" else "lease.acquired",
            at=at,
            principal=principal,
            holder=holder,
            ttl_ms=ttl_ms,
            purpose=purpose,
            payload=json.loads(payload) if payload is not None else None,
            lifetime_ends_at=at + timedelta(milliseconds=lifetime_ms) if lifetime_ms is not None else None,
            actor=principal,
            key=key,
        )
    return Outcome(outcome, grant.lease_id, grant.fencing_token, grant.expires_at, at, grant.previous)


def grant(
    *,
    organization: int,
    resource_type: str,
    resource_id: str,
    principal: int,
    holder: str,
    ttl_ms: int,
    payload: str | None,
    event: str,
    actor: int | None,
    key: int | None,
    data: str,
) -> Outcome:
    """granted; held (until expires_at, also by a lease that ran out unreaped)."""
    named = Resource.objects.filter(organization_id=organization, resource_type=resource_type, resource_id=resource_id)
    row = lock_or_make(named, organization=organization, resource_type=resource_type, resource_id=resource_id)
    at = clock.now()
    if row.expires_at is not None:
        return Outcome("held", expires_at=row.expires_at, at=at)
    granted = start(
        row,
        event,
        at=at,
        principal=principal,
        holder=holder,
        ttl_ms=ttl_ms,
        purpose=None,
        payload=None if payload is None else json.loads(payload),
        lifetime_ends_at=None,
        actor=actor,
        key=key,
        data=json.loads(data),
    )
    return Outcome("granted", granted.lease_id, granted.fencing_token, granted.expires_at, at)


def heartbeat(*, key: int, lease_id: uuid.UUID, fencing_token: int, ttl_ms: int | None) -> Outcome:
    """refreshed; stale (another token), expired, lifetime_over, not_found, unauthenticated."""
    owner = owner_of(key)
    if owner is None:
        return Outcome("unauthenticated", lease_id)
    return _beat(owner, lease_id, fencing_token, ttl_ms)


def _beat(owner: tuple[int, int], lease_id: uuid.UUID, fencing_token: int, ttl_ms: int | None) -> Outcome:
    with transaction.atomic():
        row = _lock_lease(owner, lease_id)
        if row is None:
            return Outcome("not_found", lease_id)
        at = clock.now()
        if row.last_token != fencing_token:
            return Outcome("stale", lease_id, None, row.expires_at, at)
        assert row.expires_at is not None and row.ttl_ms is not None
        if row.expires_at <= at:
            over = row.lifetime_ends_at is not None and row.lifetime_ends_at <= row.expires_at
            return Outcome("lifetime_over" if over else "expired", lease_id, fencing_token, row.expires_at, at)
        ttl_ms = ttl_ms if ttl_ms is not None else row.ttl_ms
        expires_at = _earlier(at + timedelta(milliseconds=ttl_ms), row.lifetime_ends_at)
        changed: dict[str, Any] = {"heartbeat_at": at, "expires_at": expires_at, "ttl_ms": ttl_ms}
        if row.check_at is not None and expires_at < row.check_at:
            changed["check_at"] = expires_at
        Resource.objects.filter(pk=row.pk).update(**changed)
    return Outcome("refreshed", lease_id, fencing_token, expires_at, at)


def heartbeats(*, key: int, pairs: Sequence[tuple[uuid.UUID, int]]) -> list[Outcome]:
    """One beat for each pair, in one transaction, the rows locked in the order of their ids."""
    owner = owner_of(key)
    if owner is None:
        return [Outcome("unauthenticated", lease_id) for lease_id, _ in pairs]
    with transaction.atomic():
        ids = dict(
            Resource.objects.filter(lease_id__in=[lease_id for lease_id, _ in pairs]).values_list("lease_id", "pk")
        )
        return [
            _beat(owner, lease_id, token, None)
            for lease_id, token in sorted(pairs, key=lambda pair: ids.get(pair[0], 0))
        ]


def release(*, key: int, lease_id: uuid.UUID, fencing_token: int | None) -> Outcome:
    """released, released_expired (only tidying); stale (another token), not_found, unauthenticated."""
    owner = owner_of(key)
    if owner is None:
        return Outcome("unauthenticated", lease_id)
    with transaction.atomic():
        row = _lock_lease(owner, lease_id)
        if row is None:
            return Outcome("not_found", lease_id)
        at = clock.now()
        if fencing_token is not None and row.last_token != fencing_token:
            return Outcome("stale", lease_id, None, None, at)
        assert row.expires_at is not None and row.acquired_at is not None
        was_expired = row.expires_at <= at
        end(
            row,
            "lease.released",
            at=at,
            actor=owner[0],
            key=key,
            data={"was_expired": was_expired, "acquired_at": clock.iso(row.acquired_at)},
        )
    return Outcome("released_expired" if was_expired else "released", lease_id, row.last_token, row.expires_at, at)


def reap_due(*, limit: int) -> tuple[int, int]:
    """How many rows were due, and how many of them were dead and are ended now; not those of owned resources."""
    with transaction.atomic():
        due = list(
            Resource.objects.filter(lease_id__isnull=False, check_at__lte=clock.now())
            .exclude(resource_type__in=owners.types())
            .order_by("check_at")
            .values_list("pk", flat=True)[:limit]
        )
        rows = list(lock_rows(Resource.objects.filter(pk__in=due), skip_locked=True))
        at = clock.now()
        dead = [row for row in rows if row.expires_at is not None and row.expires_at <= at]
        reap_all(dead, at=at)
        Resource.objects.filter(pk__in=[row.pk for row in rows], expires_at__gt=at).update(check_at=F("expires_at"))
    return len(rows), len(dead)


def owner_of(key: int) -> tuple[int, int] | None:
    """The principal and organization that a key speaks for, while it works."""
    return (
        ApiKey.objects.filter(pk=key, revoked_at=None, principal__retired_at=None)
        .filter(Q(expires_at=None) | Q(expires_at__gt=clock.now()))
        .values_list("principal_id", "principal__organization_id")
        .first()
    )


def _refusal(row: Resource, principal: int, holder: str, reacquire: bool, at: datetime) -> Outcome | None:
    if row.expires_at is None or row.expires_at <= at:
        return None
    of_self = row.principal_id == principal and row.holder == holder
    if of_self and reacquire:
        return None
    return Outcome("held_by_self" if of_self else "held", None, None, row.expires_at, at)


def _lock_lease(owner: tuple[int, int], lease_id: uuid.UUID) -> Resource | None:
    principal, organization = owner
    lease = Resource.objects.filter(lease_id=lease_id, organization_id=organization, principal_id=principal)
    if owners.types():
        # Looked up unlocked, so that the owner's rows are locked before the resource's.
        owners.lock(lease)
    return lock_rows(lease).first()


def _earlier(at: datetime, limit: datetime | None) -> datetime:
    return at if limit is None else min(at, limit)
