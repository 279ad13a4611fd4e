"""A place in a pool's queue: taken, kept by looking at it, and left at once when it is not wanted any more."""

import time
from collections.abc import Callable

from leasehub.client.clock import boot_clock
from leasehub.client.failures import Failure, InProgress, Internal, Unreachable
from leasehub.client.patience import FOR_EVER, Patience
from leasehub.client.wire import TIMEOUT_SECONDS, Connection, Members, fresh_key, quoted

WAITING = ("queued", "provisioning")
# The server drops who is silent for longer, unless the pool says otherwise.
OUTAGE_SECONDS = 90.0
PAUSE_SECONDS = 1.0
# A grant's time is counted from when the answer was asked for, so it must not have been waited for long.
FRESH_SECONDS = 0.5
LEAVE_ATTEMPTS = 3
# How long one look waits at the server.
LOOK_SECONDS = 5.0


class WaitOver(Exception):
    """The place in the queue was not reached within the wait, and is left."""


class Ticket:
    def __init__(
        self, connection: Connection, pool: str, body: dict[str, object], *, look_seconds: float = LOOK_SECONDS
    ) -> None:
        self.connection = connection
        self.body = body
        self.look_seconds = look_seconds
        self.view: Members = {}
        #: When the last answer was asked for.
        self.asked_at = 0.0
        self._path = f"/v1/pools/{quoted(pool)}/requests"
        # The same for as long as there is no answer, so that the request is made once.
        self._key = fresh_key()
        # It may have been made, and no answer says so.
        self._is_unheard = False

    @property
    def request_id(self) -> str:
        return str(self.view["request_id"])

    def queued(self) -> None:
        """Called with each view of a place that is still waited in."""

    def away(self, lost: Unreachable) -> None:
        """Called once for each time that the server is away."""

    def not_left(self, attempt: int, lost: Unreachable) -> None:
        """Called when the queue could not be left."""

    def ask(self) -> Members:
        self.asked_at = boot_clock()
        was_unheard, lost_before = self._is_unheard, self.connection.answers_lost
        # Whatever interrupts the call leaves it open.
        self._is_unheard = True
        try:
            self.view = self.connection.call("POST", self._path, self.body, key=self._key)
        except (InProgress, Internal):
            raise
        except Failure:
            self._is_unheard = was_unheard or self.connection.answers_lost > lost_before
            raise
        self._is_unheard = False
        return self.view

    def look(self, wait_seconds: int = 0) -> Members:
        self.connection.timeout = TIMEOUT_SECONDS + wait_seconds
        self.asked_at = boot_clock()
        path = f"{self._path}/{quoted(self.request_id)}?wait_seconds={wait_seconds}"
        self.view = self.connection.call("GET", path)
        return self.view

    def leave(self) -> Members | None:
        """Afterwards the request holds nothing: a place in the queue or a grant is given back."""
        if not self.view and not self._is_unheard:
            # It was refused, or never reached a server.
            return None
        self.connection.close()
        self.connection.timeout = 3.0
        self.connection.retry_seconds = None
        for attempt in range(1, LEAVE_ATTEMPTS + 1):
            try:
                if not self.view:
                    # Whether it was made is not known: asked again under its key, it is made once.
                    self.ask()
                return self.connection.call("DELETE", f"{self._path}/{quoted(self.request_id)}")
            except Unreachable as lost:
                self.not_left(attempt, lost)
                time.sleep(0.3 * (LEAVE_ATTEMPTS - attempt))
            except Failure:
                # It was never made, or is gone.
                return None
        return None

    def settled(
        self,
        patience: Patience,
        *,
        begin: Callable[[], None] = lambda: None,
        end: Callable[[], None] = lambda: None,
    ) -> Members:
        """The request once it waits no more. Raises WaitOver, or what the server refused: then it is left, as it is
        when anything comes between ``begin`` and ``end``."""
        try:
            begin()
            self.ask()
            while self.view["state"] in WAITING:
                self._wait(patience)
            if self.view["state"] == "ready" and boot_clock() - self.asked_at > FRESH_SECONDS:
                self.look()
            # Still within: what comes until then finds the grant given back.
            end()
        except BaseException:
            end()
            self.leave()
            raise
        return self.view

    def _wait(self, patience: Patience) -> None:
        left = patience.left()
        if self.view["state"] == "queued":
            self.queued()
            if left <= 0:
                raise WaitOver
        # A slot that is being made clean is ours, so its commands are waited for however long they take.
        seconds = min(self.look_seconds, left if left > 0 else FOR_EVER)
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
                    self.away(lost)
                told = True
            time.sleep(PAUSE_SECONDS)
