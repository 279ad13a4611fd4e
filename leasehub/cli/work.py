"""leasehub work: claims the tasks of a queue and runs a command for each of them, several at a time if wanted.

This process only claims and counts. A claim's whole life is in a child of its own (claimed.py), which dies with this
process and takes the command along; the task then returns by itself when its claim has run out.
"""

import contextlib
import os
import random
import shutil
import signal

from leasehub.cli import claimed, descendants, flags
from leasehub.cli.lease import outside_fence
from leasehub.cli.output import emit, say
from leasehub.cli.signals import ENDING, Signals
from leasehub.cli.supervision import Hold, release
from leasehub.client import credentials
from leasehub.client.acquiring import Once
from leasehub.client.clock import boot_clock
from leasehub.client.failures import Failure, Internal, Refused, Unreachable, Usage
from leasehub.client.heartbeat import LONGEST_WAIT_SECONDS
from leasehub.client.holder import own_holder
from leasehub.client.wire import TIMEOUT_SECONDS, Connection, Members, quoted

# How long a call waits at the server for a task. A signal has to wait for its answer, which may be a claim that is to
# be given back; and the server may give a task to a call whose process has been killed meanwhile.
CLAIM_WAIT_SECONDS = 5
PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 10.0
MOST_AT_ONCE = 100
# Refusals that are over sooner or later.
PASSING = ("IN_PROGRESS", "QUOTA_EXCEEDED")


