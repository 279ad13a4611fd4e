"""Processes that the bench starts, and ends."""

import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

START_SECONDS = 60


class DidNotStart(Exception):
    pass


@contextmanager
def granian(application: str, environment: dict[str, str], healthy: str) -> Iterator[int]:
    """A web server of 2 processes with 4 threads each; its port."""
    port = free_port()
    command = [
        sys.executable, "-m", "granian", "--interface=wsgi", "--http=1", "--host=127.0.0.1", f"--port={port}",
        "--workers=2", "--blocking-threads=4", "--blocking-threads-idle-timeout=600", "--backpressure=1024",
        "--no-ws", "--no-access-log", "--log-level=error", application,
    ]  # fmt: skip
    with running(command, environment):
        await_http(port, healthy)
        yield port


@contextmanager
def etcd() -> Iterator[int | None]:
    """etcd on one node with its files in a temporary folder; its port, or None where it is not installed."""
    program = shutil.which("etcd")
    if program is None:
        yield None
        return
    port, peers = free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="leasehub-etcd-") as folder:
        command = [
            program, "--data-dir", folder, "--listen-client-urls", f"http://127.0.0.1:{port}",
            "--advertise-client-urls", f"http://127.0.0.1:{port}", "--listen-peer-urls", f"http://127.0.0.1:{peers}",
            "--initial-advertise-peer-urls", f"http://127.0.0.1:{peers}",
            "--initial-cluster", f"default=http://127.0.0.1:{peers}", "--logger", "zap", "--log-level", "error",
        ]  # fmt: skip
        with running(command, {}):
            await_http(port, "/health")
            yield port


@contextmanager
def running(
    command: list[str], environment: dict[str, str], *, silent: bool = False
) -> Iterator["subprocess.Popen[bytes]"]:
    """A process in a group of its own, which is ended with all that it started."""
    process = subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL if silent else None,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def await_http(port: int, path: str) -> None:
    """Raises DidNotStart."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", path)
            if connection.getresponse().status < 500:
                return
        except (OSError, http.client.HTTPException):
            time.sleep(0.1)
        finally:
            connection.close()
    raise DidNotStart(f"nothing answers {path} on port {port}")
