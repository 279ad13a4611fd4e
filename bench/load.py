"""A closed loop over keep-alive connections, in one thread: what it costs itself is a few percent of a request.

Each connection has one request under way; the next is sent when its answer is whole.
"""

import select
import socket
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass

GIVE_UP_SECONDS = 20

#: Yields a request, is sent the body of its answer, and so on for ever.
Talk = Generator[bytes, bytes, None]


class WrongAnswer(Exception):
    """The server did not do what the load is about: its rate would mean nothing."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a run saw."""

    seconds: float
    #: One a unit of work, in seconds, sorted.
    latencies: list[float]

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds

    @property
    def p99(self) -> float:
        return percentile(self.latencies, 99)


def percentile(latencies: list[float], percent: float) -> float:
    return latencies[min(len(latencies) - 1, int(len(latencies) * percent / 100))]


def request(method: str, path: str, body: bytes = b"", token: str = "", scheme: str = "Bearer") -> bytes:
    authorization = f"Authorization: {scheme} {token}\r\n" if token else ""
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{authorization}"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def run(
    port: int,
    talk: Callable[[], Talk],
    *,
    expect: int,
    seconds: float,
    connections: int = 8,
    requests_a_unit: int = 1,
) -> Load:
    """Units of work by ``connections`` clients for ``seconds``. Raises WrongAnswer."""
    opened = [Connection(port, talk(), expect) for _ in range(connections)]
    poll = select.epoll()
    for connection in opened:
        poll.register(connection.socket, select.EPOLLIN)
    by_fileno = {connection.socket.fileno(): connection for connection in opened}
    latencies: list[float] = []
    start = time.perf_counter()
    end = start + seconds
    for connection in opened:
        connection.begin(start)
    busy = connections
    try:
        while busy:
            ready = poll.poll(GIVE_UP_SECONDS)
            if not ready:
                raise WrongAnswer(f"no answer within {GIVE_UP_SECONDS} s")
            for fileno, _ in ready:
                connection = by_fileno[fileno]
                if not connection.receive():
                    continue
                now = time.perf_counter()
                if connection.answers % requests_a_unit:
                    connection.go_on()
                    continue
                latencies.append(now - connection.begun)
                if now < end:
                    connection.begin(now)
                else:
                    busy -= 1
    finally:
        poll.close()
        for connection in opened:
            connection.socket.close()
    latencies.sort()
    return Load(time.perf_counter() - start, latencies)


class Connection:
    __slots__ = ("answers", "begun", "expected", "next", "rest", "socket", "talk")

    def __init__(self, port: int, talk: Talk, expect: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=GIVE_UP_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.talk = talk
        self.next = next(talk)
        self.expected = b"HTTP/1.1 %d " % expect
        self.rest = b""
        self.answers = 0
        self.begun = 0.0

    def begin(self, now: float) -> None:
        self.begun = now
        self.socket.sendall(self.next)

    def go_on(self) -> None:
        self.socket.sendall(self.next)

    def receive(self) -> bool:
        """Takes in what there is; whether the answer is whole. Raises WrongAnswer."""
        given = self.socket.recv(65536)
        if not given:
            raise WrongAnswer("the server hung up")
        text = self.rest + given if self.rest else given
        body_at = text.find(b"\r\n\r\n") + 4
        if body_at < 4 or len(text) < body_at + _content_length(text[:body_at]):
            self.rest = text
            return False
        if not text.startswith(self.expected):
            raise WrongAnswer(text[:1000].decode("utf-8", "replace"))
        self.rest = b""
        self.answers += 1
        self.next = self.talk.send(text[body_at:])
        return True


def _content_length(head: bytes) -> int:
    lowered = head.lower()
    at = lowered.find(b"content-length:")
    if at < 0:
        raise WrongAnswer(f"an answer without a length: {head[:1000].decode('utf-8', 'replace')}")
    return int(lowered[at + 15 : lowered.index(b"\r\n", at)])
