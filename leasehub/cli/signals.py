"""Signals that ask a long-running verb to end, kept until it looks at them."""

import os
import select
import signal
import socket

from leasehub.cli.output import emit, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def readable(seconds: float, *sources: int | socket.socket) -> list[int | socket.socket]:
    return select.select(sources, [], [], seconds)[0]


class Signals:
    """One that was ignored when the process started (by nohup, say) stays ignored. ``at_once`` is called as soon
    as one arrives, even amid a wait for the server, which goes on after it unless it raises."""

    def __init__(self, at_once: "Callable[[], None]" = lambda: None) -> None:
        self.received: list[int] = []
        self.at_once = at_once
        self._wake, waking = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(waking, False)
        for number in ENDING:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._receive)
        signal.set_wakeup_fd(waking, warn_on_full_buffer=False)

    def _receive(self, number: int, frame: object) -> None:
        self.received.append(number)
        self.at_once()

    def wait(self, seconds: float, *also: int | socket.socket) -> list[int | socket.socket]:
        """Those of the others that have something to read; ends early when a signal arrives."""
        ready = readable(seconds, self._wake, *also)
        if self._wake in ready:
            os.read(self._wake, 512)
            ready.remove(self._wake)
        return ready


def interrupted(signals: Signals, when: str, *, is_silent: bool = False) -> int:
    """Says that a signal has ended the verb, on stdout unless it ``is_silent``; the exit status."""
    number = signals.received[0]
    message = f"ended by {signal.Signals(number).name} {when}"
    say(message)
    if not is_silent:
        emit({"ok": False, "code": "interrupted", "message": message})
    return 128 + number
