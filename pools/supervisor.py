"""Runs one command and leaves nothing of it behind. Standard library alone; started by pools.worker, one a command.

On stdin comes one line of JSON, {"argv", "cwd", "env", "input", "timeout_ms"}; then stdin stays open for as long as
the command is wanted: when it closes, because the worker closes it or is dead, the command ends. On stdout goes one
line of JSON: how it ended and the head and tail of its output.

This process is a subreaper: whatever the command starts, however it detaches itself, stays below it, and is killed
when the command itself has ended, has run out of time or is not wanted any more.
"""

import ctypes
import json
import os
import re
import resource
import select
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

HEAD_BYTES = TAIL_BYTES = 32 * 1024
CHUNK_BYTES = 64 * 1024
POLL_SECONDS = 0.05
#: Between being asked to end and being made to.
TERM_SECONDS = 1.5
#: How long the killing may take: a process in the middle of a system call may be slow to go.
KILL_SECONDS = 4.0
DRAIN_SECONDS = 0.5
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours and cursor
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\)"  # titles, links and other strings
    r"|\x1b[ -/]*[0-~]",
    re.DOTALL,
)
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Output:
    """The first and the last bytes of a stream that may be endless."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self.omitted = 0

    def add(self, chunk: bytes) -> None:
        room = HEAD_BYTES - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        self._tail += chunk
        surplus = len(self._tail) - TAIL_BYTES
        if surplus > 0:
            del self._tail[:surplus]
            self.omitted += surplus

    def text(self) -> str:
        if not self.omitted:
            return legible(bytes(self._head + self._tail))
        return f"{legible(bytes(self._head))}\n[… {self.omitted} bytes left out …]\n{legible(bytes(self._tail))}"


def legible(output: bytes) -> str:
    """Text that a terminal, a page and a database can show: no escape sequences, no control characters."""
    text = output.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROLS.sub("", _ESCAPES.sub("", text))


class Supervision:
    def __init__(self, wanted: Mapping[str, Any]) -> None:
        self._wanted = wanted
        self._output = Output()
        self._main = -1
        #: As waitpid gave it; None while the command runs.
        self._status: int | None = None
        self._reader = -1

    def run(self) -> dict[str, Any]:
        start = time.monotonic()
        deadline = start + self._wanted["timeout_ms"] / 1000
        ended = "exited"
        try:
            self._start()
            ended = self._watch(deadline)
        except OSError as error:
            return self._report(start, "cannot_start", f"{type(error).__name__}: {error}")
        if ended != "exited":
            self._ask_to_end()
        self._kill_everything()
        self._drain()
        return self._report(start, ended, "")

    def _start(self) -> None:
        self._reader, writer = os.pipe()
        problem_reader, problem_writer = os.pipe()
        stdin = self._stdin()
        self._main = os.fork()
        if self._main == 0:
            self._become_command(stdin, writer, problem_writer)
        os.close(writer)
        os.close(problem_writer)
        os.close(stdin)
        problem = b""
        # Closed by exec: an empty answer means that the command runs.
        while chunk := os.read(problem_reader, 4096):
            problem += chunk
        os.close(problem_reader)
        if problem:
            raise OSError(problem.decode("utf-8", "replace"))
        os.set_blocking(self._reader, False)

    def _stdin(self) -> int:
        text = self._wanted.get("input")
        if text is None:
            return os.open(os.devnull, os.O_RDONLY)
        file = os.memfd_create("stdin")
        rest = text.encode("utf-8", "replace")
        while rest:
            rest = rest[os.write(file, rest) :]
        os.lseek(file, 0, os.SEEK_SET)
        return file

    def _become_command(self, stdin: int, writer: int, problem: int) -> None:
        try:
            os.setsid()
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            os.dup2(stdin, 0)
            os.dup2(writer, 1)
            os.dup2(writer, 2)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.chdir(self._wanted["cwd"])
            os.execve("/bin/sh", self._wanted["argv"], self._wanted["env"])
        except BaseException as error:
            os.write(problem, f"{error}".encode("utf-8", "replace")[:4000])
        finally:
            os._exit(127)

    def _watch(self, deadline: float) -> str:
        """Until the command has ended (exited), ran out of time (timed_out) or is not wanted (stopped)."""
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        poll.register(0, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll(POLL_SECONDS * 1000):
                if descriptor == 0 and not os.read(0, CHUNK_BYTES):
                    return "stopped"
                if descriptor == self._reader and not self._read():
                    poll.unregister(self._reader)
            self._reap()
            if self._status is not None:
                return "exited"
            if time.monotonic() >= deadline:
                return "timed_out"

    def _read(self) -> bool:
        """Whether there may be more."""
        try:
            chunk = os.read(self._reader, CHUNK_BYTES)
        except BlockingIOError:
            return True
        self._output.add(chunk)
        return bool(chunk)

    def _reap(self) -> bool:
        """Collects what has ended; whether any process is left below this one."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._main:
                self._status = status

    def _ask_to_end(self) -> None:
        end = time.monotonic() + TERM_SECONDS
        for pid in descendants():
            send(pid, signal.SIGTERM)
        while self._reap() and time.monotonic() < end:
            self._read_what_is_there()
            time.sleep(POLL_SECONDS)

    def _kill_everything(self) -> None:
        """Again and again: what is killed may have started others meanwhile, and orphans arrive here."""
        end = time.monotonic() + KILL_SECONDS
        while self._reap() and time.monotonic() < end:
            below = descendants()
            # Stopped first, so that nothing starts anything new while the list is gone through.
            for pid in below:
                send(pid, signal.SIGSTOP)
            for pid in below:
                send(pid, signal.SIGKILL)
            self._read_what_is_there()
            time.sleep(0.002)

    def _read_what_is_there(self) -> None:
        # Some of it: who writes as fast as this reads would keep it here.
        for _ in range(16):
            try:
                chunk = os.read(self._reader, CHUNK_BYTES)
            except BlockingIOError:
                return
            if not chunk:
                return
            self._output.add(chunk)

    def _drain(self) -> None:
        """What was written before the end; not for ever, since the pipe could have been passed outside."""
        end = time.monotonic() + DRAIN_SECONDS
        while time.monotonic() < end:
            try:
                chunk = os.read(self._reader, CHUNK_BYTES)
            except BlockingIOError:
                return
            if not chunk:
                return
            self._output.add(chunk)

    def _report(self, start: float, ended: str, problem: str) -> dict[str, Any]:
        status = self._status
        return {
            "ended": ended,
            "problem": problem,
            "exit_status": os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else None,
            "signal": os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None,
            "took_ms": round((time.monotonic() - start) * 1000),
            "output": self._output.text(),
            "omitted_bytes": self._output.omitted,
            "left_behind": len(descendants()),
        }


def descendants() -> list[int]:
    """Every process below this one."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := _stat(name)) is not None:
            parents[int(name)] = stat
    found: list[int] = []
    level = {os.getpid()}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level}
        found.extend(level)
    return found


def _stat(pid: str) -> int | None:
    """The parent of a process that is not a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] == b"Z" else int(fields[1])


def send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def first_line() -> bytes:
    """All that is ever sent."""
    line = b""
    while not line.endswith(b"\n"):
        chunk = os.read(0, CHUNK_BYTES)
        if not chunk:
            sys.exit(0)
        line += chunk
    return line


def main() -> None:
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    # The end of the worker's thread or process closes stdin too; this is for when a child kept it open.
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def closed(number: int, frame: object) -> None:
        # As if stdin had been closed: the loop sees it at its next look.
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    signal.signal(signal.SIGTERM, closed)
    wanted = json.loads(first_line())
    answer = json.dumps(Supervision(wanted).run()).encode() + b"\n"
    try:
        while answer:
            answer = answer[os.write(1, answer) :]
    except BrokenPipeError:
        # The worker is gone; what it started is too.
        return


if __name__ == "__main__":
    main()
