"""The client for asyncio: the same names, awaited.

    hub = leasehub.client.aio.connect()
    async with hub.lease("deploy", "checkout", ttl=60) as lease:
        await deploy(token=lease.fencing_token)

Threads underneath do what the client does. A call that is cancelled gives back what it gets after all: the lease, the
claim, the place in the queue.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from threading import Event, Lock
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from leasehub.client import handoffs, held, hub
from leasehub.client.failures import Failure
from leasehub.client.held import Loss
from leasehub.client.hub import CLAIM_TTL_SECONDS, RETRY_SECONDS
from leasehub.client.patience import Patience
from leasehub.client.wire import TIMEOUT_SECONDS, Members

# Each call takes a thread. Those that wait for something have theirs, so that however many wait, what ends their wait
# gets through: the other calls, and those that give back.
MOST_WAITING = 64
MOST_CALLING = 32
MOST_GIVING_BACK = 16

Result = TypeVar("Result")


def connect(
    *,
    holder: str | None = None,
    timeout: float = TIMEOUT_SECONDS,
    retry_seconds: float = RETRY_SECONDS,
    tls: ssl.SSLContext | None = None,
) -> "Hub":
    return Hub(hub=hub.connect(holder=holder, timeout=timeout, retry_seconds=retry_seconds, tls=tls))


class Undone(Generic[Result]):
    """A function whose result is undone when nobody wants it any more: in its own thread when that comes first."""

    def __init__(self, function: Callable[[], Result], undo: Callable[[Result], object]) -> None:
        self._function = function
        self._undo = undo
        self._lock = Lock()
        self._unwanted = False
        self._results: list[Result] = []

    def __call__(self) -> Result:
        result = self._function()
        with self._lock:
            unwanted = self._unwanted
            self._results.append(result)
        if unwanted:
            self.undo()
        return result

    def is_there_unwanted(self) -> bool:
        """Nobody wants it any more: whether it is there already, and is to be undone by the caller."""
        with self._lock:
            self._unwanted = True
            return bool(self._results)

    def undo(self) -> None:
        with suppress(Failure):
            self._undo(self._results[0])


class Coming(Generic[Result]):
    """What is to be awaited, or entered with ``async with``."""

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, Result]]) -> None:
        self._begin = begin

    def __await__(self) -> Generator[Any, None, Result]:
        return self._begin().__await__()

    async def __aenter__(self) -> Result:
        entered = await self._begin()
        self._entered: Any = entered
        return entered

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._entered.__aexit__(kind, value, trace)


class Held:
    """See leasehub.client.Held."""

    resource_type: str
    resource_id: str
    holder: str
    lease_id: str
    fencing_token: int
    expires_at: str
    ttl_seconds: float
    lost: Loss
    seconds_left: float
    check: Callable[[], None]
    detach: Callable[[], None]

    def __init__(self, hub: "Hub", held: held.Held) -> None:
        self._hub = hub
        self._held = held

    def __getattr__(self, name: str) -> Any:
        return getattr(self._held, name)

    def __repr__(self) -> str:
        return repr(self._held)

    async def heartbeat(self) -> None:
        await self._hub.run_now(self._held.heartbeat)

    async def release(self) -> bool:
        return await self._hub.run_now(self._held.release)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._hub.run_now(partial(self._held.__exit__, kind, value, trace))


class Lease(Held):
    took_over_expired: bool
    previous: Members | None


class Slot(Held):
    pool: str
    slot_id: str | int | float
    attrs: Members
    env: dict[str, str]
    fields: Members


class Claim(Held):
    queue: str
    task_id: str
    attempt: int
    payload: Any
    _held: held.Claim

    async def complete(self, result: object = None) -> None:
        await self._hub.run_now(partial(self._held.complete, result))

    async def fail(self, error: str, *, retry_in: int | None = None, final: bool = False) -> None:
        await self._hub.run_now(partial(self._held.fail, error, retry_in=retry_in, final=final))

    async def give_back(self) -> bool:
        return await self._hub.run_now(self._held.give_back)


class Accepted:
    def __init__(self, hub: "Hub", accepted: handoffs.Accepted) -> None:
        self._hub = hub
        self._accepted = accepted
        self.handoff_id = accepted.handoff_id
        self.leases = [Held(hub, lease) for lease in accepted.leases]
        self.lost = accepted.lost
        self.state_drift = accepted.state_drift

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._hub.run_now(partial(self._accepted.__exit__, kind, value, trace))


class Hub:
    """See leasehub.client.Hub. ``on_lost`` is called in the event loop."""

    def __init__(
        self,
        url: str = "",
        token: str = "",
        *,
        hub: hub.Hub | None = None,
        holder: str | None = None,
        timeout: float = TIMEOUT_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.hub = hub or _hub(url, token, holder=holder, timeout=timeout, retry_seconds=retry_seconds, tls=tls)
        self.handoffs = Handoffs(self)
        self.checkpoints = Checkpoints(self)
        self.events = Events(self)
        self._waiting = ThreadPoolExecutor(MOST_WAITING, thread_name_prefix="leasehub waiting")
        self._calling = ThreadPoolExecutor(MOST_CALLING, thread_name_prefix="leasehub")
        self._giving_back = ThreadPoolExecutor(MOST_GIVING_BACK, thread_name_prefix="leasehub giving back")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Waits for what is still to be given back of calls that were cancelled."""
        for threads in (self._waiting, self._calling, self._giving_back):
            await asyncio.to_thread(threads.shutdown)
        self.hub.close()

    async def run(self, function: Callable[[], Result], undo: Callable[[Result], object] | None = None) -> Result:
        """Calls it in a thread. When that is cancelled, what it gets after all is undone."""
        return await self._run(self._calling, function, undo)

    async def run_now(self, function: Callable[[], Result]) -> Result:
        """The same for what keeps or gives back: it waits for no other call."""
        return await self._run(self._giving_back, function)

    async def wait(self, function: Callable[[], Result]) -> Result:
        """The same for what waits for something to happen."""
        return await self._run(self._waiting, function)

    async def _run(
        self,
        threads: ThreadPoolExecutor,
        function: Callable[[], Result],
        undo: Callable[[Result], object] | None = None,
    ) -> Result:
        undone = None if undo is None else Undone(function, undo)
        future = threads.submit(undone or function)
        awaited = asyncio.wrap_future(future)
        try:
            return await asyncio.shield(awaited)
        except asyncio.CancelledError:
            # Nobody looks at what becomes of it any more.
            awaited.add_done_callback(lambda done: done.cancelled() or done.exception())
            if undone is not None and not future.cancel() and undone.is_there_unwanted():
                self._giving_back.submit(undone.undo)
            raise

    async def _take(
        self, wait: float | None, function: Callable[[Patience], Result], undo: Callable[[Result], object]
    ) -> Result:
        """The same, for what may be waited for; a wait that is cancelled is over."""
        patience = Patience(hub.patience_of(wait).seconds, Event())
        try:
            return await self._run(self._calling if wait == 0 else self._waiting, partial(function, patience), undo)
        except asyncio.CancelledError:
            patience.stop()
            raise

    async def call(self, method: str, path: str, body: object = None) -> Members:
        return await self.run(partial(self.hub.call, method, path, body))

    async def whoami(self) -> Members:
        return await self.run(self.hub.whoami)

    def lease(
        self,
        resource_type: str,
        resource_id: str,
        *,
        ttl: int = 60,
        wait: float | None = 0.0,
        holder: str | None = None,
        purpose: str | None = None,
        payload: object = None,
        max_lifetime: int | None = None,
        on_lost: Callable[[Lease], None] | None = None,
    ) -> Coming[Lease]:
        async def begin() -> Lease:
            def take(patience: Patience) -> held.Lease:
                return self.hub.lease(
                    resource_type,
                    resource_id,
                    ttl=ttl,
                    wait=patience,
                    holder=holder,
                    purpose=purpose,
                    payload=payload,
                    max_lifetime=max_lifetime,
                    on_lost=told,
                )

            told = self._told(on_lost, Lease)
            return Lease(self, await self._take(wait, take, held.Held.release))

        return Coming(begin)

    def claim(
        self,
        queue: str,
        *,
        ttl: int = CLAIM_TTL_SECONDS,
        wait: float | None = None,
        holder: str | None = None,
        on_lost: Callable[[Claim], None] | None = None,
    ) -> Coming[Claim]:
        async def begin() -> Claim:
            def take(patience: Patience) -> held.Claim:
                return self.hub.claim(queue, ttl=ttl, wait=patience, holder=holder, on_lost=told)

            told = self._told(on_lost, Claim)
            return Claim(self, await self._take(wait, take, held.Held.release))

        return Coming(begin)

    def slot(
        self,
        pool: str,
        *,
        ttl: int | None = None,
        wait: float | None = None,
        selector: Mapping[str, object] | None = None,
        holder: str | None = None,
        on_queued: Callable[[int, int], None] | None = None,
        on_lost: Callable[[Slot], None] | None = None,
    ) -> Coming[Slot]:
        async def begin() -> Slot:
            def take(patience: Patience) -> held.Slot:
                return self.hub.slot(
                    pool,
                    ttl=ttl,
                    wait=patience,
                    selector=selector,
                    holder=holder,
                    on_queued=told_queued,
                    on_lost=told,
                )

            told, told_queued = self._told(on_lost, Slot), in_loop(on_queued)
            return Slot(self, await self._take(wait, take, held.Held.release))

        return Coming(begin)

    async def put(
        self,
        queue: str,
        payload: object = None,
        *,
        priority: int | None = None,
        delay: int | None = None,
        max_attempts: int | None = None,
        dedupe_key: str | None = None,
    ) -> Members:
        more: dict[str, Any] = {
            "priority": priority,
            "delay": delay,
            "max_attempts": max_attempts,
            "dedupe_key": dedupe_key,
        }
        return await self.run(partial(self.hub.put, queue, payload, **more))

    async def put_all(self, queue: str, tasks: Sequence[Mapping[str, object]]) -> list[Members]:
        return await self.run(partial(self.hub.put_all, queue, tasks))

    async def task(self, task_id: str) -> Members:
        return await self.run(partial(self.hub.task, task_id))

    async def fence_check(self, resource_type: str, resource_id: str, fencing_token: int) -> bool:
        return await self.run(partial(self.hub.fence_check, resource_type, resource_id, fencing_token))

    async def status(self, resource_type: str, resource_id: str) -> Members:
        return await self.run(partial(self.hub.status, resource_type, resource_id))

    def _told(self, on_lost: Callable[[Any], None] | None, kind: type[Held]) -> Callable[[Any], None] | None:
        return in_loop(None if on_lost is None else lambda lost: on_lost(kind(self, lost)))


