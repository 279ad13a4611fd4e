"""Whoever does not read its answer is hung up on: else a stream to it would keep its thread and its place for ever,
though its key is revoked.
"""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

LOOK_SECONDS = 0.1
PATIENCE_SECONDS = 60


def hang_up_after(seconds: int) -> None:
    """Once the web server listens the kernel ends its connections whose client has taken nothing for so long of what
    waits for it. That is set at the socket that listens, and connections have it from there; elsewhere than on Linux
    there is nothing to set.

    The web server writes from a thread that no other can call back, and keeps the connection to itself. It listens
    after the application was loaded, so a thread looks for the socket.
    """
    if not hasattr(socket, "TCP_USER_TIMEOUT"):
        return

    def look() -> None:
        give_up = time.monotonic() + PATIENCE_SECONDS
        while not _has_set(seconds) and time.monotonic() < give_up:
            time.sleep(LOOK_SECONDS)

    threading.Thread(target=look, name="hang-up-on-unread", daemon=True).start()


def _has_set(seconds: int) -> bool:
    ports = {own.getsockname()[1] for own in _own_sockets() if _listens(own) and _set(own, seconds)}
    for own in _own_sockets() if ports else ():
        # A client that came before the web server's socket was found; it may be gone again.
        with suppress(OSError):
            if own.getsockname()[1] in ports:
                _set(own, seconds)
    return bool(ports)


def _own_sockets() -> Iterator[socket.socket]:
    for name in os.listdir("/proc/self/fd"):
        # Most are no socket, and the file that they were listed from is closed.
        with suppress(OSError):
            found = socket.socket(fileno=int(name))
            try:
                if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
                    yield found
            finally:
                # It is the web server's. A copy would not do: of a file of SQLite's, closing one drops its locks.
                found.detach()


def _listens(own: socket.socket) -> bool:
    with suppress(OSError):
        return bool(own.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    return False


def _set(own: socket.socket, seconds: int) -> bool:
    with suppress(OSError):
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, seconds * 1000)
        return True
    return False
