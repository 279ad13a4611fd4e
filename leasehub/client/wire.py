"""HTTP/1.1 over a plain socket: one connection, kept for the next call.

http.client, and socket.py with its enums, would double the time that a heartbeat takes as a whole process;
ssl is imported for an https:// address alone.
"""

import _socket
import os
import time

from leasehub.client import jsontext
from leasehub.client.failures import Failure, Internal, Unreachable, Usage, refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from typing import Any

Members = dict[str, "Any"]

ATTEMPTS = 3
TIMEOUT_SECONDS = 10.0
MAX_HEAD = 64 * 1024
MAX_BODY = 64 * 1024 * 1024
UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


def quoted(text: str) -> str:
    """The text as one segment of a path or one value of a query."""
    if not isinstance(text, str):
        raise Usage(f"a name or an id must be a text, not {text!r}")
    return "".join(
        chr(byte) if byte in UNRESERVED else f"%{byte:02X}" for byte in text.encode("utf-8", "surrogatepass")
    )


def fresh_key() -> str:
    """An Idempotency-Key: one for each thing that is to happen once, however often it must be sent."""
    return os.urandom(16).hex()


class Connection:
    """A client of one server. ``answers_lost`` counts the requests that may have been carried out unheard."""

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        timeout: float = TIMEOUT_SECONDS,
        retry_seconds: float | None = None,
        tls: "ssl.SSLContext | None" = None,
    ) -> None:
        self.url = url
        self.timeout = timeout
        #: For so long what will pass is waited out; without it few attempts are made, and none at all again when the
        #: server is not there.
        self.retry_seconds = retry_seconds
        self.answers_lost = 0
        self._secure, self._host, self._port, self._prefix = _taken_apart(url)
        self._authorization = f"Authorization: Bearer {token}\r\n" if token else ""
        self._tls = tls
        self._socket: Any = None
        self._buffer = b""
        # A request was sent, and what waited for its answer was interrupted.
        self._is_owed = False

    def call(
        self, method: str, path: str, body: object = None, *, key: str | None = None, attempts: int | None = None
    ) -> Members:
        """The data of the answer. Raises Refused, Unreachable, or Usage when the request was malformed.

        Sends again when the answer was lost, so every request must bear repetition: by nature, or by its key.
        """
        request = self._request(method, path, body, key)
        is_patient = attempts is None and self.retry_seconds is not None
        give_up = time.monotonic() + (self.retry_seconds or 0.0)
        attempt = 0
        while True:
            attempt += 1
            failure: Failure
            try:
                status, headers, content = self._exchange(request)
                document = self._document(status, content)
            except Unreachable as lost:
                self.answers_lost += lost.sent
                lost.sent = self.answers_lost > 0
                # A server that is not there is reported at once; one that broke off is asked again.
                failure, passes, pause = lost, lost.passes and (is_patient or lost.sent), 0.1 * 3 ** min(attempt - 1, 3)
            else:
                if 200 <= status < 300:
                    return document["data"] if isinstance(document.get("data"), dict) else document
                error = document["error"]
                failure, pause = self._failure(status, error), _pause(error, headers)
                passes = status == 503 or error["code"] == "IN_PROGRESS" or (is_patient and status == 429)
            if is_patient:
                passes = passes and time.monotonic() + pause < give_up
            else:
                passes, pause = passes and attempt < (attempts or ATTEMPTS), min(pause, 1.0)
            if not passes:
                raise failure
            time.sleep(pause)

    def probe(self, path: str) -> int:
        """The HTTP status alone, whatever the answer says; one attempt."""
        return self._exchange(self._request("GET", path, None, None))[0]

    def another(self) -> "Connection":
        """To the same server, with the same key."""
        other = Connection(self.url, None, timeout=self.timeout, tls=self._tls)
        other._authorization = self._authorization
        return other

    def owed(self) -> "Connection | None":
        """A connection with the answer that is still to come of a call that was interrupted; this one has no part in
        it any more."""
        if not self._is_owed:
            return None
        other = self.another()
        other._socket, other._buffer = self._socket, self._buffer
        self._socket, self._buffer, self._is_owed = None, b"", False
        return other

    def late_answer(self) -> Members:
        """Of a connection that ``owed`` gave out. Raises Unreachable when none comes, Failure for a refusal."""
        try:
            status, headers, content = self._answer(time.monotonic() + self.timeout)
        finally:
            self.close()
        document = self._document(status, content)
        if not 200 <= status < 300:
            raise self._failure(status, document["error"])
        return document["data"] if isinstance(document.get("data"), dict) else document

    def close_if_broken(self) -> None:
        """Notices that the server has closed it meanwhile, so that a request is not sent into it and taken for lost."""
        if self._socket is not None:
            import select

            watched = select.poll()
            watched.register(self._socket, select.POLLIN)
            # Nothing has been asked, so whatever there is to read is the end.
            if watched.poll(0):
                self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._buffer, self._is_owed = b"", False

    def _request(self, method: str, path: str, body: object, key: str | None) -> bytes:
        try:
            content = b"" if body is None else jsontext.compact(body)
        except (TypeError, ValueError, RecursionError) as error:
            raise Usage(f"what is to be sent is not JSON: {error}") from None
        head = (
            f"{method} {self._prefix}{path} HTTP/1.1\r\nHost: {self._host_header()}\r\n"
            f"{self._authorization}Accept: application/json\r\nUser-Agent: leasehub-cli\r\n"
        )
        if key is not None:
            head += f"Idempotency-Key: {key}\r\n"
        if body is not None:
            head += "Content-Type: application/json\r\n"
        if body is not None or method != "GET":
            head += f"Content-Length: {len(content)}\r\n"
        return head.encode("ascii") + b"\r\n" + content

    def _host_header(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return host if self._port == (443 if self._secure else 80) else f"{host}:{self._port}"

    def _exchange(self, request: bytes) -> tuple[int, dict[str, str], bytes]:
        deadline = time.monotonic() + self.timeout
        if self._is_owed:
            # What is left of an interrupted answer must not be taken for the next one.
            self.close()
        if self._socket is None:
            self._socket = self._connect(deadline)
        return self._answer(deadline, request)

    def _answer(self, deadline: float, request: bytes = b"") -> tuple[int, dict[str, str], bytes]:
        try:
            self._socket.settimeout(_left(deadline))
            self._is_owed = True
            self._socket.sendall(request)
            status, headers = self._read_head(deadline)
            content = self._read_body(status, headers, deadline)
        except TimeoutError:
            self.close()
            raise Unreachable(f"{self.url} did not answer within {self.timeout:g} s") from None
        except OSError as error:
            self.close()
            raise Unreachable(f"{self.url} broke off: {error.strerror or error}") from None
        except ValueError:
            self.close()
            raise Unreachable(f"{self.url} does not speak HTTP/1.1 as a LeaseHub server does") from None
        self._is_owed = False
        if headers.get("connection", "").lower() == "close":
            self.close()
        return status, headers, content

    def _connect(self, deadline: float) -> "Any":
        try:
            # As bytes: a str host would pull in encodings.idna.
            addresses = _socket.getaddrinfo(self._host.encode("ascii"), self._port, 0, _socket.SOCK_STREAM)
        except OSError as error:
            raise Unreachable(f"cannot reach {self.url}: {error.strerror or error}", sent=False) from None
        reason, passes = "no address", True
        for family, kind, protocol, _, address in addresses:
            connection = _socket.socket(family, kind, protocol)
            try:
                connection.settimeout(_left(deadline))
                connection.connect(address)
                connection.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
                return self._secured(connection) if self._secure else connection
            except TimeoutError:
                reason = f"no connection within {self.timeout:g} s"
            except OSError as error:
                reason = error.strerror or str(error)
                # A certificate that is not trusted will not be in a moment either.
                passes = not hasattr(error, "verify_code")
            connection.close()
        raise Unreachable(f"cannot reach {self.url}: {reason}", sent=False, passes=passes)

    def _secured(self, connection: "_socket.socket") -> "Any":
        import socket
        import ssl

        wrapped = socket.socket(fileno=connection.detach())
        context = self._tls or ssl.create_default_context()
        return context.wrap_socket(wrapped, server_hostname=self._host)

    def _read_head(self, deadline: float) -> tuple[int, dict[str, str]]:
        while True:
            while b"\r\n\r\n" not in self._buffer:
                self._receive(deadline)
                if len(self._buffer) > MAX_HEAD:
                    raise ValueError("endless headers")
            head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").split("\r\n")
            version, _, rest = first.partition(" ")
            if not version.startswith("HTTP/1."):
                raise ValueError(version)
            status = int(rest[:3])
            headers = {}
            for line in lines:
                name, _, value = line.partition(":")
                headers[name.strip().lower()] = value.strip()
            # 1xx is a word in passing: the answer follows.
            if status >= 200:
                return status, headers

    def _read_body(self, status: int, headers: dict[str, str], deadline: float) -> bytes:
        if status in (204, 304):
            return b""
        if "chunked" in headers.get("transfer-encoding", "").lower():
            return self._read_chunks(deadline)
        if "content-length" in headers:
            return self._take(_size(headers["content-length"], 10), deadline)
        return self._read_to_the_end(headers, deadline)

    def _read_chunks(self, deadline: float) -> bytes:
        content = b""
        while size := _size(self._line(deadline).partition(";")[0], 16):
            content += self._take(size, deadline)
            if len(content) > MAX_BODY or self._line(deadline):
                raise ValueError("malformed chunks")
        while self._line(deadline):
            pass
        return content

    def _read_to_the_end(self, headers: dict[str, str], deadline: float) -> bytes:
        headers["connection"] = "close"
        try:
            while len(self._buffer) <= MAX_BODY:
                self._receive(deadline)
        except ConnectionResetError:
            pass
        return self._buffer

    def _line(self, deadline: float) -> str:
        while b"\r\n" not in self._buffer:
            self._receive(deadline)
            if len(self._buffer) > MAX_BODY:
                raise ValueError("endless line")
        line, _, self._buffer = self._buffer.partition(b"\r\n")
        return line.decode("latin-1")

    def _take(self, size: int, deadline: float) -> bytes:
        while len(self._buffer) < size:
            self._receive(deadline)
        content, self._buffer = self._buffer[:size], self._buffer[size:]
        return content

    def _receive(self, deadline: float) -> None:
        self._socket.settimeout(_left(deadline))
        received = self._socket.recv(65536)
        if not received:
            raise ConnectionResetError(None, "the connection was closed")
        self._buffer += received

    def _document(self, status: int, content: bytes) -> Members:
        if status == 204:
            return {}
        try:
            document = jsontext.parse(content.decode())
        except ValueError:
            document = None
        ok = isinstance(document, dict) and (
            200 <= status < 300 or (isinstance(document.get("error"), dict) and "code" in document["error"])
        )
        if not ok:
            # What stands before the server speaks for one that will be back.
            passes = status in (429, 502, 503, 504)
            message = f"{self.url} does not answer like a LeaseHub server (HTTP status {status})"
            raise Unreachable(message, passes=passes)
        return document  # type: ignore[no-any-return]

    def _failure(self, status: int, error: Members) -> Failure:
        reason, message = str(error["code"]), str(error.get("message", ""))
        if reason in ("VALIDATION_ERROR", "PAYLOAD_TOO_LARGE", "UNSUPPORTED_MEDIA_TYPE", "UNSATISFIABLE"):
            return Usage(_with_fields(message, error.get("fields")))
        if status in (502, 503, 504):
            return Unreachable(f"{self.url} cannot answer just now: {message}", sent=self.answers_lost > 0)
        if status >= 500:
            return Internal(f"{self.url} failed (HTTP status {status}): {message}")
        return refusal(error)


def _taken_apart(url: str) -> tuple[bool, str, int, str]:
    scheme, separator, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    if authority.startswith("["):
        host, _, port = authority[1:].partition("]")
        port = port.removeprefix(":")
    else:
        host, _, port = authority.partition(":")
    usable = (
        scheme.lower() in ("http", "https")
        and separator
        and host
        and url.isascii()
        and url.isprintable()
        and not any(character in url for character in "@?# ")
        and (not port or (port.isdigit() and 0 < int(port[:6]) < 65536))
    )
    if not usable:
        # What is before an @ may be a password.
        told = f"not {url!r}" if "@" not in url else "without a user or a password"
        raise Usage(f"the server's address must look like http://host:port, {told}")
    secure = scheme.lower() == "https"
    return secure, host, int(port) if port else (443 if secure else 80), (slash + path).rstrip("/")


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _size(text: str, base: int) -> int:
    size = int(text, base)
    if not 0 <= size <= MAX_BODY:
        raise ValueError(text)
    return size


def _pause(error: Members, headers: dict[str, str]) -> float:
    wanted = error.get("retry_after_ms")
    if not isinstance(wanted, int):
        text = headers.get("retry-after", "1")
        wanted = int(text[:4]) * 1000 if text.isdigit() else 1000
    return max(wanted, 50) / 1000


def _with_fields(message: str, fields: object) -> str:
    if not isinstance(fields, dict) or not fields:
        return message
    # What the message says already is not said again.
    wrong = [f"{name}: {text}" for name, text in fields.items() if str(text) not in message]
    return " ".join([message, "; ".join(wrong)]).strip()
