"""The life of one claim of `leasehub work`, in a process of its own: its command, its heartbeats, how it ends."""

import os
import random
import signal
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from leasehub.cli import descendants
from leasehub.cli.guardian import Guardian
from leasehub.cli.output import say
from leasehub.cli.signals import ENDING, Signals
from leasehub.cli.streams import Head, Tail
from leasehub.cli.supervision import SIGNALLED_SECONDS, Hold, Supervision, release
from leasehub.client import credentials, jsontext
from leasehub.client.clock import boot_clock
from leasehub.client.failures import Failure, Refused, Usage
from leasehub.client.heartbeat import LOST
from leasehub.client.wire import Connection, Members, fresh_key, quoted

# What the server takes.
RESULT_BYTES = 64 * 1024
ERROR_CHARACTERS = 4000
LONGEST_PAUSE_SECONDS = 5.0

# The exit status says what became of the claim; any other means that the child itself came to grief.
COMPLETED, FAILED, RETURNED, GONE, CANNOT_START = range(10, 15)
COUNTED_AS = {COMPLETED: "completed", FAILED: "failed", RETURNED: "returned", GONE: "lost", CANNOT_START: "returned"}


def live(
    claim: Members,
    held: Hold,
    known: credentials.Credentials,
    command: list[str],
    environment: dict[str, str],
    parent: int,
) -> None:
    """Never returns: this is another process, forked with the ending signals blocked."""
    status = GONE
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signals = Signals()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        descendants.die_with(parent)
        # Ctrl-C is for `leasehub work`, which passes it on: it must not come twice.
        os.setpgid(0, 0)
        status = _Life(claim, held, known, signals).live(command, environment)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


class _Life:
    def __init__(self, claim: Members, held: Hold, known: credentials.Credentials, signals: Signals) -> None:
        self.task_id = str(claim["task_id"])
        self.payload = claim["payload"]
        self.held = held
        self.known = known
        self.signals = signals
        self.output = Head(RESULT_BYTES)
        self.errors = Tail(ERROR_CHARACTERS)

    def live(self, command: list[str], environment: dict[str, str]) -> int:
        try:
            with _streams(self.payload, self.output, self.errors):
                guardian = Guardian(command, environment, self.held.deadline)
        except BaseException:
            release(self.held, self.known)
            raise
        supervision = Supervision(self.held, self.known, guardian, self.signals, (self.output, self.errors))
        broken: Failure | None = None
        try:
            supervision.supervise()
        except Failure as failure:
            broken = failure
        finally:
            guardian.dismiss()
        if broken is not None:
            say(str(broken))
            return self._give_back(supervision)
        self.output.drain()
        self.errors.drain()
        return self._settle(supervision, command)

    def _settle(self, supervision: Supervision, command: list[str]) -> int:
        """What becomes of the task; the heartbeats go on until the server has been told."""
        supervision.warn_of_survivors()
        if supervision.lost is not None:
            return GONE
        if supervision.failed is not None:
            say(f"{command[0]}: {os.strerror(supervision.failed)}")
            self._give_back(supervision)
            return CANNOT_START
        if supervision.forwarded:
            return self._give_back(supervision)
        status = os.waitstatus_to_exitcode(supervision.status or 0)
        if status == 0:
            return COMPLETED if self._complete(supervision) else GONE
        return FAILED if self._tell(supervision, "fail", {"error": self._error(status)}) else GONE

    def _give_back(self, supervision: Supervision) -> int:
        supervision.stop_beating()
        # What could not be killed may still be at it: then the claim is left to run out.
        if not supervision.survivors:
            release(self.held, self.known)
        return RETURNED

    def _complete(self, supervision: Supervision) -> bool:
        if self.output.is_cut:
            say(f"task {self.task_id}: its result is cut to the first {RESULT_BYTES} bytes of stdout")
        for body in self._results():
            try:
                return self._tell(supervision, "complete", body)
            except Usage as wrong:
                say(f"task {self.task_id}: the server does not take its stdout as a result: {wrong}")
        return self._tell(supervision, "complete", {})

    def _results(self) -> Iterator[dict[str, object]]:
        """What stdout is taken for: JSON, or else the text; nothing when there is nothing."""
        text = self.output.text()
        if not text:
            return
        with suppress(ValueError, RecursionError):
            yield {"result": jsontext.parse(text.strip())}
        text = text.replace("\0", "\ufffd")
        while (size := len(jsontext.compact(text))) > RESULT_BYTES:
            text = text[: len(text) * RESULT_BYTES // size - 1]
        yield {"result": text}

    def _error(self, status: int) -> str:
        how = f"exit {status}" if status >= 0 else f"killed by {signal.Signals(-status).name}"
        tail = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in self.errors.text()).strip()
        return f"{how}\n{tail[-(ERROR_CHARACTERS - len(how) - 1) :]}" if tail else how

    def _tell(self, supervision: Supervision, verb: str, members: dict[str, object]) -> bool:
        """Tells the server how it went, for as long as the claim lives; False when it does not any more."""
        connection = Connection(self.known.url, self.known.token)
        path = f"/v1/tasks/{quoted(self.task_id)}/{verb}"
        body = {"fencing_token": self.held.fencing_token, **members}
        key, began, pause = fresh_key(), boot_clock(), 0.25
        while supervision.lost is None:
            try:
                connection.call("POST", path, body, key=key)
                return True
            except Usage:
                raise
            except Failure as failure:
                say(f"task {self.task_id}: could not {verb} it: {failure}")
                if isinstance(failure, Refused) and failure.reason in LOST:
                    return False
            finally:
                connection.close()
            if self.signals.received and boot_clock() - began > SIGNALLED_SECONDS:
                return False
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
            time.sleep(pause * random.uniform(0.5, 1.0))
        return False


@contextmanager
def _streams(payload: object, output: Head, errors: Tail) -> Iterator[None]:
    """While the command is started: the payload is its stdin, and what it writes comes to us."""
    own_errors = os.dup(2)
    # A file, because a pipe takes what nobody reads only up to its size.
    with tempfile.TemporaryFile() as file:
        file.write(jsontext.compact(payload) + b"\n")
        file.seek(0)
        os.dup2(file.fileno(), 0)
    os.dup2(output.writing, 1)
    os.dup2(errors.writing, 2)
    os.close(output.writing)
    os.close(errors.writing)
    try:
        yield
    finally:
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        os.dup2(own_errors, 2)
        os.close(null)
        os.close(own_errors)
