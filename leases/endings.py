"""How a lease ends: the row becomes free, one event says so, and the resource's owner is told."""

from datetime import datetime
from typing import Any

from leasehub.db import clock
from leasehub.events import journal
from leasehub.events.models import Event
from leases import owners
from leases.models import Resource, public_lease_id
from leases.queues import endings as tasks

FREE: dict[str, Any] = {
    "lease_id": None,
    "principal": None,
    "holder": None,
    "purpose": None,
    "payload": None,
    "acquired_at": None,
    "heartbeat_at": None,
    "expires_at": None,
    "check_at": None,
    "ttl_ms": None,
    "lifetime_ends_at": None,
}


def end(
    row: Resource,
    event: str,
    *,
    at: datetime,
    data: dict[str, Any],
    actor: int | None = None,
    key: int | None = None,
) -> bool:
    """Ends the lease on a row that the caller has locked, after the row's owner; whether it was still there.

    Of several leases that are ended one after the other an earlier end may have ended a later one: of a request for
    several slots all go with the first.
    """
    if not Resource.objects.filter(pk=row.pk, lease_id=row.lease_id).update(**FREE):
        return False
    if tasks.is_claim(row):
        event, data = tasks.give_up(row, event, at=at, data=data)
    owner = owners.of(row)
    type = event if owner is None else owner.event_of(event)
    journal.record_all([ending(row, type, at=at, data=data, actor=actor, key=key)])
    if owner is not None:
        owner.ended(row, event, data)
    return True


def reap_all(rows: list[Resource], *, at: datetime) -> None:
    """Ends the dead leases on rows without an owner that the caller has locked, in two statements."""
    Resource.objects.filter(pk__in=[row.pk for row in rows]).update(**FREE)
    journal.record_all([ending(row, "lease.reaped", at=at, data=epitaph(row)) for row in rows])


def ending(
    row: Resource, type: str, *, at: datetime, data: dict[str, Any], actor: int | None = None, key: int | None = None
) -> Event:
    """The event of the ending of a row's lease."""
    return journal.event(
        type,
        at=at,
        organization=row.organization_id,
        actor=actor,
        key=key,
        resource_type=row.resource_type,
        resource_id=row.resource_id,
        lease_id=row.lease_id,
        fencing_token=row.last_token,
        principal=row.principal_id,
        holder=row.holder or "",
        data=data,
    )


def epitaph(row: Resource) -> dict[str, Any]:
    """What an event says of a lease that ran out."""
    assert row.acquired_at and row.heartbeat_at and row.expires_at
    return {
        "acquired_at": clock.iso(row.acquired_at),
        "heartbeat_at": clock.iso(row.heartbeat_at),
        "expired_at": clock.iso(row.expires_at),
        "lifetime_over": row.lifetime_ends_at is not None and row.lifetime_ends_at <= row.expires_at,
    }


def previous_lease(row: Resource) -> dict[str, Any]:
    """What a new acquisition says of the lease that it ended."""
    assert row.lease_id and row.acquired_at and row.heartbeat_at and row.expires_at
    return {
        "lease_id": public_lease_id(row.lease_id),
        "holder": row.holder,
        "acquired_at": clock.iso(row.acquired_at),
        "heartbeat_at": clock.iso(row.heartbeat_at),
        "expires_at": clock.iso(row.expires_at),
    }