def work(arguments: list[str]) -> int:
    given, command = _read(arguments)
    concurrency = flags.whole("concurrency", given.get("concurrency", "1"), least=1, most=MOST_AT_ONCE)
    body: dict[str, object] = {"queue": given["queue"]}
    wait_seconds, idle_seconds = CLAIM_WAIT_SECONDS, None
    if "ttl-seconds" in given:
        body["ttl_seconds"] = ttl_seconds = flags.whole("ttl-seconds", given["ttl-seconds"], least=1)
        # A claim's time is counted from when it was asked for.
        wait_seconds = min(wait_seconds, ttl_seconds // 4)
    if "wait-seconds" in given:
        idle_seconds = flags.whole("wait-seconds", given["wait-seconds"], most=86400)
        wait_seconds = min(wait_seconds, idle_seconds)
    if "until-empty" in given:
        wait_seconds = 0
    if shutil.which(command[0]) is None:
        raise Usage(f"{command[0]} cannot be started: there is no such command")
    known = credentials.find()
    body["holder"] = given.get("holder") or own_holder(known, Connection(known.url, known.token))
    claims = _Claims(known, {**body, "wait_seconds": wait_seconds}, wait_seconds)
    shift = _Shift(known, command, claims, concurrency, until_empty="until-empty" in given, idle_seconds=idle_seconds)
    return emit(shift.work())


def _read(arguments: list[str]) -> tuple[flags.Flags, list[str]]:
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    given = flags.read(
        "work",
        own,
        values=("queue", "concurrency", "ttl-seconds", "holder", "wait-seconds"),
        switches=("until-empty",),
    )
    given.required("queue")
    command = arguments[len(own) + 1 :]
    if not command or not command[0]:
        raise Usage("work needs a command, after --")
    return given, command


class _Claims:
    """One claim after another, from a server that may be away for a while once it has been there."""

    def __init__(self, known: credentials.Credentials, body: dict[str, object], wait_seconds: int) -> None:
        self.body = body
        self.wait_seconds = wait_seconds
        self.connection = Connection(known.url, known.token, timeout=TIMEOUT_SECONDS + wait_seconds)
        self._once = Once(self.connection, "/v1/leases/hot-claim")
        self._failures = 0
        self._was_there = False

    def next(self) -> tuple[Members, float] | None:
        """A claim and since when its time is counted; None when there is none or nobody to ask."""
        try:
            claim = self._once.ask(self.body)
        except (Refused, Unreachable) as failure:
            self._note(failure)
            return None
        self._failures, self._was_there = 0, True
        return (claim, self._once.since) if claim else None

    def _note(self, failure: Refused | Unreachable) -> None:
        if isinstance(failure, Refused) and failure.reason not in PASSING:
            raise outside_fence(failure)
        if not self._was_there:
            raise failure
        if not self._failures:
            say(f"no claim just now, it is tried again: {failure}")
        self._failures += 1

    def pause(self, elapsed: float) -> float:
        """How long to wait before asking again, after a call that took so long."""
        if self._failures:
            # Spread, so that a fleet does not return to a server that comes back in one moment.
            pause = min(PAUSE_SECONDS * 2.0 ** min(self._failures, 10), LONGEST_PAUSE_SECONDS)
            return float(pause * random.uniform(0.5, 1.0))
        # Also when so many wait at the server that this call was not let.
        return max(0.0, max(PAUSE_SECONDS, self.wait_seconds) - elapsed)


class _Shift:
    """From the first claim until the last child has ended."""

    def __init__(
        self,
        known: credentials.Credentials,
        command: list[str],
        claims: _Claims,
        concurrency: int,
        *,
        until_empty: bool,
        idle_seconds: float | None,
    ) -> None:
        self.known = known
        self.command = command
        self.claims = claims
        self.concurrency = concurrency
        self.until_empty = until_empty
        self.idle_seconds = idle_seconds
        self.idle_since = boot_clock()
        self.running: set[int] = set()
        self.counts = {"completed": 0, "failed": 0, "returned": 0, "lost": 0}
        # Why no more is claimed, other than a signal.
        self.failure: Failure | None = None
        self.signals = Signals(at_once=self._stop_children)
        # Wakes up who waits for a signal.
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def work(self) -> dict[str, object]:
        is_empty = False
        while not is_empty:
            self._look_at_children()
            stopping = bool(self.signals.received or self.failure)
            if stopping and not self.running:
                break
            if stopping or len(self.running) >= self.concurrency:
                self.claims.connection.close()
                self.signals.wait(LONGEST_WAIT_SECONDS)
            else:
                is_empty = self._claim_one()
        if self.failure:
            raise self.failure
        return {"ok": True, "code": "empty" if is_empty else "stopped", **self.counts}

    def _stop_children(self) -> None:
        """A signal has come. A child that gets a second one kills its command at once."""
        for pid in list(self.running):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def _look_at_children(self) -> None:
        for pid, status in descendants.reap().items():
            if pid in self.running and not os.WIFSTOPPED(status):
                self.running.discard(pid)
                self.idle_since = boot_clock()
                ended = os.waitstatus_to_exitcode(status)
                self.counts[claimed.COUNTED_AS.get(ended, "lost")] += 1
                if ended == claimed.CANNOT_START:
                    self.failure = Usage(f"{self.command[0]} cannot be started")

    def _claim_one(self) -> bool:
        """Claims a task and starts its child; after a pause when there was none. True when that is the end."""
        asked_at = boot_clock()
        try:
            found = self.claims.next()
            if found is None and not self.running and self._is_over():
                return True
        except Failure as failure:
            self.failure = failure
            return False
        if found is not None:
            self._start(*found)
        elif not self.signals.received:
            self.signals.wait(self.claims.pause(boot_clock() - asked_at))
        return False

    def _is_over(self) -> bool:
        if self.idle_seconds is not None and boot_clock() - self.idle_since >= self.idle_seconds:
            return True
        return self.until_empty and self._queue_is_empty()

    def _queue_is_empty(self) -> bool:
        """Nothing to be done, by whomever: what another has claimed may yet come back."""
        try:
            queue = self.claims.connection.call("GET", f"/v1/queues/{quoted(str(self.claims.body['queue']))}")
        except Unreachable:
            return False
        except Refused as refused:
            # Nothing was ever put into it.
            if refused.reason != "NOT_FOUND":
                raise
            return True
        return not (queue["ready"] or queue["delayed"] or queue["leased"])

    def _start(self, claim: Members, since: float) -> None:
        self.idle_since = boot_clock()
        held = Hold(claim, sent_at=since, ttl_seconds=self._ttl_seconds(claim))
        if self.signals.received or boot_clock() >= held.deadline.term_at:
            release(held, self.known)
            self.counts["returned"] += 1
            return
        environment, this = self._environment(claim), os.getpid()
        # A signal amid this would find the child not yet among those that are told of it.
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        try:
            pid = os.fork()
            if pid == 0:
                claimed.live(claim, held, self.known, self.command, environment, this)
            self.running.add(pid)
        except OSError as error:
            release(held, self.known)
            self.counts["returned"] += 1
            self.failure = Internal(f"cannot start a process: {error.strerror}")
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)

    def _ttl_seconds(self, claim: Members) -> float:
        return float(str(self.claims.body.get("ttl_seconds") or claim["expires_in_ms"] / 1000))

    def _environment(self, claim: Members) -> dict[str, str]:
        return {
            **os.environ,
            "LEASEHUB_TASK_ID": str(claim["task_id"]),
            "LEASEHUB_FENCING_TOKEN": str(claim["fencing_token"]),
            "LEASEHUB_LEASE_ID": str(claim["lease_id"]),
            "LEASEHUB_ATTEMPT": str(claim["attempt"]),
            "LEASEHUB_QUEUE": str(self.claims.body["queue"]),
            "LEASEHUB_HOLDER": str(self.claims.body["holder"]),
            "LEASEHUB_URL": self.known.url,
        }
