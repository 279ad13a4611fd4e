from datetime import datetime

from leasehub.db import clock
from leasehub.errors import DomainError


class Conflict(DomainError):
    """The resource is taken.

    Tells an outsider until when, never by whom.
    """

    code = "CONFLICT"
    status = 409
    members = ("expires_at", "retry_after_ms", "held_by_self")

    @classmethod
    def until(cls, expires_at: datetime, *, at: datetime, held_by_self: bool = False) -> "Conflict":
        return cls(
            f"The resource is taken until {clock.iso(expires_at)} unless its holder renews.",
            expires_at=clock.iso(expires_at),
            retry_after_ms=max(0, clock.milliseconds_between(at, expires_at)),
            held_by_self=held_by_self,
        )


class StaleToken(DomainError):
    """This fencing token is not the current one: stop working on the resource."""

    code = "STALE_TOKEN"
    status = 409


class LeaseLost(DomainError):
    """The lease has ended: stop working on the resource."""

    code = "LEASE_LOST"
    status = 410
    members = ("ended_by", "ended_at")

    def __init__(self, *, ended_by: str, ended_at: datetime) -> None:
        super().__init__(
            f"The lease has ended ({ended_by}, {clock.iso(ended_at)}): stop working on the resource.",
            ended_by=ended_by,
            ended_at=clock.iso(ended_at),
        )
