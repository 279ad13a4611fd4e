"""Django's SQLite backend, with every outermost transaction and autocommit write behind the writer lock."""

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db.backends.sqlite3 import base
from django.db.utils import OperationalError

from leasehub.db.sqlite import clock
from leasehub.db.sqlite.writer_lock import WriterLock, WriterLockTimeout, writer_lock

READS = ("SELECT", "PRAGMA", "EXPLAIN", "VALUES")


class Cursor(base.SQLiteCursorWrapper):
    wrapper: "DatabaseWrapper"

    def execute(self, query: str, params: Any = None) -> Any:
        with self.wrapper.writing(query):
            return super().execute(query, params)

    def executemany(self, query: str, param_list: Any) -> Any:
        with self.wrapper.writing(query):
            return super().executemany(query, param_list)


#: Those of this process that have connected to a file, in whatever thread.
_wrappers: "weakref.WeakSet[DatabaseWrapper]" = weakref.WeakSet()
_parent_was_connected = False


def is_connected() -> bool:
    return any(wrapper.connection is not None for wrapper in _wrappers)


def _look_at_parent() -> None:
    global _parent_was_connected
    _parent_was_connected = is_connected()


os.register_at_fork(after_in_child=_look_at_parent)


class DatabaseWrapper(base.DatabaseWrapper):
    _holds_writer_lock = False

    def get_new_connection(self, conn_params: Any) -> Any:
        if _parent_was_connected:
            # SQLite would rely on locks of the file that only the parent has, and corrupt it
            # (https://www.sqlite.org/howtocorrupt.html, 2.6).
            raise ImproperlyConfigured(
                "This process was forked while SQLite was open in its parent: it may not open it."
            )
        connection = super().get_new_connection(conn_params)
        if not self.is_in_memory_db():
            _wrappers.add(self)
        connection.create_function("leasehub_now", 0, lambda: clock.now().isoformat(" "))
        return connection

    def create_cursor(self, name: str | None = None) -> Any:
        cursor = self.connection.cursor(factory=Cursor)
        cursor.wrapper = self
        return cursor

    @contextmanager
    def writing(self, query: str) -> Iterator[None]:
        """Holds the writer lock around a write outside a transaction."""
        if self.connection.in_transaction or self._holds_writer_lock or query.lstrip()[:7].upper().startswith(READS):
            yield
            return
        self._take_writer_lock()
        try:
            yield
        finally:
            self._give_writer_lock_back()

    def _start_transaction_under_autocommit(self) -> None:
        self._take_writer_lock()
        try:
            super()._start_transaction_under_autocommit()  # type: ignore[misc]
        except BaseException:
            self._give_writer_lock_back()
            raise

    def _commit(self) -> None:
        super()._commit()  # type: ignore[misc]
        self._give_writer_lock_back()

    def _rollback(self) -> None:
        try:
            super()._rollback()  # type: ignore[misc]
        finally:
            self._give_writer_lock_back()

    def _close(self) -> None:
        try:
            super()._close()  # type: ignore[misc]
        finally:
            self._give_writer_lock_back()

    def _writer_lock(self) -> WriterLock | None:
        return None if self.is_in_memory_db() else writer_lock(str(self.settings_dict["NAME"]))

    def _take_writer_lock(self) -> None:
        lock = self._writer_lock()
        if lock is None or self._holds_writer_lock:
            return
        try:
            lock.acquire(timeout_seconds=settings.LEASEHUB_LOCK_TIMEOUT_MS / 1000)
        except WriterLockTimeout:
            raise OperationalError("database is locked: too many writers are waiting") from None
        self._holds_writer_lock = True

    def _give_writer_lock_back(self) -> None:
        lock = self._writer_lock()
        if lock is not None and self._holds_writer_lock:
            self._holds_writer_lock = False
            lock.release()
