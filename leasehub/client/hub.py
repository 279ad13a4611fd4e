"""A server, and what can be asked of it."""

import math
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from leasehub.client import credentials
from leasehub.client.acquiring import Once, acquire
from leasehub.client.clock import boot_clock
from leasehub.client.events import Events
from leasehub.client.failures import Empty, Failure, GrantFailed, Internal, Saturated, Unreachable, Usage
from leasehub.client.handoffs import Checkpoints, Handoffs
from leasehub.client.heartbeat import Heartbeats
from leasehub.client.held import Claim, Held, Lease, Slot
from leasehub.client.holder import own_holder
from leasehub.client.patience import Patience
from leasehub.client.ticket import Ticket, WaitOver
from leasehub.client.unheard import giving_back
from leasehub.client.wire import TIMEOUT_SECONDS, Connection, Members, fresh_key, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl

RETRY_SECONDS = 15.0
MOST_IDLE = 8
# How long one call waits at the server for a task: whoever is stopped meanwhile has to wait for its answer.
CLAIM_WAIT_SECONDS = 5
CLAIM_TTL_SECONDS = 300
PAUSE_SECONDS = 0.5
# How often in a row a grant may turn out to have run out before its answer came.
MOST_STILLBORN = 3

Wait = float | Patience | None
Taken = TypeVar("Taken", bound=Held)


def connect(
    *,
    holder: str | None = None,
    timeout: float = TIMEOUT_SECONDS,
    retry_seconds: float = RETRY_SECONDS,
    tls: "ssl.SSLContext | None" = None,
) -> "Hub":
    """The server that the command line would talk to from here. Raises Usage when no credentials are found."""
    known = credentials.find()
    hub = Hub(known.url, known.token, holder=holder, timeout=timeout, retry_seconds=retry_seconds, tls=tls)
    hub.known = known
    return hub


