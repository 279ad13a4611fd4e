"""What is held: a lease, a claim on a task, a slot of a pool. Each is kept alive from the background until it is given
back, and says so when it is lost."""

import os
import threading
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from leasehub.client import acquiring, slots
from leasehub.client.clock import boot_clock
from leasehub.client.failures import Failure, LeaseLost, Refused, Unreachable, Usage
from leasehub.client.heartbeat import LOST, Deadline, Kept
from leasehub.client.wire import Members, fresh_key, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from leasehub.client.hub import Hub

# What the server takes.
ERROR_CHARACTERS = 4000
PAUSE_SECONDS = 0.25


class Loss:
    """Whether a lease is lost: true in an ``if``, and to be waited for. It becomes true when the server says so, and
    at the latest a while before the lease can be anybody else's, by this machine's own clock. Once the lease was given
    back or detached it is true as well: there is nothing to rely on any more."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self._told = threading.Event()
        self._refused: Refused | None = None
        self._ending: LeaseLost | None = None

    def __bool__(self) -> bool:
        return self.is_set()

    def is_set(self) -> bool:
        # The clock too: the thread that beats may be held up, and in a forked process there is none.
        return self._told.is_set() or boot_clock() >= self._kept.deadline.term_at

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it is lost, or so many seconds; whether it is."""
        return self._told.wait(timeout) or self.is_set()

    def failure(self) -> LeaseLost:
        """The exception for it."""
        if self._ending is not None:
            return self._ending
        if self._refused is None:
            message = "The lease may be over: no heartbeat got through until its own deadline."
            return LeaseLost("LEASE_LOST", message, {})
        ended_by = self._refused.fields.get("ended_by")
        message = f"The lease is lost: {self._refused}" + (f" (ended by: {ended_by})" if ended_by else "")
        return LeaseLost("LEASE_LOST", message, dict(self._refused.fields))

    def _tell(self, refused: Refused | None) -> None:
        self._refused = refused
        self._told.set()

    def _end(self, message: str, ended_by: str | None = None) -> None:
        """It was ended from here, which is no loss to be told of; unless it was lost before."""
        if not self.is_set():
            self._ending = LeaseLost("LEASE_LOST", message, {} if ended_by is None else {"ended_by": ended_by})
        self._told.set()


