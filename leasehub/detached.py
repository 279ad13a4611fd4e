"""A response that goes on for hours leaves the thread of the web server that began it.

granian writes a response from the thread that called the application, and keeps that thread until the response has
ended. The object that it writes through takes the call from any thread, so a long response gets one of its own, and
the few that granian has go on with short calls. The application is not handed that object: it is looked up in the
caller's frame. Under another server it is not there, and the response stays where it is.
"""

import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any

#: Until the first part is asked for nothing has been sent: another thread may still answer.
START_SECONDS = 10


class Parts:
    """The parts of a response, and when the first is asked for."""

    def __init__(self, response: Iterable[bytes]) -> None:
        self._parts: Iterator[bytes] = iter(response)
        self.close = getattr(response, "close", lambda: None)
        self.has_begun = threading.Event()

    def __next__(self) -> bytes:
        self.has_begun.set()
        return next(self._parts)


def send(response: Iterable[bytes], *, status: int, headers: list[tuple[str, str]]) -> Iterable[bytes]:
    """What the application is to return: nothing more when the response goes on elsewhere, else the response."""
    protocol = _protocol()
    if protocol is None:
        return response
    parts = Parts(response)
    thread = threading.Thread(
        target=protocol.response_iter, args=(status, headers, parts), name="detached-response", daemon=True
    )
    try:
        thread.start()
    except RuntimeError:
        # There are as many threads as may be: nobody else would close it.
        parts.close()
        raise
    # granian answers with whichever response comes first.
    parts.has_begun.wait(START_SECONDS)
    return []


def _protocol() -> Any:
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        found = frame.f_locals.get("proto")
        if hasattr(found, "response_iter"):
            return found
    return None