class Hub:
    """One server, with one key. Threads may share it; a process that is forked off may go on using it.

    ``holder`` is by default one of this process alone. A call waits ``timeout`` seconds for its answer; what will pass
    (no answer, 429, 503) is waited out for ``retry_seconds``, without its effect being doubled. ``tls`` says which
    certificates are trusted where they are not the system's.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        holder: str | None = None,
        timeout: float = TIMEOUT_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
        tls: "ssl.SSLContext | None" = None,
    ) -> None:
        self.known = credentials.checked(url, token)
        self.timeout = timeout
        self.retry_seconds = retry_seconds
        self.handoffs = Handoffs(self)
        self.checkpoints = Checkpoints(self)
        self.events = Events(self)
        self._tls = tls
        self._given_holder = holder
        #: Beats all that this process holds of it.
        self.heartbeats = Heartbeats(Connection(self.known.url, self.known.token, tls=tls))
        self._start_over()
        _all.add(self)

    def _start_over(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._own_holder: str | None = None

    def _after_fork(self) -> None:
        """What is open to the server is the parent's; here only the copies of it are closed."""
        for connection in self._idle:
            connection.close()
        self._start_over()

    def __enter__(self) -> "Hub":
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes what is open to the server. What is held is kept alive until it is given back."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection for one caller at a time."""
        process = os.getpid()
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            connection = Connection(self.known.url, self.known.token, tls=self._tls)
        connection.close_if_broken()
        connection.timeout, connection.retry_seconds, connection.answers_lost = self.timeout, self.retry_seconds, 0
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        with self._lock:
            if len(self._idle) < MOST_IDLE and process == os.getpid():
                self._idle.append(connection)
                return
        connection.close()

    def call(self, method: str, path: str, body: object = None) -> Members:
        """Any call of the API: the data of its answer. A POST or PUT has one effect, however often it must be sent."""
        key = fresh_key() if method in ("POST", "PUT") else None
        with self.connection() as connection:
            return connection.call(method, path, body, key=key)

    @property
    def holder(self) -> str:
        """Who holds what is taken: a label of this process alone, unless one was given."""
        if self._given_holder is not None:
            return self._given_holder
        if self._own_holder is None:
            with self.connection() as connection:
                self._own_holder = own_holder(self.known, connection)
        return self._own_holder

    def whoami(self) -> Members:
        return self.call("GET", "/v1/whoami")

    def lease(
        self,
        resource_type: str,
        resource_id: str,
        *,
        ttl: int = 60,
        wait: Wait = 0.0,
        holder: str | None = None,
        purpose: str | None = None,
        payload: object = None,
        max_lifetime: int | None = None,
        on_lost: Callable[[Lease], None] | None = None,
    ) -> Lease:
        """Takes the resource and keeps it, ``ttl`` seconds at a time. Raises Conflict when another holds it and the
        ``wait`` (in seconds; None: as long as it takes) is over. ``on_lost`` is called in a thread of its own."""
        _check_ttl(ttl)
        holder = holder or self.holder
        body = _given(
            resource_type=resource_type,
            resource_id=resource_id,
            ttl_seconds=ttl,
            holder=holder,
            reacquire=False,
            purpose=purpose,
            payload=payload,
            max_lifetime_seconds=max_lifetime,
        )
        patience = patience_of(wait)
        with self.connection() as connection:
            once = Once(connection, "/v1/leases")

            def take() -> Lease:
                answer = acquire(once, body, patience)
                lease = Lease(
                    self,
                    answer,
                    since=once.since,
                    ttl_seconds=ttl,
                    resource_type=resource_type,
                    resource_id=resource_id,
                    holder=holder,
                    on_lost=on_lost,
                )
                lease.took_over_expired, lease.previous = bool(answer["took_over_expired"]), answer["previous"]
                return lease

            with giving_back(once):
                return _living(take)

    def claim(
        self,
        queue: str,
        *,
        ttl: int = CLAIM_TTL_SECONDS,
        wait: Wait = None,
        holder: str | None = None,
        on_lost: Callable[[Claim], None] | None = None,
    ) -> Claim:
        """Claims the next task, waiting for one as long as it takes, or so many seconds: then raises Empty."""
        _check_ttl(ttl)
        holder = holder or self.holder
        patience = patience_of(wait)
        with self.connection() as connection:
            once = Once(connection, "/v1/leases/hot-claim")
            waiting = _Claiming(once, _given(queue=queue, ttl_seconds=ttl, holder=holder), ttl, patience)

            def take() -> Claim:
                answer = waiting.next()
                return Claim(self, queue, answer, since=once.since, ttl_seconds=ttl, holder=holder, on_lost=on_lost)

            with giving_back(once):
                return _living(take)

    def put(
        self,
        queue: str,
        payload: object = None,
        *,
        priority: int | None = None,
        delay: int | None = None,
        max_attempts: int | None = None,
        dedupe_key: str | None = None,
    ) -> Members:
        """Puts a task into a queue: its ``task_id`` and ``state``, and ``deduplicated`` where it was there already."""
        body = _given(
            payload=payload,
            priority=priority,
            delay_seconds=delay,
            max_attempts=max_attempts,
            dedupe_key=dedupe_key,
        )
        return self.call("POST", f"/v1/queues/{quoted(queue)}/tasks", body)

    def put_all(self, queue: str, tasks: Sequence[Mapping[str, object]]) -> list[Members]:
        """Up to 1,000 of them, all or none; each as the API has it: ``{"payload": …, "priority": …}``."""
        if not all(isinstance(task, Mapping) for task in tasks):
            raise Usage('each task must be like {"payload": …, "priority": …}')
        answer = self.call("POST", f"/v1/queues/{quoted(queue)}/tasks", {"tasks": [dict(task) for task in tasks]})
        return list(answer["tasks"])

    def task(self, task_id: str) -> Members:
        return self.call("GET", f"/v1/tasks/{quoted(task_id)}")

    def slot(
        self,
        pool: str,
        *,
        ttl: int | None = None,
        wait: Wait = None,
        selector: Mapping[str, object] | None = None,
        holder: str | None = None,
        on_queued: Callable[[int, int], None] | None = None,
        on_lost: Callable[[Slot], None] | None = None,
    ) -> Slot:
        """A slot of a pool, waited for in its queue as long as it takes, or so many seconds: then, as for ``wait=0``
        at once, raises Saturated. The queue is left when anything interrupts the wait. ``on_queued`` is told the
        position and the ETA in milliseconds. Raises GrantFailed when the slot could not be made ready."""
        patience = patience_of(wait)
        body = _given(
            mode="blocking",
            holder=holder or self.holder,
            ttl_seconds=ttl,
            no_wait=patience.left() <= 0,
            selector=None if selector is None else dict(selector),
        )
        with self.connection() as connection:

            def take() -> Slot:
                ticket = _Ticket(connection, pool, body, on_queued)
                try:
                    view = ticket.settled(patience)
                except WaitOver:
                    fields = {name: ticket.view.get(name) for name in ("position", "eta_ms")}
                    raise Saturated("SATURATED", f"No slot of {pool} came within the wait.", fields) from None
                if view["state"] != "ready":
                    message = f"The request for a slot of {pool} ended: {view['state']}."
                    raise GrantFailed(message, {name: view.get(name) for name in ENDING})
                return Slot(self, pool, view["grants"][0], since=ticket.asked_at, on_lost=on_lost)

            return _living(take)

    def fence_check(self, resource_type: str, resource_id: str, fencing_token: int) -> bool:
        """Whether the token is the current one: for whatever wants to refuse a stale writer."""
        body = {"resource_type": resource_type, "resource_id": resource_id, "fencing_token": fencing_token}
        return bool(self.call("POST", "/v1/fence/check", body)["current"])

    def status(self, resource_type: str, resource_id: str) -> Members:
        """Whether the resource is free, held, or unknown (its lease ran out), as far as this key may see."""
        resource = f"resource_type={quoted(resource_type)}&resource_id={quoted(resource_id)}"
        return self.call("GET", f"/v1/leases/status?{resource}")

    def keep(
        self,
        answer: Members,
        *,
        since: float,
        ttl: int | None,
        resource_type: str,
        resource_id: str,
        holder: str,
        on_lost: Callable[[Held], None] | None = None,
    ) -> Held:
        """Keeps alive from here on what has been granted otherwise, as by accepting a handoff."""
        seconds = ttl or math.ceil(answer["expires_in_ms"] / 1000)
        held = Held(
            self,
            answer,
            since=since,
            ttl_seconds=seconds,
            resource_type=resource_type,
            resource_id=resource_id,
            holder=holder,
            on_lost=on_lost,
        )
        held._begin()
        return held


