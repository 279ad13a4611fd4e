"""Waiting for a task without a transaction or a connection: one thread a process looks for all that wait in it.

On PostgreSQL it listens: a task that becomes claimable rings, when somebody may be waiting at its queue. That can be
missed (the task was put while the first one came to wait), nothing rings when a delay is over or a claim runs out,
and SQLite has no bell. So it also looks, five times a second, by one query for all queues that are waited at.
"""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

from django.db import DatabaseError, InterfaceError, connection
from django.db.models import Exists, OuterRef, Q

from leasehub.api import waiting
from leasehub.db import clock
from leases.queues.models import Queue, Task

logger = logging.getLogger(__name__)

CHANNEL = "leasehub_task"
LOOK_SECONDS = 0.2
#: After a look that failed.
FAILED_SECONDS = 1.0
#: For how long a queue counts as waited at after somebody did; renewed while somebody does.
AWAITED_SECONDS = 5
#: How long the thread stays when nobody waits any more.
LINGER_SECONDS = 10

#: An organization, and the name of a queue that may not exist yet.
Spot = tuple[int, str]
Found = TypeVar("Found")


class Crowded(Exception):
    """As many calls wait in this process as may."""


def ring(queues: Iterable[int]) -> None:
    """Wakes those who wait at these queues, when the transaction is committed."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT task_ring(%s)", [list(queues)])


class Watch:
    """Who waits where in this process, and the thread that looks for them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[Spot, set[threading.Event]] = defaultdict(set)
        self._thread: threading.Thread | None = None

    @contextmanager
    def at(self, organization: int, queue: str) -> Iterator[threading.Event]:
        """An event that is set when there may be something to claim."""
        spot, bell = (organization, queue), threading.Event()
        with self._lock:
            self._waiting[spot].add(bell)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="task-watch", daemon=True)
                self._thread.start()
        try:
            yield bell
        finally:
            with self._lock:
                self._waiting[spot].discard(bell)
                if not self._waiting[spot]:
                    del self._waiting[spot]

    def wait(self, attempt: Callable[[], Found | None], *, at: Spot, seconds: float) -> Found | None:
        """What an attempt found, tried again whenever there may be a task; None when the time is up.

        Without a transaction or a connection between attempts. Raises Crowded when too many wait already.
        """
        deadline = time.monotonic() + seconds
        with waiting.place(at[0]) as is_free, self.at(*at) as bell:
            if not is_free:
                raise Crowded
            while True:
                bell.clear()
                found = attempt()
                remaining = deadline - time.monotonic()
                if found is not None or remaining <= 0 or not waiting.let_go_of_connection():
                    return found
                bell.wait(remaining)

    def _spots(self) -> list[Spot]:
        with self._lock:
            return list(self._waiting)

    def _wake(self, spots: Iterable[Spot]) -> None:
        with self._lock:
            for spot in spots:
                for bell in self._waiting.get(spot, ()):
                    bell.set()

    def _run(self) -> None:
        last_wanted = time.monotonic()
        while True:
            spots = self._spots()
            if spots:
                last_wanted = time.monotonic()
                self._look_once(spots)
            elif time.monotonic() - last_wanted > LINGER_SECONDS and self._ended():
                connection.close()
                return
            else:
                time.sleep(LOOK_SECONDS)

    def _ended(self) -> bool:
        with self._lock:
            if self._waiting:
                return False
            self._thread = None
            return True

    def _look_once(self, spots: list[Spot]) -> None:
        try:
            queues = _known(spots)
            if connection.vendor == "postgresql":
                _say_awaited(queues)
            self._wake(_with_work(queues))
            self._wake(_rung(queues))
        except (DatabaseError, InterfaceError) as error:
            # They go on waiting, and each of them meets the failure itself when its time is up.
            logger.warning("cannot look for tasks: %s", str(error).strip().splitlines()[:1])
            connection.close()
            time.sleep(FAILED_SECONDS)
        except Exception:
            # Without this thread all who wait would wait for nothing, and nobody would start another.
            logger.exception("looking for tasks for those who wait failed")
            connection.close()
            time.sleep(FAILED_SECONDS)


watch = Watch()


def _known(spots: list[Spot]) -> dict[int, Spot]:
    """The queues at these spots that exist, by id."""
    found = Queue.objects.filter(
        organization_id__in={organization for organization, _ in spots}, name__in={name for _, name in spots}
    )
    wanted = set(spots)
    return {
        queue: (organization, name)
        for queue, organization, name in found.values_list("pk", "organization_id", "name")
        if (organization, name) in wanted
    }


def _with_work(queues: dict[int, Spot]) -> list[Spot]:
    from leases.models import Resource

    at = clock.now()
    tasks = Task.objects.filter(queue=OuterRef("pk"), state="ready")
    claims = Resource.objects.filter(queue=OuterRef("pk"), lease_id__isnull=False, check_at__lte=at, expires_at__lte=at)
    found = Queue.objects.filter(pk__in=queues).filter(
        Q(Exists(tasks.filter(ready_at=None))) | Q(Exists(tasks.filter(ready_at__lte=at))) | Q(Exists(claims))
    )
    return [queues[queue] for queue in found.values_list("pk", flat=True)]


def _say_awaited(queues: dict[int, Spot]) -> None:
    """Written at half its time only: those who put tasks read it."""
    at = clock.now()
    late = Q(awaited_until=None) | Q(awaited_until__lt=at + timedelta(seconds=AWAITED_SECONDS / 2))
    Queue.objects.filter(late, pk__in=queues).update(awaited_until=at + timedelta(seconds=AWAITED_SECONDS))


def _rung(queues: dict[int, Spot]) -> list[Spot]:
    """Waits until one of the queues rings, or until it is time to look again."""
    if connection.vendor != "postgresql":
        time.sleep(LOOK_SECONDS)
        return []
    connection.ensure_connection()
    raw = connection.connection
    if getattr(connection, "leasehub_listens", None) is not raw:
        with connection.wrap_database_errors:
            raw.execute(f"LISTEN {CHANNEL}")
        connection.leasehub_listens = raw  # type: ignore[attr-defined]
    with connection.wrap_database_errors:
        rung = [int(notify.payload) for notify in raw.notifies(timeout=LOOK_SECONDS, stop_after=1)]
    return [queues[queue] for queue in rung if queue in queues]
