"""Calls of the hot path's database functions: one prepared statement on the thread's kept connection.

So is every statement that is the same each time: Django's own cursor never prepares, and its query is put together
and planned anew for every call.
"""

import select
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from time import monotonic
from typing import Any

import psycopg
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.types.numeric import Int8

Row = tuple[Any, ...]
#: The calls of a request rely for so long on the look with which it began: each look lets another thread go first.
LOOKED_SECONDS = 0.01


@dataclass
class Aside:
    """A question whose answer is one value, asked along with the next call of one row: both take one round trip."""

    sql: str
    parameters: Sequence[Any]
    is_answered: bool = False
    answer: Any = None


_aside: ContextVar[Aside | None] = ContextVar("aside", default=None)


@contextmanager
def asking_aside(sql: str, parameters: Sequence[Any]) -> Iterator[Aside]:
    """What is asked sees the database as it was before the call that it goes along with; it may go along with none."""
    aside = Aside(sql, parameters)
    token = _aside.set(aside)
    try:
        yield aside
    finally:
        _aside.reset(token)


def call_one(sql: str, parameters: Sequence[Any]) -> Row:
    """The one row of a function. Raises Django's OperationalError when the connection breaks meanwhile.

    Nothing is repeated here: whether the call took effect is unknown then, and only the caller can tell whether
    repeating it is harmless.
    """
    aside = _aside.get()
    if aside is None or aside.is_answered:
        row = _executed(sql, parameters).fetchone()
        assert row is not None
        return row
    both = f"SELECT called.*, ({aside.sql}) FROM ({sql}) AS called"
    row = _executed(both, (*aside.parameters, *parameters)).fetchone()
    assert row is not None
    aside.is_answered, aside.answer = True, row[-1]
    return row[:-1]


def call_many(sql: str, parameters: Sequence[Any]) -> list[Row]:
    return _executed(sql, parameters).fetchall()


def read(sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
    """The rows of a statement that is the same each time, with ``%s`` for what differs, on either database."""
    connection = connections[DEFAULT_DB_ALIAS]
    if connection.vendor == "postgresql":
        return call_many(sql, parameters)
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        rows: list[Row] = cursor.fetchall()
        return rows


def typed(value: Any) -> Any:
    """A parameter of a statement that is prepared once for each combination of types: psycopg has a type for each
    size of a number."""
    return Int8(value) if type(value) is int else value


def _executed(sql: str, parameters: Sequence[Any]) -> "psycopg.Cursor[Row]":
    # Looked up once: each use of django.db.connection looks it up again.
    connection = connections[DEFAULT_DB_ALIAS]
    cursor = _kept_cursor(connection)
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


def _kept_cursor(connection: BaseDatabaseWrapper) -> "psycopg.Cursor[Row]":
    cursor: psycopg.Cursor[Row] | None = getattr(connection, "leasehub_cursor", None)
    raw = connection.connection
    if cursor is not None and raw is not None and cursor.connection is raw and not _hung_up(connection, raw):
        return cursor
    connection.ensure_connection()
    # A plain cursor: Django's own interpolates in the client and never prepares.
    cursor = psycopg.Cursor(connection.connection)
    connection.leasehub_cursor = cursor  # type: ignore[attr-defined]
    return cursor


def leave_what_hung_up() -> BaseDatabaseWrapper:
    """Before a request: gives up this thread's connection when the server closed it, for the ORM's use too."""
    connection = connections[DEFAULT_DB_ALIAS]
    if connection.vendor == "postgresql" and connection.connection is not None:
        _hung_up(connection, connection.connection)
        connection.leasehub_looked_at = monotonic()  # type: ignore[attr-defined]
    return connection


def _hung_up(connection: BaseDatabaseWrapper, raw: "psycopg.Connection[Row]") -> bool:
    """Whether the server closed the idle connection, found without a round trip.

    An idle connection has nothing to read, unless the server said goodbye. Then nothing was sent yet, so
    connecting again is safe.
    """
    if connection.in_atomic_block:
        return False
    if not raw.closed:
        if monotonic() - getattr(connection, "leasehub_looked_at", 0.0) < LOOKED_SECONDS:
            return False
        poll = select.poll()
        poll.register(raw.fileno(), select.POLLIN)
        if not poll.poll(0):
            return False
    connection.close()
    return True
