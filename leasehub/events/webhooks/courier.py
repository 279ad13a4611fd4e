"""The part of a Celery worker that delivers webhooks.

A thread of every worker process that serves the default queue looks twice a second for endpoints with something to
send, so that no message is needed, and gives each to a thread of its own. These are none of the worker's pool: the
reaper and the other scans never wait for a receiver. An organization may take a quarter of them, and those who were
slow or failed when they were tried last half of them, and of a quarter: so there is room for the others. Who is met for
the first time, or was well until now, may be slow once before it counts so.
"""

import logging
import threading
import time
from dataclasses import dataclass, replace
from typing import Any

from celery.signals import worker_ready, worker_shutdown, worker_shutting_down
from django.conf import settings
from django.db import InterfaceError, OperationalError, connections

from leasehub.events.webhooks import delivery, sending
from leasehub.events.webhooks.delivery import Attempt, Due
from leasehub.events.webhooks.sending import Outcome

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
MOST_AT_ONCE = 32
#: An attempt that took longer makes its endpoint a slow one.
SLOW_MS = 2000
#: After so long an endpoint that has more to send makes room for another one.
TURN_SECONDS = 5.0
REPORT_TRIES = 5
#: How long a stopping worker waits for what is under way: the next one repeats what has no answer by then.
STOP_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Trip:
    due: Due
    thread: threading.Thread


class Courier(threading.Thread):
    def __init__(self, *, limit: int = MOST_AT_ONCE) -> None:
        super().__init__(name="webhooks", daemon=True)
        self._limit = limit
        self._under_way: dict[int, Trip] = {}
        #: The endpoints whose last message from here was not taken, or slowly: their rows may show no trace of it.
        self._hindering: set[int] = set()
        self._ending = threading.Event()
        self._patient_until = float("inf")

    def run(self) -> None:
        while not self._ending.wait(LOOK_SECONDS):
            try:
                self.look()
            except (OperationalError, InterfaceError) as error:
                # The database is away: the next look is soon.
                logger.warning("cannot look for webhooks to deliver: %s", str(error).strip().splitlines()[:1])
                connections.close_all()
            except Exception:
                logger.exception("looking for webhooks to deliver failed")
                connections.close_all()
        connections.close_all()

    def look(self) -> None:
        """Sends somebody off to each endpoint that has something to send, as far as there is room."""
        for due in delivery.due():
            if self._ending.is_set():
                return
            if due.endpoint in self._hindering:
                due = replace(due, is_hindering=True)
            if not self._has_room_for(due):
                continue
            try:
                attempt = delivery.take(endpoint=due.endpoint)
            except (OperationalError, InterfaceError):
                raise
            except Exception:
                # Whatever is wrong with this one, the others get theirs.
                logger.exception("webhook endpoint %s cannot be served", due.endpoint)
                continue
            if attempt is not None:
                self._send_off(due, attempt)

    def _has_room_for(self, due: Due) -> bool:
        trips = [trip.due for trip in list(self._under_way.values())]
        theirs = [trip for trip in trips if trip.organization == due.organization]
        share = max(1, self._limit // 4)
        return (
            due.endpoint not in self._under_way
            and len(trips) < self._limit
            and len(theirs) < share
            and (not due.is_hindering or _hindering(trips) < self._limit // 2 and _hindering(theirs) < (share + 1) // 2)
        )

    def _send_off(self, due: Due, attempt: Attempt) -> None:
        name = f"webhook-{due.endpoint}"
        thread = threading.Thread(target=self._deliver, args=(attempt,), name=name, daemon=True)
        self._under_way[due.endpoint] = Trip(due, thread)
        try:
            thread.start()
        except RuntimeError:
            # There are as many threads as may be. What was claimed is free again when the claim runs out.
            self._under_way.pop(due.endpoint)
            raise

    def _deliver(self, attempt: Attempt) -> None:
        endpoint = attempt.endpoint
        until = time.monotonic() + TURN_SECONDS
        try:
            following: Attempt | None = attempt
            while following is not None:
                outcome = tried(following)
                is_well = outcome.is_success and outcome.took_ms < SLOW_MS
                (self._hindering.discard if is_well else self._hindering.add)(endpoint)
                goes_on = self._tell(following, outcome) and is_well
                is_over = self._ending.is_set() or time.monotonic() >= until
                following = delivery.take(endpoint=endpoint) if goes_on and not is_over else None
        except Exception:
            # What was claimed is free again when the claim runs out.
            logger.exception("delivering to webhook endpoint %s failed", endpoint)
        finally:
            connections.close_all()
            self._under_way.pop(endpoint, None)

    def _tell(self, attempt: Attempt, outcome: Outcome) -> bool:
        """Writes the outcome down; the database may be away for a moment."""
        for again in range(REPORT_TRIES):
            try:
                return delivery.finish(attempt, outcome)
            except Exception:
                if again == REPORT_TRIES - 1:
                    raise
                connections.close_all()
                time.sleep(0.2 * 2**again)
        raise AssertionError("unreachable")

    def end(self) -> None:
        """Stops: what is under way may still come to its end for a while."""
        self._ending.set()
        # Told twice, at the signal and at the end, it waits once.
        self._patient_until = min(self._patient_until, time.monotonic() + STOP_SECONDS)
        for trip in list(self._under_way.values()):
            trip.thread.join(max(0.0, self._patient_until - time.monotonic()))
        if self.is_alive() and threading.current_thread() is not self:
            self.join(2 * LOOK_SECONDS)


def _hindering(trips: list[Due]) -> int:
    return sum(trip.is_hindering for trip in trips)


def tried(attempt: Attempt) -> Outcome:
    if attempt.obstacle:
        return Outcome(error=attempt.obstacle)
    return sending.post(attempt.url, headers=attempt.headers, body=attempt.body)


_running: list[Courier] = []


def begin(sender: Any = None, **told: Any) -> None:
    """Celery's worker is ready. A worker of other queues alone serves some host's pools: it delivers nothing."""
    if settings.CELERY_TASK_DEFAULT_QUEUE in sender.app.amqp.queues.consume_from:
        _running.append(Courier())
        _running[-1].start()


def stop(**told: Any) -> None:
    """The worker was told to stop. This is a signal handler: what may wait is done beside it."""
    for courier in _running:
        threading.Thread(target=courier.end, name="end-webhooks", daemon=True).start()


def wait_for_all(**told: Any) -> None:
    """The worker has stopped: nothing of it is to be left."""
    while _running:
        _running.pop().end()


worker_ready.connect(begin, dispatch_uid="webhooks.begin")
worker_shutting_down.connect(stop, dispatch_uid="webhooks.stop")
worker_shutdown.connect(wait_for_all, dispatch_uid="webhooks.wait")
