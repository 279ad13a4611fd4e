"""Asking for what is to be had once, a lease or a claim, and giving it back."""

import time

from leasehub.client.clock import boot_clock
from leasehub.client.failures import Conflict, Failure, NotFound, Unreachable
from leasehub.client.wire import fresh_key

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leasehub.client.patience import Patience
    from leasehub.client.wire import Connection, Members

POLL_SECONDS = 0.5
# Between the attempts to give a lease back.
RELEASE_PAUSES = (0.6, 0.3)


class Once:
    """A request that is to have one effect, sent under one key until it is answered.

    ``since`` is when it was first sent: the time of what it got is counted from then. A refusal is not remembered
    under the key, and an effect whose answer was lost is found again.
    """

    def __init__(self, connection: "Connection", path: str) -> None:
        self.connection = connection
        self.since = 0.0
        self._path = path
        self._lost_at: float | None = None
        self._pending: object = None
        self._key = fresh_key()
        self._answer: Members | None = None

    def ask(self, body: object) -> "Members":
        """The answer. While an earlier one is missing, what was asked then is asked again, whatever is given."""
        sent_at = boot_clock()
        if self._lost_at is None:
            self._pending = body
        self._answer = None
        try:
            self._answer = answer = self.connection.call("POST", self._path, self._pending, key=self._key)
        except Unreachable as lost:
            if lost.sent and self._lost_at is None:
                self._lost_at = sent_at
            raise
        self.since = sent_at if self._lost_at is None else self._lost_at
        self._lost_at, self._key = None, fresh_key()
        return answer

    def unheard(self) -> "Callable[[], Members] | None":
        """After an interruption: what answers with what it got all the same; None when it can have got nothing."""
        got = self._answer
        if got is not None:
            return lambda: got
        owed = self.connection.owed()
        if owed is not None:
            return owed.late_answer
        if self._lost_at is None and not self.connection.answers_lost:
            return None
        again = self.connection.another()
        return lambda: again.call("POST", self._path, self._pending, key=self._key)


def acquire(once: Once, body: object, patience: "Patience") -> "Members":
    """The lease. Raises Conflict or Unreachable once the wait is over, anything else at once."""
    while True:
        try:
            return once.ask(body)
        except (Conflict, Unreachable):
            if not patience.sleep(POLL_SECONDS):
                raise


def release(
    connection: "Connection",
    lease_id: str,
    fencing_token: int,
    *,
    pauses: "Sequence[float]" = RELEASE_PAUSES,
    failed: "Callable[[int, Unreachable], None]" = lambda attempt, lost: None,
) -> None:
    """Gives a lease back, in one attempt more than there are pauses. Raises Refused when it had ended already,
    Unreachable when it is left to run out."""
    path = f"/v1/leases/{lease_id}?fencing_token={fencing_token}"
    for attempt, pause in enumerate((*pauses, None), start=1):
        try:
            connection.call("DELETE", path, attempts=1)
            return
        except Unreachable as lost:
            failed(attempt, lost)
            if pause is None:
                raise
            time.sleep(pause)
        except NotFound:
            if not connection.answers_lost or not _was_released(connection, lease_id):
                raise
            return


def ending(connection: "Connection", lease_id: str) -> "Members":
    """How a lease ended, ``ended_by`` and ``ended_at``, as far as it can be learnt."""
    try:
        lease = connection.call("GET", f"/v1/leases/{lease_id}", attempts=1)
    except Failure:
        return {}
    return {name: lease[name] for name in ("ended_by", "ended_at") if lease.get(name)}


def _was_released(connection: "Connection", lease_id: str) -> bool:
    """Whether an earlier attempt ended it, whose answer was lost, and not somebody else."""
    return bool(ending(connection, lease_id).get("ended_by", "released") == "released")
