"""A call that has to wait for a lock, and what happens meanwhile."""

import threading
import time
from collections.abc import Callable
from typing import Any

from django.db import connection, transaction

from leasehub.db.locks import lock_rows
from leasehub.db.sqlite.writer_lock import writer_lock
from leasehub.errors import DomainError
from leases.models import Resource

PATIENCE_SECONDS = 10


def after_waiting(call: Callable[[], Any], *, meanwhile: Callable[[], Any]) -> Any:
    """What the call gives, or the refusal it raises, when ``meanwhile`` happens while it waits for the row's lock.

    What happens meanwhile is done in the transaction that holds the lock.
    """
    answer: list[Any] = []

    def run() -> None:
        try:
            answer.append(call())
        except DomainError as refusal:
            answer.append(refusal)
        finally:
            connection.close()

    waiting = threading.Thread(target=run, daemon=True)
    with transaction.atomic():
        list(lock_rows(Resource.objects.all()))
        waiting.start()
        _await(somebody_waits)
        meanwhile()
    waiting.join(PATIENCE_SECONDS)
    assert answer, "the call did not come back"
    return answer[0]


def _await(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "nobody came to wait"
        time.sleep(0.001)


def somebody_waits() -> bool:
    if connection.vendor == "sqlite":
        return bool(writer_lock(str(connection.settings_dict["NAME"]))._queue)
    with connection.cursor() as cursor:
        cursor.execute("SELECT EXISTS (SELECT 1 FROM pg_locks WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid)))")
        (waits,) = cursor.fetchone()
    return bool(waits)
