"""Reads of leases."""

import uuid
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q, QuerySet

from leasehub.db import clock
from leasehub.errors import NotFound
from leasehub.events.models import Event
from leasehub.identity.authentication import Caller
from leases.models import Resource

ENDED_BY = {
    "lease.released": "released",
    "lease.reaped": "reaped",
    "lease.force_released": "force_released",
    # A slot's, where the pool says why (pools.ownership).
    "pool.released": "released",
    "pool.grant_failed": "failed",
    "task.completed": "completed",
    "task.failed": "failed",
    "task.returned": "released",
    # Whichever way: the event says so.
    "task.dead": "",
}
# What the reaper writes; a task whose attempts are used up is dead.
REAPED = ["lease.reaped", "task.dead"]
# What a new acquisition says of the one it ended.
ENDED_BY_SUCCESSOR = {
    "lease.acquired": "reacquired",
    "lease.taken_over": "taken_over",
    "lease.transferred": "transferred",
}


@dataclass(frozen=True, slots=True)
class Ending:
    """How a lease ended, from the journal."""

    ended_by: str
    ended_at: datetime
    #: Whose it was.
    principal: int | None
    handle: str | None
    holder: str
    resource_type: str
    resource_id: str
    fencing_token: int | None
    #: Who ended it; None: nobody, it ran out.
    by: str | None
    #: Why, where an operator said so.
    reason: str | None
    #: The handoff that it went with.
    handoff_id: str | None


def leases(*, organization: int) -> QuerySet[Resource]:
    """The leases that are held or ran out unreaped, oldest resource first."""
    return (
        Resource.objects.filter(organization_id=organization, lease_id__isnull=False)
        .select_related("principal")
        .order_by("pk")
    )


def visible_leases(*, caller: Caller) -> QuerySet[Resource]:
    """RING-1 sees its organization's leases, other keys their principal's own."""
    found = leases(organization=caller.organization)
    return found if caller.observes else found.filter(principal=caller.principal)


def lease(*, caller: Caller, lease_id: uuid.UUID) -> Resource | None:
    return visible_leases(caller=caller).filter(lease_id=lease_id).first()


def resource(*, caller: Caller, resource_type: str, resource_id: str) -> Resource | None:
    return (
        Resource.objects.filter(
            organization_id=caller.organization, resource_type=resource_type, resource_id=resource_id
        )
        .select_related("principal")
        .first()
    )


def ending(*, organization: int, lease_id: uuid.UUID) -> Ending | None:
    """How the lease ended; None when it lives or never was."""
    events = Event.objects.filter(organization_id=organization).select_related("principal", "actor")
    end = events.filter(lease_id=lease_id, type__in=ENDED_BY).order_by("pk").last()
    if end is not None:
        lifetime_over = end.data.get("lifetime_over") is True
        ended_by = ENDED_BY[end.type] or str(end.data.get("ended_by"))
        return _ending(end, "max_lifetime" if lifetime_over else ended_by, end)
    successor = events.filter(previous_lease_id=lease_id, type__in=ENDED_BY_SUCCESSOR).order_by("pk").last()
    if successor is None:
        return None
    start = events.filter(lease_id=lease_id).order_by("pk").first()
    # Retention may have moved out the beginning, which says whose it was.
    return None if start is None else _ending(successor, ENDED_BY_SUCCESSOR[successor.type], start)


def _ending(end: Event, ended_by: str, of: Event) -> Ending:
    return Ending(
        ended_by=ended_by,
        ended_at=end.at,
        principal=of.principal_id,
        handle=None if of.principal is None else of.principal.handle,
        holder=of.holder,
        resource_type=of.resource_type,
        resource_id=of.resource_id,
        fencing_token=of.fencing_token,
        by=None if end.actor is None else end.actor.handle,
        reason=end.data.get("reason") if ended_by == "force_released" else None,
        handoff_id=end.data.get("handoff_id"),
    )


def due(*, resource_types: list[str]) -> QuerySet[Resource]:
    """Leases of these types that are to be looked at: they ran out, or were moved out meanwhile."""
    return Resource.objects.filter(
        lease_id__isnull=False, check_at__lte=clock.now(), resource_type__in=resource_types
    ).order_by("check_at")


def reaped(*, organization: int) -> QuerySet[Event]:
    """What the reaper reclaimed, newest first."""
    return (
        Event.objects.filter(organization_id=organization, type__in=REAPED)
        # A task also dies by failing.
        .filter(Q(type="lease.reaped") | Q(data__ended_by="reaped"))
        .select_related("principal")
        .order_by("-pk")
    )


def filtered(
    found: QuerySet[Resource],
    *,
    resource_type: str | None,
    resource_id: str | None,
    holder: str | None,
    state: str | None,
) -> QuerySet[Resource]:
    given = {"resource_type": resource_type, "resource_id": resource_id, "holder": holder}
    found = found.filter(**{name: value for name, value in given.items() if value is not None})
    if state is None:
        return found
    at = clock.now()
    # A free resource has no lease, so a list of leases has none.
    wanted = {"held": Q(expires_at__gt=at), "unknown": Q(expires_at__lte=at), "free": Q(pk=None)}
    return found.filter(wanted[state])


def parse_lease_id(text: str) -> uuid.UUID:
    """Raises NotFound: a malformed id names nothing."""
    digits = text.removeprefix("lease_")
    if len(text) != 38 or len(digits) != 32:
        raise NotFound
    try:
        return uuid.UUID(hex=digits)
    except ValueError:
        raise NotFound from None
