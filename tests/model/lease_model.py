"""What the lease is, in memory and in one thread: the machine holds the services against it."""

import uuid
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from leasehub.db import clock


@dataclass
class Held:
    """A lease that has not been ended; it may have run out."""

    lease_id: uuid.UUID
    token: int
    principal: int
    holder: str
    acquired_at: datetime
    heartbeat_at: datetime
    expires_at: datetime
    check_at: datetime
    ttl_ms: int
    lifetime_ends_at: datetime | None

    def lives(self, at: datetime) -> bool:
        return at < self.expires_at

    @property
    def lifetime_over(self) -> bool:
        return self.lifetime_ends_at is not None and self.lifetime_ends_at <= self.expires_at


@dataclass
class Granted:
    """A lease that was once granted, and how it ended."""

    resource: str
    lease_id: uuid.UUID
    token: int
    principal: int
    holder: str
    ended_by: str | None = None


@dataclass
class Model:
    held: dict[str, Held] = field(default_factory=dict)
    #: Of the rows that there are.
    last_token: dict[str, int] = field(default_factory=dict)
    #: Of all grants ever, also of rows that were pruned.
    highest: dict[str, int] = field(default_factory=dict)
    granted: list[Granted] = field(default_factory=list)
    #: (type, resource, lease, previous lease, token, time).
    events: list[tuple[Any, ...]] = field(default_factory=list)

    def next_token(self, resource: str, at: datetime) -> int:
        return max(self.last_token.get(resource, 0) + 1, clock.milliseconds(at))

    def start(self, resource: str, lease: Held, event: str, ended_by: str | None) -> None:
        previous = self.held.get(resource)
        if previous is not None:
            assert ended_by is not None
            self._mark(previous.lease_id, ended_by)
        assert lease.token > self.highest.get(resource, 0), "the token did not grow"
        self.held[resource] = lease
        self.last_token[resource] = self.highest[resource] = lease.token
        self.granted.append(Granted(resource, lease.lease_id, lease.token, lease.principal, lease.holder))
        self.events.append(
            (event, resource, lease.lease_id, previous and previous.lease_id, lease.token, lease.acquired_at)
        )

    def beat(self, resource: str, at: datetime, ttl_ms: int | None) -> datetime:
        lease = self.held[resource]
        lease.ttl_ms = lease.ttl_ms if ttl_ms is None else ttl_ms
        lease.heartbeat_at = at
        lease.expires_at = at + timedelta(milliseconds=lease.ttl_ms)
        if lease.lifetime_ends_at is not None:
            lease.expires_at = min(lease.expires_at, lease.lifetime_ends_at)
        lease.check_at = min(lease.check_at, lease.expires_at)
        return lease.expires_at

    def end(self, resource: str, event: str, at: datetime) -> None:
        lease = self.held.pop(resource)
        ended_by = event.removeprefix("lease.")
        self._mark(lease.lease_id, "max_lifetime" if event == "lease.reaped" and lease.lifetime_over else ended_by)
        self.events.append((event, resource, lease.lease_id, None, lease.token, at))

    def _mark(self, lease_id: uuid.UUID, ended_by: str) -> None:
        next(lease for lease in self.granted if lease.lease_id == lease_id).ended_by = ended_by

    def dead(self, at: datetime) -> list[str]:
        return [resource for resource, lease in self.held.items() if not lease.lives(at)]
