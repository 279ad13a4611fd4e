import os
import sys
import threading
import warnings
from argparse import ArgumentParser
from typing import Any

from celery import current_app as app
from celery.platforms import SecurityWarning
from celery.signals import worker_shutting_down
from django.core.management.base import BaseCommand

from leasehub import supervised
from leasehub.beat import Beat
from leasehub.db import checks

THREADS = 4
BEAT_ENDS_SECONDS = 3.0


class Command(BaseCommand):
    help = "A Celery worker and, unless told otherwise, beat, in one process."
    # The others look at addresses, admin and templates, none of which a worker should have to load.
    requires_system_checks = [checks.TAG]

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--queues", default="default", help="Celery queues, separated by commas")
        parser.add_argument("--threads", type=int, default=THREADS)
        parser.add_argument("--no-beat", action="store_true", help="leave the schedule to another process")

    def handle(self, *args: Any, queues: str, threads: int, no_beat: bool, **options: Any) -> None:
        supervised.end_with_parent(supervised.in_order)
        # Celery would run them all once more, addresses and admin with them.
        os.environ["CELERY_SKIP_CHECKS"] = "1"
        # Celery warns root of pickled messages: this worker takes JSON alone.
        warnings.simplefilter("ignore", SecurityWarning)
        worker = app.Worker(
            pool="threads",
            concurrency=threads,
            queues=queues.split(","),
            loglevel="INFO",
            optimization="fair",
            without_gossip=True,
            without_mingle=True,
            quiet=True,
            # Its timer must end before the worker does.
            timer_precision=0.5,
        )
        beat = None if no_beat else Beat(app)
        sys.exit(run(worker, beat))


def run(worker: Any, beat: Beat | None) -> int:
    """Runs both until the worker is told to stop; the exit status."""
    stopping = threading.Event()

    def stop_beat(**told: Any) -> None:
        # At the first sign, so that the two stop side by side.
        stopping.set()
        if beat is not None:
            beat.end()

    worker_shutting_down.connect(stop_beat)
    if beat is not None:
        beat.start()
    worker.start()
    if beat is not None:
        beat.end()
        beat.join(BEAT_ENDS_SECONDS)
    # Celery calls an interrupt a failure; here it is how a server in a terminal is stopped.
    return 0 if stopping.is_set() else worker.exitcode or 0
