"""Calls of the hot path's database functions: one prepared statement on the thread's kept connection.

So is every statement that is the same each time: Django's own cursor never prepares, and its query is put together
and planned anew for every call.
"""

import select
from collections.abc import Sequence
from typing import Any

import psycopg
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper

Row = tuple[Any, ...]


def call_one(sql: str, parameters: Sequence[Any]) -> Row:
    """The one row of a function. Raises Django's OperationalError when the connection breaks meanwhile.

    Nothing is repeated here: whether the call took effect is unknown then, and only the caller can tell whether
    repeating it is harmless.
    """
    row = _executed(sql, parameters).fetchone()
    assert row is not None
    return row


def call_many(sql: str, parameters: Sequence[Any], *, just_used: bool = False) -> list[Row]:
    """``just_used``: another call of this request was answered a moment ago, so nobody asks whether it hung up."""
    return _executed(sql, parameters, just_used=just_used).fetchall()


def read(sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
    """The rows of a statement that is the same each time, with ``%s`` for what differs, on either database."""
    connection = connections[DEFAULT_DB_ALIAS]
    if connection.vendor == "postgresql":
        return call_many(sql, parameters)
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        rows: list[Row] = cursor.fetchall()
        return rows


def _executed(sql: str, parameters: Sequence[Any], *, just_used: bool = False) -> "psycopg.Cursor[Row]":
    # Looked up once: each use of django.db.connection looks it up again.
    connection = connections[DEFAULT_DB_ALIAS]
    cursor = _kept_cursor(connection, just_used=just_used)
    if connection.queries_logged:
        # As Django's own cursor does.
        connection.queries_log.append({"sql": sql, "time": ""})
    try:
        with connection.wrap_database_errors:
            return cursor.execute(sql, parameters, prepare=True, binary=True)
    except Exception:
        if cursor.connection.closed and not connection.in_atomic_block:
            connection.close()
        raise


def _kept_cursor(connection: BaseDatabaseWrapper, *, just_used: bool = False) -> "psycopg.Cursor[Row]":
    cursor: psycopg.Cursor[Row] | None = getattr(connection, "leasehub_cursor", None)
    raw = connection.connection
    if (
        cursor is not None
        and raw is not None
        and cursor.connection is raw
        and (just_used or not _hung_up(connection, raw))
    ):
        return cursor
    connection.ensure_connection()
    # A plain cursor: Django's own interpolates in the client and never prepares.
    cursor = psycopg.Cursor(connection.connection)
    connection.leasehub_cursor = cursor  # type: ignore[attr-defined]
    return cursor


def leave_what_hung_up() -> None:
    """Before a request: gives up this thread's connection when the server closed it, for the ORM's use too."""
    connection = connections[DEFAULT_DB_ALIAS]
    if connection.vendor == "postgresql" and connection.connection is not None:
        _hung_up(connection, connection.connection)


def _hung_up(connection: BaseDatabaseWrapper, raw: "psycopg.Connection[Row]") -> bool:
    """Whether the server closed the idle connection, found without a round trip.

    An idle connection has nothing to read, unless the server said goodbye. Then nothing was sent yet, so
    connecting again is safe.
    """
    if connection.in_atomic_block:
        return False
    if not raw.closed:
        poll = select.poll()
        poll.register(raw.fileno(), select.POLLIN)
        if not poll.poll(0):
            return False
    connection.close()
    return True
