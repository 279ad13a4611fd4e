"""A client of ``leasehub.wsgi.application`` itself: what a web server would be answered, header for header."""

import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_to_bytes

from django.core.signals import request_finished, request_started
from django.db import close_old_connections, connection
from django.utils.datastructures import CaseInsensitiveMapping


@dataclass(frozen=True)
class Answer:
    status_code: int
    headers: Mapping[str, str]
    content: bytes

    def json(self) -> Any:
        return json.loads(self.content)


@contextmanager
def kept_connection() -> Iterator[None]:
    """A test's own transaction outlives the request: Django would take its connection for a broken one."""
    signals = [request_started, request_finished] if connection.in_atomic_block else []
    for signal in signals:
        signal.disconnect(close_old_connections)
    try:
        yield
    finally:
        for signal in signals:
            signal.connect(close_old_connections)


def call(
    method: str,
    address: str,
    content: bytes = b"",
    headers: Mapping[str, str] | None = None,
    **environ: Any,
) -> Answer:
    """``address`` is percent-encoded, with its query; ``environ`` overrides what a web server would set."""
    from leasehub.wsgi import application

    path, _, query = address.partition("?")
    sent = {"Content-Type": "application/json", **({"Content-Length": str(len(content))} if content else {})}
    sent.update(headers or {})
    named = {name.upper().replace("-", "_"): value for name, value in sent.items()}
    started: list[Any] = []
    complete = {
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": "",
        # One character a byte, as WSGI has it.
        "PATH_INFO": unquote_to_bytes(path).decode("latin-1"),
        "QUERY_STRING": query,
        "SERVER_NAME": "testserver",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(content),
        "wsgi.errors": io.StringIO(),
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
        **{name if name.startswith("CONTENT_") else f"HTTP_{name}": value for name, value in named.items()},
        **environ,
    }
    with kept_connection():
        response = application(complete, lambda status, headers, exc_info=None: started.extend([status, headers]))
        try:
            # A stream of events has no end: its beginning is its answer.
            is_stream = dict(started[1]).get("Content-Type", "").startswith("text/event-stream")
            body = next(iter(response)) if is_stream else b"".join(response)
        finally:
            getattr(response, "close", lambda: None)()
    return Answer(int(started[0].split()[0]), CaseInsensitiveMapping(started[1]), body)
