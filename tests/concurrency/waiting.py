"""Calls on other connections: one that has to wait for a lock, one whose transaction stays open."""

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


class Aside:
    """A call under way on a connection of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._answer: Any = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answer = self._call()
        except BaseException as failure:
            self._failure = failure
        finally:
            connection.close()

    def await_end_or_lock(self) -> None:
        """Until it has come back, or waits for a lock that the transaction of this thread holds."""
        await_that(lambda: not self._thread.is_alive() or somebody_waits())

    def answer(self) -> Any:
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive(), "the call did not come back"
        if self._failure is not None:
            raise self._failure
        return self._answer


class Uncommitted:
    """What a call did, in a transaction that stays open until it is told to commit."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._done, self._commit = threading.Event(), threading.Event()
        self._aside = Aside(lambda: self._run(call))
        assert self._done.wait(PATIENCE_SECONDS)

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            with transaction.atomic():
                call()
                self._done.set()
                self._commit.wait(PATIENCE_SECONDS)
        finally:
            self._done.set()

    def commit(self) -> None:
        self._commit.set()
        self._aside.answer()


def elsewhere(call: Callable[[], Any]) -> Any:
    """What the call gives on another connection, whatever transaction is open here."""
    return Aside(call).answer()


def after_waiting(call: Callable[[], Any], *, meanwhile: Callable[[], Any]) -> Any:
    """What the call gives, or the refusal it raises, when ``meanwhile`` happens while it waits for the row's lock.

    What happens meanwhile is done in the transaction that holds the lock.
    """
    with transaction.atomic():
        list(lock_rows(Resource.objects.all()))
        waiting = Aside(call)
        await_that(somebody_waits)
        meanwhile()
    try:
        return waiting.answer()
    except DomainError as refusal:
        return refusal


def await_that(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.001)


def somebody_waits() -> bool:
    """Whether a connection waits for a lock that this one holds."""
    if connection.vendor == "sqlite":
        return bool(writer_lock(str(connection.settings_dict["NAME"]))._queue)
    with connection.cursor() as cursor:
        cursor.execute("SELECT EXISTS (SELECT 1 FROM pg_locks WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid)))")
        (waits,) = cursor.fetchone()
    return bool(waits)
