"""Signals that ask a long-running verb to end, kept until it looks at them."""

import os
import select

from leasehub.cli.output import emit, say
from leasehub.client.acquiring import release
from leasehub.client.failures import Conflict, Failure, Refused, Unreachable
from leasehub.client.patience import Patience

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from collections.abc import Callable, Iterable

    from leasehub.client.wire import Connection, Members
else:
    # signal.py would pull in enum, for `lease acquire` too.
    import _signal as signal

SIGINT = signal.SIGINT
ENDING = (SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
RELEASE_SECONDS = 3.0


class EndedBySignal(Failure):
    code = "interrupted"

    def __init__(self, number: int, when: str = "") -> None:
        super().__init__(f"ended by {_name(number)} {when}".rstrip())
        self.exit_status = 128 + number


def readable(seconds: float, *sources: "int | socket.socket") -> "list[int | socket.socket]":
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

    def wait(self, seconds: float, *also: "int | socket.socket") -> "list[int | socket.socket]":
        """Those of the others that have something to read; ends early when a signal arrives."""
        ready = readable(seconds, self._wake, *also)
        if self._wake in ready:
            os.read(self._wake, 512)
            ready.remove(self._wake)
        return ready


class Watchful(Patience):
    """Is over as soon as a signal has come."""

    def __init__(self, seconds: float, signals: Signals) -> None:
        super().__init__(seconds)
        self.signals = signals

    def left(self) -> float:
        return 0.0 if self.signals.received else super().left()

    def sleep(self, seconds: float) -> bool:
        left = self.left()
        if left <= 0:
            return False
        self.signals.wait(min(seconds, max(0.05, left)))
        return not self.signals.received


def interrupted(signals: Signals, when: str, *, is_silent: bool = False) -> int:
    """Says that a signal has ended the verb, on stdout unless it ``is_silent``; the exit status."""
    number = signals.received[0]
    message = f"ended by {_name(number)} {when}"
    say(message)
    if not is_silent:
        emit({"ok": False, "code": "interrupted", "message": message})
    return 128 + number


def _name(number: int) -> str:
    import signal

    return signal.Signals(number).name


def granted(ask: "Callable[[], Members]", connection: "Connection", signals: Signals, when: str) -> "Members":
    """What ``ask`` gets: a lease, claims, or nothing. Its answer is waited for whatever comes, since it may be a grant;
    when a signal has come by then nobody will use that, so it is given back and EndedBySignal raised."""
    try:
        answer = ask()
    except (Conflict, Unreachable) as failure:
        if not signals.received:
            raise
        if isinstance(failure, Unreachable) and failure.sent:
            say(f"what was granted unheard is left to run out: {failure}")
        raise EndedBySignal(signals.received[0], when) from None
    if signals.received:
        _give_back(connection, answer.get("claims", [answer] if answer else []))
        raise EndedBySignal(signals.received[0], when)
    return answer


def _give_back(connection: "Connection", leases: "Iterable[Members]") -> None:
    connection.close()
    connection.timeout = RELEASE_SECONDS
    for lease in leases:
        try:
            release(connection, str(lease["lease_id"]), int(lease["fencing_token"]))
        except Refused:
            # Ended already is as good as released.
            continue
        except Failure as failure:
            say(f"what was granted is left to run out: {failure}")
            return
