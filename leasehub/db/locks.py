"""The one place that builds row locks, and the lock of a whole installation.

The order everywhere: idempotency key, handoff, pools by id, requests, slots and tasks by id, resource rows by
id, checkpoint heads, feed last. Look up unlocked, lock the owner, read again. Read the clock after the lock, never
before: otherwise a call that waited for the lock can renew a lease that ran out meanwhile.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from django.db import connection
from django.db.models import Model, QuerySet
from django.db.transaction import TransactionManagementError

from leasehub.db.rows import known_row

Row = TypeVar("Row", bound=Model)

# Never change it: processes of two versions must exclude each other.
INSTALLING = 7_382_501


def lock_rows(rows: QuerySet[Row], *, skip_locked: bool = False) -> QuerySet[Row]:
    """The rows, locked in the order of their ids until the transaction ends.

    SQLite needs no row locks: its transactions are IMMEDIATE, and one writer lock serves all processes.
    """
    if not connection.in_atomic_block:
        raise TransactionManagementError("A row lock outside a transaction would end at once.")
    return rows.order_by("pk").select_for_update(
        of=("self",) if connection.features.has_select_for_update_of else (),
        skip_locked=skip_locked and connection.features.has_select_for_update_skip_locked,
    )


def locked_row(model: type[Row], **named: Any) -> Row | None:
    """The row whose columns have these values, locked until the transaction ends: a lock that many calls take.

    On PostgreSQL its statement is put together once and stays planned. SQLite needs none, as above.
    """
    if not connection.in_atomic_block:
        raise TransactionManagementError("A row lock outside a transaction would end at once.")
    return known_row(model, locked=True, **named)


@contextmanager
def installing() -> Iterator[None]:
    """One process at a time prepares this database, whatever machine it runs on; the others wait."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s)", [INSTALLING])
        try:
            yield
        finally:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(%s)", [INSTALLING])
        return
    file = os.open(f"{connection.settings_dict['NAME']}.installing", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)
