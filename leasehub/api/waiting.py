"""Calls that wait for something to happen: bounded in number, without a transaction or a connection meanwhile."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from django.conf import settings
from django.db import connection

from leasehub.identity.models import Organization

Seen = TypeVar("Seen")

LOOK_SECONDS = 0.25
# A process has no more threads than it has: those that wait leave half of them to those that work.
PLACES = min(settings.LEASEHUB_WAITING_CALLS, settings.LEASEHUB_WEB_THREADS // 2)


class Places:
    """Room for so many at a time. Where there are several organizations, each leaves the others a fifth of it."""

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._free = count
        self._share = max(1, count - max(1, count // 5))
        self._taken: Counter[int] = Counter()

    def take(self, organization: int) -> bool:
        """Whether there was one; then it is to be given back."""
        with self._lock:
            if self._free == 0:
                return False
            self._free -= 1
            self._taken[organization] += 1
            is_within_share = self._taken[organization] <= self._share
        is_taken = False
        try:
            is_taken = is_within_share or not Organization.objects.exclude(pk=organization).exists()
        finally:
            if not is_taken:
                self.give_back(organization)
        return is_taken

    def give_back(self, organization: int) -> None:
        with self._lock:
            self._free += 1
            self._taken[organization] -= 1
            if not self._taken[organization]:
                del self._taken[organization]


_places = Places(PLACES)


@contextmanager
def place(organization: int) -> Iterator[bool]:
    """Whether one of the places for calls that wait was free; it is taken meanwhile."""
    is_taken = _places.take(organization)
    try:
        yield is_taken
    finally:
        if is_taken:
            _places.give_back(organization)


def let_go_of_connection() -> bool:
    """Before a wait: whoever waits holds no connection. False inside a transaction, where nothing new can be seen."""
    if connection.in_atomic_block:
        return False
    connection.close()
    return True


def wait(
    look: Callable[[], Seen], *, organization: int, until: Callable[[Seen], bool], seconds: float, first: Seen
) -> Seen:
    """What was seen when it was what was waited for, when the time was up, or at once when no place is free.

    Inside a transaction nothing new can be seen, so there is no waiting.
    """
    seen = first
    if until(seen) or seconds <= 0 or connection.in_atomic_block:
        return seen
    with place(organization) as is_free:
        if not is_free:
            return seen
        deadline = time.monotonic() + seconds
        while not until(seen) and (rest := deadline - time.monotonic()) > 0:
            if connection.vendor == "postgresql":
                connection.close()
            time.sleep(min(LOOK_SECONDS, rest))
            seen = look()
        return seen
