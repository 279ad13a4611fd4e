"""Keeping leases alive from the background, and knowing by one's own clock when to stop relying on them."""

import os
import random
import threading
import traceback
import weakref
from collections.abc import Callable, Sequence

from leasehub.client.clock import boot_clock
from leasehub.client.failures import Failure, Internal, Refused, refusal
from leasehub.client.wire import Connection, Members

# The answers that say for certain that the lease is not held any more, or never will be beaten again.
# Whatever else goes wrong may be over before the lease is, so it is tried again.
LOST = ("LEASE_LOST", "STALE_TOKEN", "NOT_FOUND", "UNAUTHENTICATED")

BEATS_PER_TTL = 8
# However long the lease, an operator's ending or a handoff is known so soon.
LONGEST_INTERVAL_SECONDS = 10.0
FIRST_RETRY_SECONDS = 0.5
# A wait is cut into pieces, since one that spans a suspension would go on for its full length after it.
LONGEST_WAIT_SECONDS = 0.25
# What the server takes in one call.
MOST_AT_ONCE = 200


class Deadline:
    """When the work under a lease must be asked to end (``term_at``) and must be dead (``kill_at``).

    Counted from when the request was *sent*: the server cannot have started the lease's time before. What is
    kept back of the TTL pays for the killing and for clocks that run at slightly different speeds.
    """

    def __init__(self, *, sent_at: float, seconds: float) -> None:
        #: Until then it is nobody else's; on the server it ends a moment later.
        self.ends_at = sent_at + seconds
        self.kill_at = self.ends_at - min(2.0, seconds / 10)
        self.term_at = self.kill_at - min(5.0, seconds / 10)


def usual_interval(ttl_seconds: float) -> float:
    return min(ttl_seconds / BEATS_PER_TTL, LONGEST_INTERVAL_SECONDS)


class Kept:
    """One lease that is kept alive, by a beat in every eighth of its TTL and every ten seconds, unless told otherwise.

    ``on_renewed`` is told each new deadline; ``on_lost`` is told once: the refusal that confirmed the loss,
    or None when the deadline has come without a beat that got through. Both are called in the beating thread.
    """

    def __init__(
        self,
        *,
        lease_id: str,
        fencing_token: int,
        ttl_seconds: float,
        deadline: Deadline,
        on_lost: Callable[[Refused | None], None],
        on_renewed: Callable[[Deadline], None] = lambda deadline: None,
        beat_seconds: float | None = None,
    ) -> None:
        self.lease_id = lease_id
        self.fencing_token = fencing_token
        self.ttl_seconds = ttl_seconds
        self.deadline = deadline
        self.on_lost = on_lost
        self.on_renewed = on_renewed
        self.interval = usual_interval(ttl_seconds) if beat_seconds is None else beat_seconds
        self.next_at = boot_clock() + self.interval
        self.failures = 0

    def renew(self, answer: Members, sent_at: float) -> None:
        seconds = min(self.ttl_seconds, answer["expires_in_ms"] / 1000)
        self.deadline = Deadline(sent_at=sent_at, seconds=seconds)
        self.on_renewed(self.deadline)

    def pause(self) -> float:
        if not self.failures:
            return self.interval
        # Spread, so that a fleet does not return to a server that comes back in one moment.
        backoff = FIRST_RETRY_SECONDS * 2.0 ** min(self.failures - 1, 10)
        return float(min(self.interval, backoff) * random.uniform(0.5, 1.0))


