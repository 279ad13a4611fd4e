"""One POST to a receiver that may be anybody: slow, hostile, or a machine that nobody outside should reach.

The host is resolved once an attempt, every address that it has is judged (leasehub.events.webhooks.addresses), and
one of just these is connected to, while TLS still asks for the name. No redirect is followed and no proxy is used.
The whole attempt ends by its deadline, whatever the receiver does, and of its answer at most 16 KiB are read.
"""

import http.client
import io
import logging
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from leasehub.errors import ValidationError
from leasehub.events.webhooks import addresses
from leasehub.events.webhooks.addresses import Target

logger = logging.getLogger(__name__)

ATTEMPT_SECONDS = 15.0
CONNECT_SECONDS = 5.0
MOST_ADDRESSES = 8
MOST_ANSWER_BYTES = 16 * 1024
CHUNK = 16 * 1024
SUCCESS = range(200, 300)
INTERIM = {100, *range(102, 200)}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt went. Of the answer nothing is kept but its status and when to come back."""

    status: int | None = None
    #: Empty when the receiver took it.
    error: str = ""
    retry_after_seconds: float | None = None
    took_ms: int = 0

    @property
    def is_success(self) -> bool:
        return not self.error


class Undeliverable(Exception):
    """Nobody was told, or nobody knows; the message says why, in words that show nothing of what was found there."""


def post(url: str, *, headers: Mapping[str, str], body: bytes, seconds: float = ATTEMPT_SECONDS) -> Outcome:
    """Tries it once. Raises nothing: whatever goes wrong is the outcome's error."""
    began = time.monotonic()
    status, retry_after, error = None, None, ""
    try:
        status, retry_after = _exchange(url, headers, body, began + seconds)
        if status not in SUCCESS:
            error = _refusal(status)
    except Undeliverable as failure:
        error = str(failure)
    except TimeoutError:
        error = f"took longer than {seconds:g} s"
    except ssl.SSLError as failure:
        error = f"TLS: {getattr(failure, 'verify_message', '') or failure.reason or 'failed'}"[:200]
    except (OSError, http.client.HTTPException, ValueError) as failure:
        error = _fault(failure)
    except Exception:
        # Of an attempt without an outcome nobody would know that it failed: it would be made for ever.
        logger.exception("a webhook cannot be sent")
        error = "cannot be sent: the server's log has the reason"
    return Outcome(status, error, retry_after, round(1000 * (time.monotonic() - began)))


def _refusal(status: int) -> str:
    return f"answered {status}, a redirect: none is followed" if 300 <= status < 400 else f"answered {status}"


def _fault(failure: Exception) -> str:
    if isinstance(failure, ConnectionRefusedError):
        return "refused the connection"
    is_malformed = isinstance(failure, http.client.HTTPException | ValueError)
    if is_malformed and not isinstance(failure, http.client.RemoteDisconnected):
        return "did not answer with HTTP"
    if isinstance(failure, ConnectionError):
        return "broke the connection off"
    return "cannot be reached"


def _exchange(url: str, headers: Mapping[str, str], body: bytes, deadline: float) -> tuple[int, float | None]:
    try:
        target = addresses.target(url)
    except ValidationError as error:
        # What LEASEHUB_WEBHOOK_ALLOW names may have changed since the endpoint was made.
        raise Undeliverable(error.message) from error
    with _connected(target, resolved(target.host, target.port, deadline), deadline) as stream:
        _send(stream, _head(target, headers, len(body)) + body, deadline)
        return _answer(stream, deadline)


def _head(target: Target, headers: Mapping[str, str], length: int) -> bytes:
    lines = [f"POST {target.path} HTTP/1.1", f"Host: {target.authority}", "Connection: close", "Accept: */*"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, f"Content-Length: {length}", "", ""]).encode("ascii")


