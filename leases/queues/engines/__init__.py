"""The verbs of the queues in the two ways of ``leases.engines``, with one meaning."""

import uuid
from dataclasses import dataclass
from datetime import datetime
from types import ModuleType
from typing import Any

from django.db import connection


@dataclass(frozen=True, slots=True)
class NewTask:
    payload: Any = None
    priority: int = 0
    delay_seconds: int = 0
    #: None: the queue's.
    max_attempts: int | None = None
    dedupe_key: str | None = None


@dataclass(frozen=True, slots=True)
class Put:
    #: put; unauthenticated.
    outcome: str
    task: uuid.UUID
    state: str
    ready_at: datetime | None
    #: A live task has the dedupe key: this is it.
    was_live: bool


@dataclass(frozen=True, slots=True)
class Claim:
    #: claimed; nothing, unauthenticated.
    outcome: str
    task: uuid.UUID
    attempt: int
    lease_id: uuid.UUID
    fencing_token: int
    expires_at: datetime
    #: Database time, read after the lock.
    at: datetime
    #: As JSON text, the way it goes out.
    payload: str | None
    #: What was due until then has been looked at; None when there may be more.
    looked_until: datetime | None


@dataclass(frozen=True, slots=True)
class Step:
    """The end of a claim, or why not."""

    #: completed, failed, returned; stale (another token), expired, lifetime_over, not_found, unauthenticated.
    outcome: str
    at: datetime | None = None
    #: Until when the claim lasted.
    expires_at: datetime | None = None
    #: What the task is now.
    state: str | None = None
    ready_at: datetime | None = None
    lease_id: uuid.UUID | None = None


def engine() -> ModuleType:
    if connection.vendor == "postgresql":
        from leases.queues.engines import plpgsql

        return plpgsql
    from leases.queues.engines import portable

    return portable
