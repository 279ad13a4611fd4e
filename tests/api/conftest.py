"""A real web server for what only a socket can send."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.db import connection

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE_SECONDS = 30


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


def database_url() -> str:
    """Of the test database, for another process."""
    if connection.vendor == "sqlite":
        return f"sqlite:///{settings.DATABASES['default']['NAME']}"
    given = connection.settings_dict
    return f"postgres://{given['USER']}:{given['PASSWORD']}@{given['HOST']}:{given['PORT'] or 5432}/{given['NAME']}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def server(django_db_setup: Any, django_db_blocker: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """On the test database, so a test that uses it commits (django_db(transaction=True))."""
    port, folder = free_port(), tmp_path_factory.mktemp("server")
    command = [sys.executable, "-P", "-m", "granian", "--interface", "wsgi", "--http", "1", "--no-ws"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1", "--blocking-threads", "4"]
    command += ["--working-dir", str(folder), "leasehub.wsgi:application"]
    environment = {**os.environ, "DATABASE_URL": database_url(), "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": ""}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            await_port(port, process, folder / "log")
            yield Server(port)
        finally:
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()


def await_port(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"the server did not start: {log.read_text()}")
