"""Celery's beat in a thread of the worker: an in-memory broker reaches one process only."""

import logging
import threading

from celery import Celery
from celery.beat import Service
from django.db import connections
from django_celery_beat.schedulers import DatabaseScheduler

logger = logging.getLogger(__name__)

# How long beat sleeps at most: what it takes to stop, and to notice that an admin changed the schedule.
INTERVAL_SECONDS = 1
AGAIN_SECONDS = 2.0
NOTED_SECONDS = 15


class Scheduler(DatabaseScheduler):  # type: ignore[misc]
    """Notes what it ran every 15 seconds, not every three minutes: last_run_at is how one sees that beat lives."""

    sync_every = NOTED_SECONDS


class Beat(threading.Thread):
    """Begins again when it fails: Celery's own thread dies with the database's first absence, and nobody notices."""

    def __init__(self, app: Celery) -> None:
        super().__init__(name="beat", daemon=True)
        self._app = app
        self._ending = threading.Event()
        self._service: Service | None = None

    def run(self) -> None:
        self._app.set_current()
        while not self._ending.is_set():
            try:
                self._tick_until_told()
            except Exception:
                logger.exception("beat failed and begins again in %s s", AGAIN_SECONDS)
                self._ending.wait(AGAIN_SECONDS)
            finally:
                # The connection that failed, if any: the next round opens its own.
                connections.close_all()

    def _tick_until_told(self) -> None:
        service = self._service = Service(self._app, max_interval=INTERVAL_SECONDS, scheduler_cls=Scheduler)
        if self._ending.is_set():
            return
        service.start()

    def end(self) -> None:
        """Tells it to end; ``join`` waits for that."""
        self._ending.set()
        if self._service is not None:
            # Without waiting: a service that failed never says that it stopped.
            self._service.stop(wait=False)
