"""Every process below this one: finding, adopting and ending them. Finding needs Linux's /proc."""

import contextlib
import ctypes
import os
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

# Loaded before any fork, because a child between fork and exec should do as little as it can.
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def adopt_orphans() -> None:
    """Makes this process the parent of whatever below it loses its own, however it has daemonized."""
    if _libc is not None:
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with(parent: int) -> None:
    """In a child: the kernel kills it when its parent dies."""
    if _libc is not None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The parent died before the kernel was told.
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def living() -> set[int]:
    """The processes below this one that have not ended."""
    below: set[int] = set()
    children = _children()
    left = [os.getpid()]
    while left:
        for pid in children.get(left.pop(), ()):
            below.add(pid)
            left.append(pid)
    return below


def _children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    names = os.listdir("/proc") if os.path.isdir("/proc/self") else []
    for name in filter(str.isdigit, names):
        # It may end at any moment.
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:
            # The name in brackets may itself hold brackets and blanks.
            state, parent = stat.read().rpartition(b") ")[2].split()[:2]
            if state not in (b"Z", b"X"):
                found.setdefault(int(parent), []).append(int(name))
    return found


def send(number: int, *, group: int | None, pids: set[int]) -> None:
    if group is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill_all(*, group: int | None, seconds: float = 5.0) -> set[int]:
    """Ends them all, and those that they start meanwhile; returns those that would not die."""
    give_up = time.monotonic() + seconds
    while True:
        pids = living()
        send(signal.SIGKILL, group=group, pids=pids)
        reap()
        # Once the group's leader is reaped, its number may become another's.
        group = None
        if not pids or time.monotonic() > give_up:
            return pids
        time.sleep(0.005)


def reap() -> dict[int, int]:
    """The wait statuses of the children that have ended."""
    ended: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while (waited := os.waitpid(-1, os.WNOHANG | os.WUNTRACED))[0]:
            ended[waited[0]] = waited[1]
    return ended
