"""Calls that wait for something to happen: bounded in number, without a transaction or a connection meanwhile."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from django.conf import settings
from django.db import connection

Seen = TypeVar("Seen")

LOOK_SECONDS = 0.25
# A process has no more threads than it has: those that wait leave half of them to those that work.
PLACES = min(settings.LEASEHUB_WAITING_CALLS, settings.LEASEHUB_WEB_THREADS // 2)
_places = threading.BoundedSemaphore(PLACES)


@contextmanager
def place() -> Iterator[bool]:
    """Whether one of the places for calls that wait was free; it is taken meanwhile."""
    taken = _places.acquire(blocking=False)
    try:
        yield taken
    finally:
        if taken:
            _places.release()


def let_go_of_connection() -> bool:
    """Before a wait: whoever waits holds no connection. False inside a transaction, where nothing new can be seen."""
    if connection.in_atomic_block:
        return False
    connection.close()
    return True


def wait(look: Callable[[], Seen], *, until: Callable[[Seen], bool], seconds: float, first: Seen) -> Seen:
    """What was seen when it was what was waited for, when the time was up, or at once when no place is free.

    Inside a transaction nothing new can be seen, so there is no waiting.
    """
    seen = first
    if until(seen) or seconds <= 0 or connection.in_atomic_block or not _places.acquire(blocking=False):
        return seen
    try:
        deadline = time.monotonic() + seconds
        while not until(seen) and (rest := deadline - time.monotonic()) > 0:
            if connection.vendor == "postgresql":
                connection.close()
            time.sleep(min(LOOK_SECONDS, rest))
            seen = look()
        return seen
    finally:
        _places.release()
