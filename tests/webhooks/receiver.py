"""A receiver on this machine that takes messages whole, and then behaves as a test wants."""

import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Behaviour = Callable[[socket.socket, "Receiver"], None]


@dataclass(frozen=True)
class Message:
    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.body)
        return document

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def position(self) -> int | None:
        position: int | None = self.document["data"]["position"]
        return position


class Receiver:
    """``behave`` answers each message; ``got`` are those that arrived whole, in order."""

    def __init__(self) -> None:
        self.got: list[Message] = []
        self.behave: Behaviour = says(OK)
        self.connections = 0
        self.ending = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?tenant=a"

    @property
    def positions(self) -> list[int | None]:
        return [message.position for message in self.got]

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(30)
            message = read(connection)
            if message is not None:
                self.got.append(message)
                self.behave(connection, self)

    def close(self) -> None:
        self.ending.set()
        # close() alone does not wake accept().
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


def read(connection: socket.socket) -> Message | None:
    text = b""
    while b"\r\n\r\n" not in text:
        more = connection.recv(65536)
        if not more:
            return None
        text += more
    head, _, body = text.partition(b"\r\n\r\n")
    line, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (one.partition(": ") for one in lines)}
    while len(body) < int(headers["content-length"]):
        more = connection.recv(65536)
        if not more:
            return None
        body += more
    return Message(line, headers, body)


def says(answer: bytes) -> Behaviour:
    def behave(connection: socket.socket, receiver: Receiver) -> None:
        connection.sendall(answer)

    return behave


def status(number: int, *headers: str) -> Behaviour:
    lines = "".join(f"{header}\r\n" for header in headers)
    return says(f"HTTP/1.1 {number} So\r\n{lines}Content-Length: 0\r\n\r\n".encode())


def trickles(answer: bytes, *, every_seconds: float) -> Behaviour:
    def behave(connection: socket.socket, receiver: Receiver) -> None:
        for byte in answer:
            connection.sendall(bytes([byte]))
            if receiver.ending.wait(every_seconds):
                return

    return behave


def hangs(connection: socket.socket, receiver: Receiver) -> None:
    receiver.ending.wait(60)


def floods(head: bytes) -> Behaviour:
    """The beginning of an answer, and then more and more of it until nobody reads any more."""

    def behave(connection: socket.socket, receiver: Receiver) -> None:
        connection.sendall(head)
        until = time.monotonic() + 20
        while time.monotonic() < until:
            connection.sendall(b"x: y\r\n" * 2000)

    return behave
