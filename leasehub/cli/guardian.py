"""The watcher process between `leasehub run` and its command.

It is the command's parent and adopts what the command leaves behind, so it can end all of it: when told to,
when the lease's deadline comes (even while `leasehub run` itself is stopped), and at once when `leasehub run`
is gone, however it went. Where the watcher itself is killed the kernel kills the command, and `leasehub run`,
which adopts in turn, ends the rest.
"""

import contextlib
import os
import signal
import socket
import threading
import time

from leasehub.cli import descendants
from leasehub.cli.signals import ENDING, readable
from leasehub.client.clock import boot_clock
from leasehub.client.heartbeat import LONGEST_WAIT_SECONDS, Deadline

# How long what the command has left running may take to end before it is killed.
LEFTOVER_SECONDS = 2.0
NEVER = float("inf")


class Guardian:
    """The handle that `leasehub run` has of its watcher. Start it before any thread."""

    def __init__(self, command: list[str], environment: dict[str, str], deadline: Deadline) -> None:
        # A copy of this process, threads not included: so there must be none yet.
        assert threading.active_count() == 1
        self.terminal = _has_terminal()
        descendants.adopt_orphans()
        self.channel, theirs = socket.socketpair()
        self._lock = threading.Lock()
        self._unread = b""
        self.pid = os.fork()
        if self.pid == 0:
            self.channel.close()
            _become_watcher(theirs, command, environment, deadline, self.terminal)
        theirs.close()

    def renew(self, deadline: Deadline) -> None:
        self._tell(f"until {deadline.term_at!r} {deadline.kill_at!r}")

    def stop(self, number: int, *, seconds: float) -> None:
        """Sends the signal; kills what is left after so many seconds."""
        self._tell(f"stop {int(number)} {seconds!r}")

    def go_on(self, group: int) -> None:
        """After a stop from the keyboard: gives the terminal back to the command and lets it continue."""
        _set_foreground(group)
        self._tell("continue")

    def _tell(self, line: str) -> None:
        # Two threads speak: the heartbeat's and the main one. That the watcher is gone is noticed by heard().
        with self._lock, contextlib.suppress(OSError):
            self.channel.sendall(line.encode() + b"\n")

    def heard(self) -> list[list[str]] | None:
        """What the watcher has said since, as lists of words; None when it is gone."""
        try:
            received = self.channel.recv(4096)
        except ConnectionResetError:
            received = b""
        if not received:
            return None
        *lines, self._unread = (self._unread + received).split(b"\n")
        return [line.decode().split() for line in lines]

    def dismiss(self) -> None:
        """Returns when it is gone, and with it, if this comes amid its work, the command."""
        self.channel.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def take_terminal(self) -> None:
        if self.terminal:
            _set_foreground(os.getpgrp())


def _become_watcher(
    channel: socket.socket,
    command: list[str],
    environment: dict[str, str],
    deadline: Deadline,
    terminal: bool,
) -> None:
    """Never returns: this is another process."""
    try:
        _Watcher(channel, deadline, terminal).watch(command, environment)
    finally:
        os._exit(1)


