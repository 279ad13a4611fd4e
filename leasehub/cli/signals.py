"""Signals that ask a long-running verb to end, kept until it looks at them."""

import os
import select
import signal
import socket

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def readable(seconds: float, *sources: int | socket.socket) -> list[int | socket.socket]:
    return select.select(sources, [], [], seconds)[0]


class Signals:
    """One that was ignored when the process started (by nohup, say) stays ignored."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self._wake, waking = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(waking, False)
        for number in ENDING:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda number, frame: self.received.append(number))
        signal.set_wakeup_fd(waking, warn_on_full_buffer=False)

    def wait(self, seconds: float, *also: socket.socket) -> bool:
        """True when one of the sockets has something to read; ends early when a signal arrives."""
        ready = readable(seconds, self._wake, *also)
        if self._wake in ready:
            os.read(self._wake, 512)
        return any(one in ready for one in also)
