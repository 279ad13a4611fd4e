"""Keeping a lease alive from the background, and knowing by one's own clock when to stop relying on it."""

import random
import threading
import time
from collections.abc import Callable

from leasehub.client.failures import Failure, Refused
from leasehub.client.wire import Connection

# The answers that say for certain that the lease is not held any more, or never will be beaten again.
# Whatever else goes wrong may be over before the lease is, so it is tried again.
LOST = ("LEASE_LOST", "STALE_TOKEN", "NOT_FOUND", "UNAUTHENTICATED")

BEATS_PER_TTL = 8
FIRST_RETRY_SECONDS = 0.5
# A wait is cut into pieces, since one that spans a suspension would go on for its full length after it.
LONGEST_WAIT_SECONDS = 0.25


def boot_clock() -> float:
    """Seconds on a clock that nobody sets and that goes on counting while the machine is suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Deadline:
    """When the work under a lease must be asked to end (``term_at``) and must be dead (``kill_at``).

    Counted from when the request was *sent*: the server cannot have started the lease's time before. What is
    kept back of the TTL pays for the killing and for clocks that run at slightly different speeds.
    """

    def __init__(self, *, sent_at: float, seconds: float) -> None:
        self.kill_at = sent_at + seconds - min(2.0, seconds / 10)
        self.term_at = self.kill_at - min(5.0, seconds / 10)


class Heartbeat(threading.Thread):
    """Beats one lease, at an eighth of its TTL unless told otherwise, until ``stop`` or until it is lost.

    ``on_renewed`` is told each new deadline; ``on_lost`` is told once: the refusal that confirmed the loss,
    or None when the deadline has come without a beat that got through. Both are called in this thread.
    """

    def __init__(
        self,
        *,
        connection: Connection,
        lease_id: str,
        fencing_token: int,
        ttl_seconds: float,
        beat_seconds: float | None = None,
        deadline: Deadline,
        on_lost: Callable[[Refused | None], None],
        on_renewed: Callable[[Deadline], None] = lambda deadline: None,
    ) -> None:
        super().__init__(name=f"heartbeat of {lease_id}", daemon=True)
        self.deadline = deadline
        self._connection = connection
        self._path = f"/v1/leases/{lease_id}/heartbeat"
        self._body = {"fencing_token": fencing_token}
        self._interval = ttl_seconds / BEATS_PER_TTL if beat_seconds is None else beat_seconds
        self._connection.timeout = min(10.0, max(1.0, self._interval))
        self._ttl_seconds = ttl_seconds
        self._on_renewed = on_renewed
        self._on_lost = on_lost
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        next_at = boot_clock() + self._interval
        failures = 0
        while self._wait_until(next_at):
            try:
                self._beat()
            except Refused as refused:
                if refused.reason in LOST:
                    self._on_lost(refused)
                    return
                failures += 1
            except Failure:
                failures += 1
            else:
                failures = 0
            next_at = boot_clock() + self._pause(failures)

    def _wait_until(self, instant: float) -> bool:
        """False when there is nothing more to beat for."""
        while not self._stopped.is_set():
            now = boot_clock()
            # Looked at before every beat: after a suspension the lease may be another's already.
            if now >= self.deadline.term_at:
                self._on_lost(None)
                return False
            if now >= instant:
                return True
            self._stopped.wait(min(instant - now, LONGEST_WAIT_SECONDS))
        return False

    def _beat(self) -> None:
        sent_at = boot_clock()
        try:
            answer = self._connection.call("POST", self._path, self._body, attempts=1)
        finally:
            # The next beat is too far away to keep the server's thread of it.
            self._connection.close()
        seconds = min(self._ttl_seconds, answer["expires_in_ms"] / 1000)
        self.deadline = Deadline(sent_at=sent_at, seconds=seconds)
        self._on_renewed(self.deadline)

    def _pause(self, failures: int) -> float:
        if not failures:
            return self._interval
        # Spread, so that a fleet does not return to a server that comes back in one moment.
        backoff = FIRST_RETRY_SECONDS * 2.0 ** min(failures - 1, 10)
        return float(min(self._interval, backoff) * random.uniform(0.5, 1.0))