class Heartbeats:
    """One thread that beats all the leases of a process, as long as there are any; what is due at about the same time
    in one call. A process that is forked off has none of them: they are its parent's."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._start_over()
        _all.add(self)

    def _start_over(self) -> None:
        self._kept: list[Kept] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def keep(self, kept: Kept) -> None:
        with self._changed:
            self._kept.append(kept)
            if self._thread is None:
                self._thread = threading.Thread(target=self._beat_on, name="heartbeats of leases", daemon=True)
                self._thread.start()
            self._changed.notify()

    def drop(self, kept: Kept) -> None:
        """Afterwards no beat of it begins, and what comes of one that is under way is not told any more."""
        with self._changed:
            if kept in self._kept:
                self._kept.remove(kept)
            self._changed.notify()

    def _beat_on(self) -> None:
        while (turn := self._next_turn()) is not None:
            overdue, due = turn
            for kept in overdue:
                self._lose(kept, None)
            if due:
                self._beat(due)

    def _next_turn(self) -> tuple[list[Kept], list[Kept]] | None:
        """Those whose deadline has come, and those to be beaten now; None when there is nothing more to beat for."""
        with self._changed:
            while self._kept:
                now = boot_clock()
                # Looked at before every beat: after a suspension the lease may be another's already.
                overdue = [kept for kept in self._kept if now >= kept.deadline.term_at]
                if overdue:
                    return overdue, []
                if any(now >= kept.next_at for kept in self._kept):
                    # What is due soon goes along.
                    due = [kept for kept in self._kept if now >= kept.next_at - kept.interval / 4]
                    return [], sorted(due, key=lambda kept: kept.next_at)[:MOST_AT_ONCE]
                soonest = min(min(kept.next_at, kept.deadline.term_at) for kept in self._kept)
                self._changed.wait(min(soonest - now, LONGEST_WAIT_SECONDS))
            self._thread = None
            return None

    def _beat(self, due: list[Kept]) -> None:
        sent_at = boot_clock()
        with self._changed:
            everything = [*self._kept, *due]
        # A slow answer must neither keep the others from being beaten, nor make any of them learn of its deadline late.
        seconds = min(10.0, max(1.0, min(kept.interval for kept in everything)))
        first_deadline = min(kept.deadline.term_at for kept in everything)
        self._connection.timeout = min(seconds, max(0.05, first_deadline - sent_at))
        answers: Sequence[Members | Failure]
        try:
            answers = self._answers(due)
        except Failure as failure:
            answers = [failure] * len(due)
        except Exception as fault:
            answers = [Internal(f"{type(fault).__name__}: {fault}")] * len(due)
        finally:
            # The next beat is too far away to keep the server's thread of it.
            self._connection.close()
        for kept, answer in zip(due, answers, strict=True):
            self._note(kept, answer, sent_at)

    def _answers(self, due: list[Kept]) -> list[Members | Failure]:
        if len(due) == 1:
            path = f"/v1/leases/{due[0].lease_id}/heartbeat"
            return [self._connection.call("POST", path, {"fencing_token": due[0].fencing_token}, attempts=1)]
        body = {"leases": [{"lease_id": kept.lease_id, "fencing_token": kept.fencing_token} for kept in due]}
        answers = self._connection.call("POST", "/v1/leases/heartbeats", body, attempts=1)["leases"]
        if len(answers) != len(due):
            raise Internal("the server answered for other leases than were beaten")
        return [answer if answer["ok"] else refusal(answer["error"]) for answer in answers]

    def _note(self, kept: Kept, answer: Members | Failure, sent_at: float) -> None:
        if isinstance(answer, Refused) and answer.reason in LOST:
            self._lose(kept, answer)
            return
        with self._changed:
            if kept not in self._kept:
                return
        if isinstance(answer, Failure):
            kept.failures += 1
        else:
            kept.failures = 0
            _call(kept.renew, answer, sent_at)
        kept.next_at = boot_clock() + kept.pause()

    def _lose(self, kept: Kept, refused: Refused | None) -> None:
        with self._changed:
            if kept not in self._kept:
                return
            self._kept.remove(kept)
        _call(kept.on_lost, refused)


def _call(function: Callable[..., None], *arguments: object) -> None:
    """What goes wrong in it must not end the beats of the other leases."""
    try:
        function(*arguments)
    except Exception:
        traceback.print_exc()


_all: "weakref.WeakSet[Heartbeats]" = weakref.WeakSet()


def _after_fork() -> None:
    for heartbeats in list(_all):
        # Its copy of the parent's: that one goes on.
        heartbeats._connection.close()
        heartbeats._start_over()


os.register_at_fork(after_in_child=_after_fork)
