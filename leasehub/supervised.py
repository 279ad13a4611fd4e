"""A process of `leasehub up` ends with its parent, even when that one was killed and could tell nobody."""

import os
import signal
import threading
import time
from collections.abc import Callable

POLL_SECONDS = 1.0
ORDERLY_SECONDS = 10.0


def end_with_parent(end: Callable[[], None]) -> None:
    """Under `leasehub up`, calls ``end`` from a thread once the parent is gone; elsewhere does nothing."""
    if "LEASEHUB_SUPERVISED" not in os.environ:
        return
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(POLL_SECONDS)
        end()

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()


def at_once() -> None:
    """For a process that leaves nothing half done: every request is one transaction."""
    os._exit(1)


def in_order() -> None:
    """As if asked to stop, and at once when that takes too long."""
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORDERLY_SECONDS)
    os._exit(1)
