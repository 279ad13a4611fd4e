"""A real web server for what only a socket can send."""

import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.servers import serving


@dataclass(frozen=True)
class Server:
    port: int

    def raw(self, sent: bytes, *, break_off: bool = False) -> bytes:
        """Everything the server answers to these very bytes, until it hangs up or falls silent."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connected:
            try:
                connected.sendall(sent)
                if break_off:
                    connected.shutdown(socket.SHUT_WR)
            except OSError:
                # The server refused early and hung up: its answer is still there to be read.
                pass
            answered = b""
            try:
                while chunk := connected.recv(65_536):
                    answered += chunk
            except (TimeoutError, ConnectionResetError):
                pass
            return answered


@pytest.fixture(scope="module")
def server(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """On the test database, so a test that uses it commits (django_db(transaction=True))."""
    with serving(tmp_path_factory.mktemp("server") / "log") as port:
        yield Server(port)
