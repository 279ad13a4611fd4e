"""How a lease starts: a new id, a larger token, one event."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet

from leasehub.db import clock
from leasehub.db.locks import lock_rows
from leasehub.events.journal import record
from leases.endings import previous_lease
from leases.models import Resource


@dataclass(frozen=True, slots=True)
class Grant:
    lease_id: uuid.UUID
    fencing_token: int
    expires_at: datetime
    #: Database time at which this was true.
    at: datetime
    took_over_expired: bool = False
    #: The lease that ended for it, when it was taken over, reacquired or transferred.
    previous: dict[str, Any] | None = None


def start(
    row: Resource,
    event: str,
    *,
    at: datetime,
    principal: int,
    holder: str,
    ttl_ms: int,
    purpose: str | None,
    payload: Any,
    lifetime_ends_at: datetime | None,
    actor: int | None,
    key: int | None,
    data: dict[str, Any] | None = None,
) -> Grant:
    """Starts a lease on a row that the caller has locked, over whatever lease is on it.

    ``at`` was read after the lock. The token is above every earlier one: the clock's floor keeps it so when rows
    were pruned or a backup was restored.
    """
    lease_id = uuid.uuid4()
    token = max(row.last_token + 1, clock.milliseconds(at))
    expires_at = at + timedelta(milliseconds=ttl_ms)
    if lifetime_ends_at is not None:
        expires_at = min(expires_at, lifetime_ends_at)
    previous = previous_lease(row) if row.lease_id is not None else None
    Resource.objects.filter(pk=row.pk).update(
        last_token=token,
        lease_id=lease_id,
        principal=principal,
        holder=holder,
        purpose=purpose,
        payload=payload,
        acquired_at=at,
        heartbeat_at=at,
        expires_at=expires_at,
        check_at=expires_at,
        ttl_ms=ttl_ms,
        lifetime_ends_at=lifetime_ends_at,
    )
    record(
        event,
        at=at,
        organization=row.organization_id,
        actor=actor,
        key=key,
        resource_type=row.resource_type,
        resource_id=row.resource_id,
        lease_id=lease_id,
        previous_lease_id=row.lease_id,
        fencing_token=token,
        principal=principal,
        holder=holder,
        data={
            "ttl_seconds": ttl_ms // 1000,
            "expires_at": clock.iso(expires_at),
            "purpose": purpose,
            "lifetime_ends_at": clock.iso(lifetime_ends_at) if lifetime_ends_at else None,
            "previous": previous,
            **(data or {}),
        },
    )
    return Grant(lease_id, token, expires_at, at, previous=previous)


def lock_or_make(named: QuerySet[Resource], *, organization: int, resource_type: str, resource_id: str) -> Resource:
    """The resource's row, locked; made free and with token 0 when there is none."""
    while (row := lock_rows(named).first()) is None:
        # Again from the top, because a prune may take the new row before it is locked.
        Resource.objects.bulk_create(
            [Resource(organization_id=organization, resource_type=resource_type, resource_id=resource_id)],
            ignore_conflicts=True,
        )
    return row
