"""Failures of the database that pass by themselves: the caller is told to come back."""

import logging

from django.db import Error

from leasehub.errors import Unavailable

logger = logging.getLogger(__name__)

LOCK_NOT_AVAILABLE = "55P03"
READ_ONLY = "25006"
# A lock that was waited for too long, a statement that ran too long, a deadlock, a serialization failure.
CONTENTION = {LOCK_NOT_AVAILABLE, "57014", "40P01", "40001"}


def is_lock_timeout(error: Error) -> bool:
    """PostgreSQL gave up waiting for somebody else's row."""
    return getattr(error.__cause__, "sqlstate", None) == LOCK_NOT_AVAILABLE


def is_read_only(error: Error) -> bool:
    """Whether the database takes no writes at all: a standby, until it is made the primary."""
    return getattr(error.__cause__, "sqlstate", None) == READ_ONLY


def unavailable(error: Error) -> Unavailable:
    """The 503 for a database that is away, or too busy."""
    state = getattr(error.__cause__, "sqlstate", None)
    busy = state in CONTENTION or "locked" in str(error)
    logger.warning("database %s: %s", "busy" if busy else "unavailable", str(error).strip().splitlines()[:1])
    return Unavailable(retry_after_ms=500 if busy else 2000)
