"""How a process of the server ends: with its parent, even when that one was killed and could tell nobody; and what it
does before, when it is asked to."""

import os
import signal
import socket
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


def when_asked_to_end(do: Callable[[], None]) -> None:
    """Calls ``do`` from a thread once SIGTERM or SIGINT has come, whoever handles it.

    Python writes the number of every signal that it handles to the wakeup file, whichever handlers the web server
    installs later. Only the main thread may name that file; elsewhere there is nothing to be done.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)

    def listen() -> None:
        # The thread keeps the writer, too: once that is closed, its number may become another file's.
        with reader, writer:
            while received := reader.recv(1):
                if received[0] in (signal.SIGTERM, signal.SIGINT):
                    do()

    threading.Thread(target=listen, name="when-asked-to-end", daemon=True).start()