class Handoffs:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._handoffs = hub.hub.handoffs

    async def send(self, to: str, subject: str, *, leases: Sequence[Held | str] = (), **more: Any) -> str:
        ids = [lease if isinstance(lease, str) else lease.lease_id for lease in leases]
        return await self._hub.run(partial(self._handoffs.send, to, subject, leases=ids, **more))

    async def inbox(self, *, status: str | None = None) -> AsyncIterator[Members]:
        for handoff in await self._hub.run(lambda: list(self._handoffs.inbox(status=status))):
            yield handoff

    async def sent(self, *, status: str | None = None) -> AsyncIterator[Members]:
        for handoff in await self._hub.run(lambda: list(self._handoffs.sent(status=status))):
            yield handoff

    async def show(self, handoff_id: str) -> Members:
        return await self._hub.run(partial(self._handoffs.show, handoff_id))

    def accept(
        self,
        handoff_id: str,
        *,
        ttl: int | None = None,
        holder: str | None = None,
        observed_commit: str | None = None,
        on_lost: Callable[[Held], None] | None = None,
    ) -> Coming[Accepted]:
        async def begin() -> Accepted:
            told = self._hub._told(on_lost, Held)
            accept = partial(
                self._handoffs.accept,
                handoff_id,
                ttl=ttl,
                holder=holder,
                observed_commit=observed_commit,
                on_lost=told,
            )
            return Accepted(self._hub, await self._hub.run(accept, _release_all))

        return Coming(begin)

    async def reject(self, handoff_id: str, reason: str) -> Members:
        return await self._hub.run(partial(self._handoffs.reject, handoff_id, reason))

    async def withdraw(self, handoff_id: str, reason: str | None = None) -> Members:
        return await self._hub.run(partial(self._handoffs.withdraw, handoff_id, reason))

    async def complete(self, handoff_id: str, result: object = None) -> Members:
        return await self._hub.run(partial(self._handoffs.complete, handoff_id, result))


