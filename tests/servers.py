"""A real server process on the test database, for clients that are real processes too."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.db import connection

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS = 180


@dataclass(frozen=True)
class Server:
    port: int
    process: "subprocess.Popen[bytes]"


@contextmanager
def serving(log: Path, *, workers: int = 1, **environment: str) -> Iterator[int]:
    """The port of a server that uses the database of this test."""
    with started(log, workers=workers, **environment) as server:
        yield server.port


@contextmanager
def started(log: Path, *, workers: int = 1, **environment: str) -> Iterator[Server]:
    """A server that uses the database of this test."""
    port = free_port()
    with log.open("ab") as output:
        server = subprocess.Popen(
            [
                sys.executable, "-m", "granian", "--interface", "wsgi", "--host", "127.0.0.1", "--port", str(port),
                "--workers", str(workers), "--blocking-threads", "8", "--backlog", "512", "--no-ws", "--no-access-log",
                "leasehub.wsgi:application",
            ],
            cwd=ROOT,
            env={**os.environ, **environment, "DATABASE_URL": database_url(), "PYTHONWARNINGS": "default"},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )  # fmt: skip
        try:
            _await_answer(server, port, log)
            yield Server(port, server)
        finally:
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait()


def database_url() -> str:
    given = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{given['NAME']}"
    password = f":{given['PASSWORD']}" if given["PASSWORD"] else ""
    return f"postgres://{given['USER']}{password}@{given['HOST']}:{given['PORT']}/{given['NAME']}"


def free_port() -> int:
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def _await_answer(server: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as client:
                client.request("GET", "/readyz")
                if client.getresponse().status == 200:
                    return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"the server does not answer: {log.read_text()[-2000:]}")


class Api:
    """A client of that server, on one connection."""

    def __init__(self, port: int, secret: str) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self.headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}

    def get(self, path: str) -> dict[str, Any]:
        self.connection.request("GET", path, headers=self.headers)
        response = self.connection.getresponse()
        answer: dict[str, Any] = json.loads(response.read())
        assert response.status == 200, answer
        return answer

    def close(self) -> None:
        self.connection.close()