def resolved(host: str, port: int, deadline: float) -> list[tuple[Any, ...]]:
    """The host's socket addresses, every one judged. Raises Undeliverable."""
    found: list[tuple[Any, ...]] = []
    failed: list[Exception] = []

    def look_up() -> None:
        try:
            found.extend(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            failed.append(error)

    # The resolver takes no time limit: it goes on by itself, until its own is over.
    thread = threading.Thread(target=look_up, name="resolve-webhook", daemon=True)
    thread.start()
    thread.join(max(0.0, deadline - time.monotonic()))
    if thread.is_alive():
        raise Undeliverable("its name was not resolved in time")
    if failed or not found:
        raise Undeliverable("its name does not resolve")
    for *_, address in found:
        # One forbidden address among others is enough: such a name is not meant for the public.
        if not addresses.may_connect(host, str(address[0])):
            raise Undeliverable("its address is not a public one, and LEASEHUB_WEBHOOK_ALLOW does not name it")
    return found


def _connected(target: Target, found: list[tuple[Any, ...]], deadline: float) -> socket.socket:
    plain = _first_that_answers(found, deadline)
    if not target.is_tls:
        return plain
    try:
        plain.settimeout(_left(deadline))
        context = ssl.create_default_context()
        return context.wrap_socket(plain, server_hostname=target.host.rstrip("."))
    except BaseException:
        plain.close()
        raise


def _first_that_answers(found: list[tuple[Any, ...]], deadline: float) -> socket.socket:
    problem: OSError | None = None
    for family, kind, protocol, _, address in found[:MOST_ADDRESSES]:
        made = socket.socket(family, kind, protocol)
        try:
            made.settimeout(min(CONNECT_SECONDS, _left(deadline)))
            made.connect(address)
            return made
        except OSError as error:
            made.close()
            problem = error
    if isinstance(problem, TimeoutError):
        raise Undeliverable("did not take the connection in time")
    raise problem or Undeliverable("its name does not resolve")


def _send(stream: socket.socket, message: bytes, deadline: float) -> None:
    view = memoryview(message)
    while view:
        # sendall would give each piece of a TLS stream a time limit of its own.
        stream.settimeout(_left(deadline))
        view = view[stream.send(view[:CHUNK]) :]


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


class _Answer(io.RawIOBase):
    """The socket as http.client reads from it: until the deadline, and so many bytes."""

    def __init__(self, stream: socket.socket, deadline: float) -> None:
        self._stream, self._deadline = stream, deadline
        self.left = MOST_ANSWER_BYTES
        self.has_ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self.left == 0:
            self.has_ended = True
            return 0
        self._stream.settimeout(_left(self._deadline))
        count = self._stream.recv_into(memoryview(buffer)[: self.left])
        self.left -= count
        self.has_ended = count == 0
        return count

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)


class _Response(http.client.HTTPResponse):
    """As http.client's, that knows of interim answers 100 alone; 101 is none, since nothing was to be switched."""

    def _read_status(self) -> tuple[str, int, str]:
        version, status, reason = super()._read_status()  # type: ignore[misc]
        while status in INTERIM:
            http.client.parse_headers(self.fp)
            version, status, reason = super()._read_status()  # type: ignore[misc]
        return version, status, reason


def _answer(stream: socket.socket, deadline: float) -> tuple[int, float | None]:
    """The status, and the seconds of Retry-After; once the whole answer was there, or as much of it as is read."""
    source = _Answer(stream, deadline)
    response = _Response(source, method="POST")  # type: ignore[arg-type]  # only makefile() is used
    response.begin()
    if source.has_ended:
        # Its headers broke off, which http.client takes for their end.
        raise Undeliverable("broke its answer off" if source.left else "answered with endless headers")
    try:
        while response.read(CHUNK):
            continue
        is_whole = not response.length
    except http.client.IncompleteRead:
        is_whole = False
    if not is_whole and source.left:
        raise Undeliverable("broke its answer off")
    return response.status, _retry_after(response.getheader("Retry-After"))


def _retry_after(text: str | None) -> float | None:
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError, OverflowError):
        return None