class Checkpoints:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._checkpoints = hub.hub.checkpoints

    async def save(
        self,
        subject: str,
        kind: str,
        state: Any,
        *,
        expected_version: int | None = 0,
        ttl: int | None = None,
        fence: Held | Mapping[str, object] | None = None,
    ) -> Members:
        behind = fence._held if isinstance(fence, Held) else fence
        save = partial(self._checkpoints.save, expected_version=expected_version, ttl=ttl, fence=behind)
        return await self._hub.run(partial(save, subject, kind, state))

    async def get(self, subject: str, kind: str, *, version: int | None = None) -> Members:
        return await self._hub.run(partial(self._checkpoints.get, subject, kind, version=version))

    async def show(self, checkpoint_id: str) -> Members:
        return await self._hub.run(partial(self._checkpoints.show, checkpoint_id))


class Events:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def follow(
        self,
        *,
        after: str | int | None = None,
        types: Sequence[str] = (),
        resource: str | None = None,
        holder: str | None = None,
    ) -> AsyncIterator[Members]:
        follower = self._hub.hub.events.follower(after=after, types=types, resource=resource, holder=holder)
        stopped = Event()
        try:
            while True:
                for event in await self._hub.wait(lambda: follower.next_page(Patience(None, stopped))):
                    yield event
        finally:
            stopped.set()

    async def end(self) -> str:
        return await self._hub.run(self._hub.hub.events.end)


_hub = hub.Hub


def in_loop(function: Callable[..., None] | None) -> Callable[..., None] | None:
    """The function, to be called from any thread: it runs in the loop of now."""
    if function is None:
        return None
    loop = asyncio.get_running_loop()

    def told(*arguments: Any) -> None:
        # A loop that has been closed has nobody left to tell.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(function, *arguments)

    return told


def _release_all(accepted: handoffs.Accepted) -> None:
    accepted.__exit__(None, None, None)
