"""A place in a pool's queue, on the command line: what is said meanwhile, and signals that end the wait."""

import math
import os

from leasehub.cli import flags
from leasehub.cli.lease import plain, ttl_seconds
from leasehub.cli.output import say
from leasehub.cli.signals import Signals
from leasehub.client import ticket
from leasehub.client.failures import Refused, Unreachable, Usage
from leasehub.client.patience import Patience as Wait
from leasehub.client.ticket import LEAVE_ATTEMPTS, WaitOver
from leasehub.client.wire import Members

LONGEST_POLL_MS = 25_000
# Asked more often, one waiter alone would keep a server busy.
SHORTEST_POLL_MS = 50
DEFAULT_POLL_MS = "5000"


class Interrupted(Exception):
    """A signal came while the queue was waited in."""


class Ended(Exception):
    """The request came to another end than a grant; ``result`` says so."""

    def __init__(self, result: dict[str, object]) -> None:
        super().__init__(str(result.get("code") or result.get("state")))
        self.result = result


class Patience(Wait):
    """How long to wait, and how often to look: for ever when ``wait_ms`` is None."""

    def __init__(self, *, wait_ms: float | None, poll_ms: float) -> None:
        super().__init__(None if wait_ms is None else wait_ms / 1000)
        self.wait_ms = wait_ms
        self.poll_seconds = poll_ms / 1000


class Ticket(ticket.Ticket):
    _shown = ""

    def granted(self, patience: Patience, signals: Signals) -> Members:
        """The request once it is ready. Raises Ended, or Interrupted, or what the server refused: then it is left."""

        def interrupt() -> None:
            signals.at_once = _ignore
            raise Interrupted

        def begin() -> None:
            signals.at_once = interrupt
            if signals.received:
                interrupt()

        def end() -> None:
            signals.at_once = _ignore

        self.look_seconds = patience.poll_seconds
        try:
            self.settled(patience, begin=begin, end=end)
        except WaitOver:
            raise Ended(self._timeout(patience)) from None
        if self.view["state"] != "ready":
            raise Ended(self._lost_place() or ended(self.view))
        return self.view

    def queued(self) -> None:
        line = f"queue position {self.view['position']}, eta {eta(self.view['eta_ms'])}"
        if line != self._shown:
            say(line)
            self._shown = line

    def away(self, lost: Unreachable) -> None:
        say(f"the server is away, the place in the queue is kept for a while: {lost}")

    def not_left(self, attempt: int, lost: Unreachable) -> None:
        say(f"could not leave the queue (attempt {attempt} of {LEAVE_ATTEMPTS}): {lost}")

    def _lost_place(self) -> dict[str, object] | None:
        if self.view["state"] not in ("dropped", "cancelled"):
            return None
        result = ended(self.view)
        return {"ok": False, "code": "queue_entry_lost", "request_id": result["request_id"], "note": result["note"]}

    def _timeout(self, patience: Patience) -> dict[str, object]:
        return {
            "ok": False,
            "code": "timeout",
            "request_id": self.request_id,
            "position": self.view["position"],
            "etaMs": self.view["eta_ms"],
            "waitedMs": plain(patience.wait_ms or 0),
        }


def _ignore() -> None:
    """What has come is looked at later."""


def eta(eta_ms: float) -> str:
    return f"~{max(1, math.floor(eta_ms / 60_000 + 0.5))}m"


def patience_of(given: flags.Flags) -> Patience:
    wait_ms = None
    if "wait-ms" in given:
        wait_ms = flags.number("--wait-ms", given["wait-ms"])
        if not 0 <= wait_ms < math.inf:
            raise Usage(f"--wait-ms must be 0 or more, not {given['wait-ms']!r}")
    name, text = setting(given, "poll-ms", "POOL_POLL_MS", "E2E_LEASE_POLL_MS") or ("--poll-ms", DEFAULT_POLL_MS)
    poll_ms = flags.number(name, text)
    if not 0 < poll_ms <= LONGEST_POLL_MS:
        raise Usage(f"{name} must be above 0 and at most {LONGEST_POLL_MS}, not {text!r}")
    return Patience(wait_ms=wait_ms, poll_ms=max(poll_ms, SHORTEST_POLL_MS))


def ttl_seconds_of(given: flags.Flags) -> int | None:
    """None when it is the pool's own."""
    found = setting(given, "ttl", "POOL_TTL_MINUTES", "E2E_LEASE_TTL_MINUTES")
    return ttl_seconds(*found) if found else None


def setting(given: flags.Flags, flag: str, *variables: str) -> tuple[str, str] | None:
    """The flag, else the first variable that is set: what it is called, and its text."""
    if flag in given:
        return f"--{flag}", given[flag]
    return next(((name, os.environ[name]) for name in variables if os.environ.get(name)), None)


def saturated(refused: Refused) -> dict[str, object]:
    fields = refused.fields
    return {"ok": False, "code": "saturated", "position": fields.get("position"), "etaMs": fields.get("eta_ms")}


def ended(view: Members) -> dict[str, object]:
    """How a request ended that was not granted, or whose grant is gone."""
    state, request_id = view["state"], view["request_id"]
    if state in ("reset_failed", "health_failed", "lease_lost_during_reset"):
        return {
            "ok": False,
            "state": state,
            "request_id": request_id,
            "slot_id": view["slot_id"],
            "error": view["error"],
            "at": view["ended_at"],
        }
    note = f"{state} at {view['ended_at']}: {view['reason']}"
    if state == "lease_lost":
        return {"ok": False, "state": state, "request_id": request_id, "slot_id": view["slot_id"], "note": note}
    return {"ok": False, "state": state, "request_id": request_id, "note": note}
