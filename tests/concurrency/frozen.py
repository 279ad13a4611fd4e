"""A clock that stands still until the test moves it, on both databases and for every connection."""

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection

from leasehub.db.sqlite import clock as sqlite_clock
from tests.conftest import POSTGRESQL_CLOCK

# A table, not a changed function: a call that waits for a lock while the clock moves must see the new time.
INSTALL = """
CREATE TABLE IF NOT EXISTS staged_clock (at timestamptz NOT NULL);
DELETE FROM staged_clock;
INSERT INTO staged_clock VALUES (now());
CREATE OR REPLACE FUNCTION staged_yield() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    step integer := nullif(current_setting('staged.step', true), '')::integer;
BEGIN
    IF step IS NOT NULL THEN
        PERFORM set_config('staged.step', (step + 1)::text, false);
        PERFORM pg_advisory_lock_shared(pg_backend_pid(), step + 1);
        PERFORM pg_advisory_unlock_shared(pg_backend_pid(), step + 1);
    END IF;
END
$$;
CREATE OR REPLACE FUNCTION leasehub_now() RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    frozen timestamptz;
BEGIN
    PERFORM staged_yield();
    SELECT at INTO frozen FROM staged_clock;
    RETURN frozen;
END
$$;
"""
REMOVE = "DROP FUNCTION staged_yield(); DROP TABLE staged_clock"
START = datetime(2027, 1, 15, 12, 0, tzinfo=UTC)


def plain_connection() -> "psycopg.Connection[tuple[Any, ...]]":
    """A connection to the test database beside Django's own."""
    parameters = connection.get_connection_params()
    parameters.pop("cursor_factory", None)
    parameters.pop("context", None)
    plain: psycopg.Connection[tuple[Any, ...]] = psycopg.connect(**parameters, autocommit=True)
    plain.execute("SET synchronous_commit = off")
    return plain


class FrozenClock:
    def __init__(self) -> None:
        self.at = START
        self._patch = pytest.MonkeyPatch()
        self._admin = plain_connection() if connection.vendor == "postgresql" else None

    def __enter__(self) -> "FrozenClock":
        self._patch.setattr(sqlite_clock, "now", lambda: self.at)
        if self._admin is not None:
            self._admin.execute(INSTALL)
        self.set(START)
        return self

    def __exit__(self, *failure: Any) -> None:
        self._patch.undo()
        if self._admin is not None:
            with connection.cursor() as cursor:
                cursor.execute(POSTGRESQL_CLOCK.format(now="clock_timestamp()"))
            self._admin.execute(REMOVE)
            self._admin.close()

    def set(self, at: datetime) -> None:
        self.at = at
        if self._admin is not None:
            self._admin.execute("UPDATE staged_clock SET at = %s", [at])

    def move(self, **by: float) -> None:
        self.set(self.at + timedelta(**by))
