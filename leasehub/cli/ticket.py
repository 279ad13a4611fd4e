"""A place in a pool's queue: taken, kept by looking at it, and left at once when it is not wanted any more."""

import math
import os
import time

from leasehub.cli import flags
from leasehub.cli.lease import plain, ttl_seconds
from leasehub.cli.output import say
from leasehub.cli.signals import Signals
from leasehub.client.failures import Failure, Refused, Unreachable, Usage
from leasehub.client.heartbeat import boot_clock
from leasehub.client.wire import TIMEOUT_SECONDS, Connection, Members, fresh_key, quoted

WAITING = ("queued", "provisioning")
LONGEST_POLL_MS = 25_000
DEFAULT_POLL_MS = "5000"
# The server drops who is silent for longer, unless the pool says otherwise.
OUTAGE_SECONDS = 90.0
PAUSE_SECONDS = 1.0
# A grant's time is counted from when the answer was asked for, so it must not have been waited for long.
FRESH_SECONDS = 0.5
LEAVE_ATTEMPTS = 3


class Interrupted(Exception):
    """A signal came while the queue was waited in."""


class Ended(Exception):
    """The request came to another end than a grant; ``result`` says so."""

    def __init__(self, result: dict[str, object]) -> None:
        super().__init__(str(result.get("code") or result.get("state")))
        self.result = result


class Patience:
    """How long to wait, and how often to look: for ever when ``wait_ms`` is None."""

    def __init__(self, *, wait_ms: float | None, poll_ms: float) -> None:
        self.wait_ms = wait_ms
        self.poll_seconds = poll_ms / 1000
        self.give_up = math.inf if wait_ms is None else boot_clock() + wait_ms / 1000

    def left(self) -> float:
        return self.give_up - boot_clock()


class Ticket:
    def __init__(self, connection: Connection, pool: str, body: dict[str, object]) -> None:
        self.connection = connection
        self.body = body
        self.view: Members = {}
        #: When the last answer was asked for.
        self.asked_at = 0.0
        self._path = f"/v1/pools/{quoted(pool)}/requests"
        # The same for as long as there is no answer, so that the request is made once.
        self._key = fresh_key()
        self._shown = ""

    @property
    def request_id(self) -> str:
        return str(self.view["request_id"])

    def ask(self) -> Members:
        self.asked_at = boot_clock()
        self.view = self.connection.call("POST", self._path, self.body, key=self._key)
        return self.view

    def look(self, wait_seconds: int = 0) -> Members:
        self.connection.timeout = TIMEOUT_SECONDS + wait_seconds
        self.asked_at = boot_clock()
        path = f"{self._path}/{quoted(self.request_id)}?wait_seconds={wait_seconds}"
        self.view = self.connection.call("GET", path)
        return self.view

    def leave(self) -> Members | None:
        """Afterwards the request holds nothing: a place in the queue or a grant is given back."""
        self.connection.close()
        self.connection.timeout = 3.0
        for attempt in range(1, LEAVE_ATTEMPTS + 1):
            try:
                if not self.view:
                    # Whether it was made is not known: asked again under its key, it is made once.
                    self.ask()
                return self.connection.call("DELETE", f"{self._path}/{quoted(self.request_id)}")
            except Unreachable as reason:
                say(f"could not leave the queue (attempt {attempt} of {LEAVE_ATTEMPTS}): {reason}")
                time.sleep(0.3 * (LEAVE_ATTEMPTS - attempt))
            except Failure:
                # It was never made, or is gone.
                return None
        return None

    def granted(self, patience: Patience, signals: Signals) -> Members:
        """The request once it is ready. Raises Ended, or Interrupted, or what the server refused: then it is left."""

        def interrupt() -> None:
            signals.at_once = _ignore
            raise Interrupted

        try:
            signals.at_once = interrupt
            if signals.received:
                interrupt()
            self.ask()
            while self.view["state"] in WAITING:
                self._wait(patience)
            if self.view["state"] == "ready" and boot_clock() - self.asked_at > FRESH_SECONDS:
                self.look()
            # Still within: what comes until then finds the grant given back.
            signals.at_once = _ignore
        except BaseException:
            signals.at_once = _ignore
            self.leave()
            raise
        if self.view["state"] != "ready":
            raise Ended(self._lost_place() or ended(self.view))
        return self.view

    def _wait(self, patience: Patience) -> None:
        left = patience.left()
        if self.view["state"] == "queued":
            self._show()
            if left <= 0:
                raise Ended(self._timeout(patience))
        # A slot that is being made clean is ours, so its commands are waited for however long they take.
        seconds = min(patience.poll_seconds, left if left > 0 else math.inf)
        began = boot_clock()
        self._look_through_outages(int(seconds), patience)
        early = seconds - (boot_clock() - began)
        if self.view["state"] in WAITING and early > 0:
            # A part of a second, or so many wait at the server that this call could not.
            time.sleep(min(early, PAUSE_SECONDS))

    def _look_through_outages(self, wait_seconds: int, patience: Patience) -> None:
        began = boot_clock()
        told = False
        while True:
            try:
                self.look(wait_seconds)
                return
            except Unreachable as lost:
                if patience.left() <= 0 or boot_clock() - began > OUTAGE_SECONDS:
                    raise
                if not told:
                    say(f"the server is away, the place in the queue is kept for a while: {lost}")
                told = True
            time.sleep(PAUSE_SECONDS)

    def _show(self) -> None:
        line = f"queue position {self.view['position']}, eta {eta(self.view['eta_ms'])}"
        if line != self._shown:
            say(line)
            self._shown = line

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
    return Patience(wait_ms=wait_ms, poll_ms=poll_ms)


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
