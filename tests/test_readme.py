"""The README's tour, as it stands, against a server that its own command started."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LEASEHUB = Path(sys.executable).parent / "leasehub"


def tour() -> str:
    text = (ROOT / "README.md").read_text()
    return "\n".join(re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@pytest.fixture
def served_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in which ``leasehub up`` is running, with ``.venv`` as in a checkout."""
    (tmp_path / ".venv").symlink_to(Path(sys.executable).parent.parent)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("LEASEHUB_", "DATABASE_", "CELERY_"))
    }
    server = subprocess.Popen(
        [LEASEHUB, "up", "--port", str(free_port())],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    ready = server.stdout.readline()
    assert '"ready"' in ready, (ready, server.stderr.read() if server.poll() is not None and server.stderr else "")
    yield tmp_path
    server.send_signal(signal.SIGINT)
    server.communicate(timeout=30)


@pytest.mark.processes
def test_the_tour_works_as_it_stands(served_folder: Path) -> None:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("LEASEHUB_", "DATABASE_", "CELERY_"))
    }
    done = subprocess.run(
        ["bash", "-eu", "-c", tour()],
        cwd=served_folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    shown = done.stdout + done.stderr
    assert done.returncode == 0, shown
    assert '"fencing_token"' in shown
    assert '"CONFLICT"' in shown
    assert shown.count("refused with exit 1") == 2
    assert "deploying with token" in shown
    assert "never printed" not in shown
    assert "now it is my turn" in shown
    assert shown.count('"lease.released"') == 2
    assert_the_queue_was_drained(served_folder, shown)


def assert_the_queue_was_drained(served_folder: Path, shown: str) -> None:
    """By the worker that was left: the killed one says nothing."""
    assert shown.count('"code":"empty"') == 1, shown
    assert '"returned":0,"lost":0' in shown
    for depth in ("ready", "delayed", "leased", "dead"):
        assert f'"{depth}": 0' in shown
    events = json.loads(leasehub_says(served_folder, "/v1/events?types=task.completed,lease.reaped"))["data"]["events"]
    types = [event["type"] for event in events]
    assert (types.count("task.completed"), types.count("lease.reaped")) == (4, 1)


def leasehub_says(served_folder: Path, path: str) -> bytes:
    known = json.loads((served_folder / ".leasehub" / "credentials.json").read_text())
    request = urllib.request.Request(known["url"] + path, headers={"Authorization": f"Bearer {known['token']}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        said: bytes = answer.read()
    return said


def test_the_tour_has_every_block() -> None:
    assert tour().count("leasehub ") >= 6