class Held:
    """A lease of any kind. In a ``with`` it is given back at the end, and LeaseLost is raised there when it was lost
    meanwhile; without one, ``release`` gives it back. A process that is forked off neither keeps it alive nor gives
    it back."""

    def __init__(
        self,
        hub: "Hub",
        answer: Members,
        *,
        since: float,
        ttl_seconds: float,
        resource_type: str,
        resource_id: str,
        holder: str,
        on_lost: "Callable[[Any], None] | None" = None,
    ) -> None:
        self.resource_type = resource_type
        self.resource_id = resource_id
        self.holder = holder
        self.lease_id = str(answer["lease_id"])
        self.fencing_token = int(answer["fencing_token"])
        #: On the server's clock, when it was granted.
        self.expires_at = str(answer["expires_at"])
        self.ttl_seconds = ttl_seconds
        self._hub = hub
        self._on_lost = on_lost
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._over = False
        self._settling = False
        self._kept_from: Refused | None = None
        self._kept = Kept(
            lease_id=self.lease_id,
            fencing_token=self.fencing_token,
            ttl_seconds=ttl_seconds,
            deadline=Deadline(sent_at=since, seconds=min(ttl_seconds, answer["expires_in_ms"] / 1000)),
            on_lost=self._note_loss,
        )
        self.lost = Loss(self._kept)

    def __repr__(self) -> str:
        state = "over" if self._over else "lost" if self.lost else f"for {self.seconds_left:.0f} s"
        return f"<{type(self).__name__} {self.resource_type}/{self.resource_id} {self.lease_id} {state}>"

    @property
    def seconds_left(self) -> float:
        """For how long it may be relied on if no heartbeat gets through any more."""
        if self._over:
            return 0.0
        return max(0.0, self._kept.deadline.term_at - boot_clock())

    def check(self) -> None:
        """Raises LeaseLost when it is lost, given back or detached: for between the steps of the work."""
        if self.lost:
            raise self.lost.failure()

    def heartbeat(self) -> None:
        """Beats now, besides the background. Raises LeaseLost when it is held no more."""
        self._must_be_of_this_process()
        self.check()
        sent_at = boot_clock()
        path, body = f"/v1/leases/{self.lease_id}/heartbeat", {"fencing_token": self.fencing_token}
        try:
            with self._hub.connection() as connection:
                answer = connection.call("POST", path, body)
        except Refused as refused:
            raise self._lost_by(refused) from refused
        self._kept.renew(answer, sent_at)

    def release(self) -> bool:
        """Gives it back; False when it has been already, or when the server is away: then it runs out by itself.
        Raises LeaseLost when it had ended before."""
        if not self._close():
            return False
        lost = bool(self.lost)
        pauses = () if lost else acquiring.RELEASE_PAUSES
        try:
            with self._hub.connection() as connection:
                connection.timeout = min(connection.timeout, 3.0)
                acquiring.release(connection, self.lease_id, self.fencing_token, pauses=pauses)
        except Refused as refused:
            if not lost:
                raise self._lost_by(self._with_ending(refused)) from refused
        except Unreachable:
            if not lost:
                return False
        finally:
            self.lost._end("The lease was given back, or is left to run out.", "released")
        if lost:
            raise self.lost.failure()
        return True

    def detach(self) -> None:
        """Leaves it to whoever knows its token: it is neither kept alive nor given back from here any more."""
        if self._close():
            self.lost._end("The lease was detached: whether it is alive is not known here any more.")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except LeaseLost as lost:
            if value is None:
                raise
            _remark(value, lost)

    def _begin(self) -> None:
        self._hub.heartbeats.keep(self._kept)

    def _close(self) -> bool:
        """Whether it is for this call to close it: it was not closed before, and is not the parent process's."""
        if self._process != os.getpid():
            return False
        with self._lock:
            if self._over:
                return False
            self._over = True
        self._hub.heartbeats.drop(self._kept)
        return True

    def _must_be_of_this_process(self) -> None:
        if self._process != os.getpid():
            raise Usage("the lease is the parent process's; a forked process must take one of its own")

    def _note_loss(self, refused: Refused | None) -> None:
        """Called in the beating thread, or where a call was refused."""
        with self._lock:
            if self._over or self.lost._told.is_set():
                return
            if self._settling and refused is not None:
                # It may be our own word that ended it.
                self._kept_from = refused
                return
            self.lost._tell(refused)
        if self._on_lost is not None:
            # In a thread of its own: however long it takes, the other leases are beaten.
            threading.Thread(target=self._on_lost, args=(self,), name=f"loss of {self.lease_id}", daemon=True).start()

    def _with_ending(self, refused: Refused) -> Refused:
        """The server says no more of a lease that has ended than that it cannot be released."""
        if refused.reason != "NOT_FOUND":
            return refused
        with self._hub.connection() as connection:
            connection.timeout, connection.retry_seconds = min(connection.timeout, 3.0), None
            refused.fields = {**refused.fields, **acquiring.ending(connection, self.lease_id)}
        return refused

    def _lost_by(self, refused: Refused) -> Refused:
        if refused.reason not in LOST:
            return refused
        self._note_loss(refused)
        self._hub.heartbeats.drop(self._kept)
        self.lost._tell(refused)
        return self.lost.failure()


class Lease(Held):
    """A lease on a resource."""

    #: Whether it was taken over from a lease that ran out, and what that one was: half the work may have been done.
    took_over_expired: bool = False
    previous: Members | None = None


