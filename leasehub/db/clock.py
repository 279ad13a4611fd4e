"""The database's clock, the only one that decides about a lease ("the database owns the clock", invariant 7).

On PostgreSQL it is the SQL function ``leasehub_now()``, which the functions of the hot path call too; on SQLite
a function of that name is registered on every connection. Tests move time by replacing it. Both have the
resolution of the API, one millisecond.
"""

from datetime import UTC, datetime, timedelta

from django.db import connection
from django.db.models import DateTimeField, Func

from leasehub.db import functions
from leasehub.db.sqlite import clock as sqlite_clock


def now() -> datetime:
    """Database time, read when called: lock the row first, then ask for the time."""
    if connection.vendor == "sqlite":
        # The same machine's clock, without the round trip through SQL.
        return sqlite_clock.now()
    ((at,),) = functions.read("SELECT leasehub_now()")
    assert isinstance(at, datetime)
    return at


class DatabaseNow(Func):
    """Database time as an expression: the time at which its statement runs, which is before any lock it takes."""

    function = "leasehub_now"
    template = "%(function)s()"
    output_field = DateTimeField()


def milliseconds(at: datetime) -> int:
    """Milliseconds since 1970."""
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def milliseconds_between(start: datetime, end: datetime) -> int:
    return (end - start) // timedelta(milliseconds=1)


def iso(at: datetime) -> str:
    """2026-07-30T10:58:13.829Z"""
    return at.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
