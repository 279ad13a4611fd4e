"""What a remembered answer says of leases, brought up to date: the rest of it is told again as it was."""

from collections.abc import Iterable
from typing import Any

from leasehub.db import clock
from leasehub.identity.authentication import Caller
from leases.models import Resource
from leases.queries import parse_lease_id


def with_time_left(caller: Caller, grants: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The grants with the time that is left of each lease now: none once it has ended.

    A heartbeat may have moved the expiry since, to either side.
    """
    named = [(grant, parse_lease_id(grant["lease_id"])) for grant in grants]
    rows = Resource.objects.filter(
        organization_id=caller.organization, lease_id__in=[lease_id for _, lease_id in named]
    )
    ends = {row.lease_id: row.expires_at for row in rows}
    at = clock.now()
    brought = []
    for grant, lease_id in named:
        expires_at = ends.get(lease_id)
        if expires_at is None:
            brought.append({**grant, "expires_in_ms": 0})
        else:
            left = max(0, clock.milliseconds_between(at, expires_at))
            brought.append({**grant, "expires_at": clock.iso(expires_at), "expires_in_ms": left})
    return brought