class _Watcher:
    def __init__(self, channel: socket.socket, deadline: Deadline, terminal: bool) -> None:
        self.channel = channel
        self.terminal = terminal
        self.term_at, self.kill_at = deadline.term_at, deadline.kill_at
        self.stop_at = NEVER
        self.terminated = False
        self.group: int | None = None
        self.status: int | None = None
        self.unread = b""

    def watch(self, command: list[str], environment: dict[str, str]) -> None:
        # Out of the group of `leasehub run`: what kills that whole group must leave somebody to clean up.
        os.setpgid(0, 0)
        descendants.adopt_orphans()
        wake, waking = os.pipe()
        os.set_blocking(waking, False)
        os.set_blocking(wake, False)
        self.group = self._start(command, environment)
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
        _leave_streams()
        while not self._ended():
            ready = readable(self._longest_wait(), wake, self.channel)
            if wake in ready:
                os.read(wake, 512)
            if self.channel in ready:
                self._listen()
            self._look_at_children()
            self._look_at_clock()
        os._exit(0)

    def _start(self, command: list[str], environment: dict[str, str]) -> int:
        failed, failing = os.pipe()
        watcher = os.getpid()
        pid = os.fork()
        if pid == 0:
            _become_command(command, environment, watcher, failing, self.terminal)
        os.close(failing)
        error = os.read(failed, 16)
        os.close(failed)
        if error:
            self._report(f"failed {error.decode()}")
            os._exit(0)
        return pid

    def _report(self, line: str) -> None:
        with contextlib.suppress(OSError):
            self.channel.sendall(line.encode() + b"\n")

    def _longest_wait(self) -> float:
        next_at = min(self.stop_at, self.kill_at if self.terminated else self.term_at)
        return max(0.0, min(LONGEST_WAIT_SECONDS, next_at - boot_clock()))

    def _listen(self) -> None:
        try:
            received = self.channel.recv(4096)
        except ConnectionResetError:
            received = b""
        if not received:
            # `leasehub run` is gone, and with it the heartbeats.
            descendants.kill_all(group=self._live_group())
            os._exit(0)
        *lines, self.unread = (self.unread + received).split(b"\n")
        for line in lines:
            self._obey(*line.decode().split())

    def _obey(self, verb: str, *words: str) -> None:
        if verb == "until":
            # A beat that got through too late saves nothing: the command has been told to end.
            if not self.terminated:
                self.term_at, self.kill_at = float(words[0]), float(words[1])
        elif verb == "stop":
            self._terminate(int(words[0]))
            self.stop_at = min(self.stop_at, boot_clock() + float(words[1]))
        elif verb == "continue" and self.group is not None:
            descendants.send(signal.SIGCONT, group=self._live_group(), pids=set())

    def _look_at_children(self) -> None:
        for pid, status in descendants.reap().items():
            if pid != self.group:
                continue
            if os.WIFSTOPPED(status):
                self._report(f"stopped {self.group}")
            else:
                self.status = status

    def _look_at_clock(self) -> None:
        now = boot_clock()
        if now >= self.term_at and not self.terminated:
            self._report("deadline")
            self._terminate(signal.SIGTERM)
        if now >= min(self.kill_at, self.stop_at):
            self._finish(descendants.kill_all(group=self._live_group()))

    def _ended(self) -> bool:
        """Whether the command and all that it started have; what the command has left is asked to end."""
        if self.status is None:
            return False
        left = descendants.living()
        if not left:
            self._finish(left)
        if self.stop_at == NEVER:
            self._terminate(signal.SIGTERM)
            self.stop_at = boot_clock() + LEFTOVER_SECONDS
        return False

    def _terminate(self, number: int) -> None:
        self.terminated = True
        pids = descendants.living() if number == signal.SIGTERM or self.status is not None else set()
        descendants.send(number, group=self._live_group(), pids=pids)
        # A stopped process would not see it.
        descendants.send(signal.SIGCONT, group=self._live_group(), pids=pids)

    def _live_group(self) -> int | None:
        """The command's process group, while its number cannot have become another's."""
        return self.group if self.status is None else None

    def _finish(self, survivors: set[int]) -> None:
        give_up = time.monotonic() + 1
        while self.status is None and time.monotonic() < give_up:
            self._look_at_children()
            time.sleep(0.001)
        status = 0 if self.status is None else self.status
        self._report(f"ended {status} {len(survivors)}")
        os._exit(0)


def _become_command(
    command: list[str], environment: dict[str, str], watcher: int, failing: int, terminal: bool
) -> None:
    """Never returns: the child between fork and exec."""
    try:
        os.setpgid(0, 0)
        descendants.die_with(watcher)
        if terminal:
            _set_foreground(os.getpid())
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            # Python ignores them, and ignoring is inherited.
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execvpe(command[0], command, environment)
    except OSError as error:
        os.write(failing, str(error.errno).encode())
    finally:
        os._exit(127)


def _leave_streams() -> None:
    """Lets go of the command's streams, so that who reads them sees their end with the command's."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)


def _has_terminal() -> bool:
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def _set_foreground(group: int) -> None:
    # A process in the background is stopped when it asks for this, unless it ignores the signal.
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.tcsetpgrp(0, group)
    signal.signal(signal.SIGTTOU, before)
