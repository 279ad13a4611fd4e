"""One consistent look at a live database, however long it takes, without keeping any writer waiting."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection, transaction


@contextmanager
def consistent() -> Iterator[None]:
    """Whatever is read in here is read as of one moment. Nothing can be written.

    PostgreSQL: REPEATABLE READ, READ ONLY, without limits of time; as long as it is open, dead rows stay. SQLite: a
    deferred transaction, which takes neither the writer lock nor SQLite's own. Inside a transaction it changes
    nothing: that one's view is what there is.
    """
    if connection.in_atomic_block:
        yield
    elif connection.vendor == "postgresql":
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                cursor.execute("SET LOCAL statement_timeout = 0")
                cursor.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            yield
    else:
        connection.ensure_connection()
        raw = connection.connection
        raw.execute("PRAGMA query_only = ON")
        # By hand: Django would begin an IMMEDIATE one, behind the writer lock.
        raw.execute("BEGIN DEFERRED")
        try:
            yield
        finally:
            raw.execute("ROLLBACK")
            raw.execute("PRAGMA query_only = OFF")
