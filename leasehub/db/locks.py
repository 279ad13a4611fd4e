"""The one place that builds row locks.

The order everywhere: idempotency key, handoff, pools by id, requests, slots and tasks by id, resource rows by
id, feed last. Look up unlocked, lock the owner, read again. Read the clock after the lock, never before:
otherwise a call that waited for the lock can renew a lease that ran out meanwhile.
"""

from typing import TypeVar

from django.db import connection
from django.db.models import Model, QuerySet
from django.db.transaction import TransactionManagementError

Row = TypeVar("Row", bound=Model)


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
