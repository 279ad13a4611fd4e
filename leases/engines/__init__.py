"""Two ways to carry out the hot verbs, one meaning: what each database does best.

Every verb takes the key's row id, checks the key, locks the resource's row, reads the clock, decides, writes the
row and the event, and answers an Outcome. ``leases.services`` gives the outcome its meaning.
"""

import uuid
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from django.db import connection

from leases.granting import Grant


@dataclass(frozen=True, slots=True)
class Outcome:
    #: What happened or why not; each engine function lists its words.
    outcome: str
    lease_id: uuid.UUID | None = None
    fencing_token: int | None = None
    expires_at: datetime | None = None
    #: Database time, read after the lock.
    at: datetime | None = None
    #: The lease that this acquisition ended.
    previous: dict[str, Any] | None = None

    def grant(self) -> Grant:
        """The lease that this outcome granted or refreshed."""
        assert self.lease_id and self.fencing_token and self.expires_at and self.at
        return Grant(
            self.lease_id, self.fencing_token, self.expires_at, self.at, self.outcome == "taken_over", self.previous
        )


def engine() -> ModuleType:
    return _engine_for(connection.vendor)


@cache
def _engine_for(vendor: str) -> ModuleType:
    # Imported late: both import Outcome from here, and SQLite needs no PostgreSQL driver in memory.
    return import_module("leases.engines.plpgsql" if vendor == "postgresql" else "leases.engines.portable")
