"""One writer at a time, in order of arrival: SQLite's own busy handler starves (docs/locking.md).

Within a process the waiting threads form a queue; between processes ``flock`` decides, on a file beside the
database, so that a killed process lets go at once.
"""

import fcntl
import os
import threading
import time
from collections import deque
from pathlib import Path

POLL_SECONDS = 0.0005
# Long enough for a process that polls to notice that the lock is free.
YIELD_SECONDS = 8 * POLL_SECONDS


class WriterLockTimeout(Exception):
    """The deadline passed before it was this writer's turn."""


class WriterLock:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._reset()

    def _reset(self) -> None:
        self._mutex = threading.Lock()
        self._queue: deque[threading.Lock] = deque()
        self._busy = False
        self._released_at = 0.0
        self._held_fd = self._waiting_fd = -1

    def forget_parent(self) -> None:
        """In a forked process: it holds nothing, and its copies of the files must not keep what its parent holds.

        Open file descriptions own the lock: it would outlive a killed parent.
        """
        for file in (self._held_fd, self._waiting_fd):
            if file >= 0:
                os.close(file)
        self._reset()

    def acquire(self, *, timeout_seconds: float) -> None:
        """Raises WriterLockTimeout."""
        deadline = time.monotonic() + timeout_seconds
        self._queue_up(deadline)
        try:
            self._lock_file(deadline)
        except BaseException:
            self._call_next()
            raise

    def release(self) -> None:
        fcntl.flock(self._held_fd, fcntl.LOCK_UN)
        self._released_at = time.monotonic()
        self._call_next()

    def _queue_up(self, deadline: float) -> None:
        gate = threading.Lock()
        gate.acquire()
        with self._mutex:
            if not self._busy:
                self._busy = True
                return
            self._queue.append(gate)
        if gate.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return
        with self._mutex:
            if gate in self._queue:
                self._queue.remove(gate)
                raise WriterLockTimeout
        # Called between the timeout and the look: it is this thread's turn after all.

    def _call_next(self) -> None:
        with self._mutex:
            if self._queue:
                self._queue.popleft().release()
            else:
                self._busy = False

    def _lock_file(self, deadline: float) -> None:
        if self._held_fd < 0:
            self._held_fd = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._waiting_fd = os.open(f"{self._file}.waiting", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._let_others_pass()
        if self._try_lock():
            return
        fcntl.flock(self._waiting_fd, fcntl.LOCK_SH)
        try:
            while not self._try_lock():
                if time.monotonic() > deadline:
                    raise WriterLockTimeout
                time.sleep(POLL_SECONDS)
        finally:
            fcntl.flock(self._waiting_fd, fcntl.LOCK_UN)

    def _let_others_pass(self) -> None:
        """Just after its own turn this process would take the lock again before one that polls could look."""
        until = self._released_at + YIELD_SECONDS
        while time.monotonic() < until and self._another_process_waits():
            time.sleep(POLL_SECONDS)

    def _try_lock(self) -> bool:
        try:
            fcntl.flock(self._held_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _another_process_waits(self) -> bool:
        try:
            fcntl.flock(self._waiting_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._waiting_fd, fcntl.LOCK_UN)
        return False


_locks: dict[str, WriterLock] = {}


def writer_lock(database: str) -> WriterLock:
    """The lock of a database file, one a process."""
    found = _locks.get(database)
    if found is None:
        # setdefault keeps the first of two threads that come at once.
        found = _locks.setdefault(database, WriterLock(Path(f"{database}.writer-lock")))
    return found


def _forget_parent() -> None:
    for lock in _locks.values():
        lock.forget_parent()


os.register_at_fork(after_in_child=_forget_parent)