ENDING = ("state", "request_id", "slot_id", "error", "reason", "ended_at")


class _Ticket(Ticket):
    def __init__(
        self, connection: Connection, pool: str, body: Members, on_queued: Callable[[int, int], None] | None
    ) -> None:
        super().__init__(connection, pool, body)
        self._on_queued = on_queued

    def queued(self) -> None:
        if self._on_queued is not None:
            self._on_queued(self.view["position"], self.view["eta_ms"])


class _Claiming:
    def __init__(self, once: Once, body: Members, ttl: int, patience: Patience) -> None:
        self.once = once
        self.body = body
        self.patience = patience
        # A claim's time is counted from when it was asked for.
        self.longest = min(CLAIM_WAIT_SECONDS, max(0, ttl // 4))
        self.was_there = False

    def next(self) -> Members:
        while True:
            wait_seconds = max(0, min(self.longest, int(min(self.patience.left(), self.longest))))
            self.once.connection.timeout = TIMEOUT_SECONDS + wait_seconds
            began = boot_clock()
            try:
                claim = self.once.ask({**self.body, "wait_seconds": wait_seconds})
            except Unreachable:
                # A server that has been there may be away for as long as there is to wait.
                if not self.was_there or not self.patience.sleep(PAUSE_SECONDS):
                    raise
                continue
            if claim:
                return claim
            self.was_there = True
            # A part of a second is left, or so many wait at the server that this call could not.
            early = boot_clock() - began < wait_seconds or wait_seconds == 0
            if self.patience.left() <= 0 or (early and not self.patience.sleep(PAUSE_SECONDS)):
                raise Empty(f"there is nothing to claim in {self.body['queue']}")


def _living(take: Callable[[], Taken]) -> Taken:
    """What was taken, kept alive from here on. One that ran out before its answer came is taken again."""
    for _ in range(MOST_STILLBORN):
        taken = take()
        if not taken.lost:
            taken._begin()
            return taken
        try:
            taken.release()
        except Failure:
            continue
    raise Internal("what was granted had run out before the answer came, several times in a row")


def patience_of(wait: Wait) -> Patience:
    if wait is not None and not isinstance(wait, Patience):
        is_number = isinstance(wait, int | float) and not isinstance(wait, bool)
        if not is_number or math.isnan(wait):
            raise Usage(f"wait must be a number of seconds, or None for as long as it takes, not {wait!r}")
    return wait if isinstance(wait, Patience) else Patience(wait)


def _check_ttl(ttl: int) -> None:
    # What is done with it here needs a number; whether it is within bounds is for the server to say.
    if isinstance(ttl, bool) or not isinstance(ttl, int):
        raise Usage(f"ttl must be a whole number of seconds, not {ttl!r}")


def _given(**members: object) -> Members:
    return {name: value for name, value in members.items() if value is not None}


_all: "weakref.WeakSet[Hub]" = weakref.WeakSet()


def _after_fork() -> None:
    for hub in list(_all):
        hub._after_fork()


os.register_at_fork(after_in_child=_after_fork)