class Slot(Held):
    """A slot of a pool, clean and found healthy."""

    def __init__(self, hub: "Hub", pool: str, grant: Members, *, since: float, on_lost: Any) -> None:
        super().__init__(
            hub,
            grant,
            since=since,
            ttl_seconds=grant["ttl_minutes"] * 60,
            resource_type="slot",
            resource_id=slots.resource_id(pool, grant["slot_id"]),
            holder=str(grant["holder"]),
            on_lost=on_lost,
        )
        self.pool = pool
        self.slot_id: str | int | float = grant["slot_id"]
        self.attrs: Members = grant["attrs"]
        #: What the pool wants in the environment of whoever uses it.
        self.env: dict[str, str] = grant["env"]
        self.fields: Members = grant["grant_fields"]


class Claim(Held):
    """A claim on a task. In a ``with`` the task is completed when the block comes to its end, failed when it raises an
    Exception, and given back when it is interrupted, unless one of these was done in it."""

    def __init__(
        self, hub: "Hub", queue: str, claim: Members, *, since: float, ttl_seconds: float, holder: str, on_lost: Any
    ) -> None:
        super().__init__(
            hub,
            claim,
            since=since,
            ttl_seconds=ttl_seconds,
            resource_type="task",
            resource_id=str(claim["task_id"]),
            holder=holder,
            on_lost=on_lost,
        )
        self.queue = queue
        self.task_id = self.resource_id
        self.attempt = int(claim["attempt"])
        self.payload: Any = claim["payload"]

    def complete(self, result: object = None) -> None:
        """The task is done."""
        self._settle("complete", {} if result is None else {"result": result})

    def fail(self, error: str, *, retry_in: int | None = None, final: bool = False) -> None:
        """It is tried again after a while, or in ``retry_in`` seconds; not if ``final`` or its attempts are used up."""
        body: dict[str, object] = {"error": error, "final": final}
        if retry_in is not None:
            body["retry_in_seconds"] = retry_in
        self._settle("fail", body)

    def give_back(self) -> bool:
        """It is ready for another at once, unfinished."""
        return self.release()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._over or self._process != os.getpid():
            return
        try:
            if value is None:
                self.complete()
            elif isinstance(value, Exception):
                self.fail(_told(value))
            else:
                self.give_back()
        except LeaseLost as lost:
            if value is None:
                raise
            _remark(value, lost)
        except Failure as failure:
            if value is None:
                raise
            value.add_note(f"The task {self.task_id} could not be given back: {failure}")
        finally:
            if self._close():
                self.lost._end("The task could not be settled.")

    def _settle(self, verb: str, body: dict[str, object]) -> None:
        """Tells the server for as long as the claim lives; the heartbeats go on until it has been told."""
        self._must_be_of_this_process()
        if self._over:
            raise Usage(f"the task {self.task_id} has been settled already")
        self.check()
        with self._lock:
            self._settling = True
        path, key = f"/v1/tasks/{quoted(self.task_id)}/{verb}", fresh_key()
        try:
            while True:
                try:
                    with self._hub.connection() as connection:
                        connection.call("POST", path, {"fencing_token": self.fencing_token, **body}, key=key)
                    break
                except Unreachable as away:
                    if self.lost.wait(PAUSE_SECONDS):
                        raise self.lost.failure() from away
        except BaseException as failure:
            with self._lock:
                self._settling, refused_meanwhile = False, self._kept_from
            if isinstance(failure, Refused) and failure.reason in LOST:
                raise self._lost_by(failure) from failure
            if refused_meanwhile is not None:
                self._note_loss(refused_meanwhile)
            raise
        self._close()
        self.lost._end(f"The task has been settled: {verb}.", {"complete": "completed", "fail": "failed"}[verb])


def _told(value: Exception) -> str:
    text = "".join(traceback.format_exception(value)).replace("\0", "\ufffd")
    return text[-ERROR_CHARACTERS:].strip() or type(value).__name__


def _remark(value: BaseException, lost: LeaseLost) -> None:
    if not isinstance(value, LeaseLost):
        value.add_note(f"Besides, {str(lost)[:1].lower()}{str(lost)[1:]}")
