import os
import signal
import threading
import time
from argparse import ArgumentParser
from typing import Any

from celery import current_app as app
from django.core.management.base import BaseCommand

THREADS = 4


class Command(BaseCommand):
    help = "A Celery worker and, unless told otherwise, beat, in one process."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--queues", default="default", help="Celery queues, separated by commas")
        parser.add_argument("--threads", type=int, default=THREADS)
        parser.add_argument("--no-beat", action="store_true", help="leave the schedule to another process")

    def handle(self, *args: Any, queues: str, threads: int, no_beat: bool, **options: Any) -> None:
        from celery.beat import EmbeddedService
        from django_celery_beat.schedulers import DatabaseScheduler

        if "LEASEHUB_SUPERVISED" in os.environ:
            end_with_parent()
        # In a thread of this process: an in-memory broker reaches one process only.
        beat = None if no_beat else EmbeddedService(app, thread=True, scheduler_cls=DatabaseScheduler)
        if beat is not None:
            beat.start()
        worker = app.Worker(
            pool="threads",
            concurrency=threads,
            queues=queues.split(","),
            loglevel="INFO",
            optimization="fair",
            without_gossip=True,
            without_mingle=True,
        )
        try:
            worker.start()
        finally:
            if beat is not None:
                beat.stop()


def end_with_parent() -> None:
    """Stops this process when its supervisor is gone, even by kill -9."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)
        os._exit(1)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()
