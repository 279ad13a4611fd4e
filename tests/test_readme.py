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
from typing import Any

import pytest

from tests.browser import browser, open_page

__all__ = ["browser"]

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
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("LEASEHUB_", "DATABASE_", "CELERY_"))
    }
    server = subprocess.Popen(
        [LEASEHUB, "up", "--port", str(free_port())],
        cwd=tmp_path,
        env={**environment, "LEASEHUB_WEBHOOK_ALLOW": "127.0.0.1"},
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
def test_the_tour_works_as_it_stands(served_folder: Path, browser: Any) -> None:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("LEASEHUB_", "DATABASE_", "CELERY_"))
    }
    done = subprocess.run(
        ["bash", "-eu", "-c", tour()],
        cwd=served_folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
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
    assert_every_gate_found_its_slot_clean(shown)
    assert_the_lease_went_along(shown)
    assert_the_finisher_was_started(shown)
    a_person_accepts(served_folder, browser)


def assert_the_queue_was_drained(served_folder: Path, shown: str) -> None:
    """By the worker that was left: the killed one says nothing."""
    assert shown.count('"code":"empty"') == 1, shown
    assert '"returned":0,"lost":0' in shown
    for depth in ("ready", "delayed", "leased", "dead"):
        assert f'"{depth}": 0' in shown
    events = json.loads(leasehub_says(served_folder, "/v1/events?types=task.completed,lease.reaped"))["data"]["events"]
    seen = [(event["type"], event["resource_type"]) for event in events]
    assert (seen.count(("task.completed", "task")), seen.count(("lease.reaped", "task"))) == (4, 1)


def assert_every_gate_found_its_slot_clean(shown: str) -> None:
    """The third waited and got the slot of the one that ended; the killed one's was made anew for the next."""
    gates = re.findall(r"gate (\w+) is on slot (\d) and finds (\d+) files", shown)
    assert gates == [("one", "1", "0"), ("two", "2", "0"), ("three", "2", "0")], shown
    assert "queue position 1, eta ~1m" in shown
    assert re.findall(r"slot (\d) is made anew", shown) == ["1", "2", "2", "1"]
    assert "the killed one's slot 1 has 0 files" in shown


def assert_the_lease_went_along(shown: str) -> None:
    """To the finisher and only then to the one that waited all the while, each with a larger token."""
    acquired = re.findall(r'"code":"acquired","kind":"deploy-shop",.*?"owner":"(\w+)","token":(\d+)', shown)
    (moved,) = re.findall(r'"outcome": "moved".*?"fencing_token": (\d+)', shown, re.DOTALL)
    (_, first), (_, last) = acquired
    assert [owner for owner, _ in acquired] == ["builder", "other"]
    assert int(first) < int(moved) < int(last)
    assert shown.index('"code": "accepted"') < shown.index('"owner":"other"')


def assert_the_finisher_was_started(shown: str) -> None:
    """By the receiver, on the handoff that the feed shows beside it."""
    (started,) = re.findall(r"finisher starts on (hoff_[0-9a-f]{32})", shown)
    (told,) = re.findall(r'^\{"event_id":"evt_.*"type":"handoff.created".*$', shown, re.MULTILINE)
    assert started in told


def a_person_accepts(served_folder: Path, browser: Any) -> None:
    """The clicks that the README names, and what the builder's resource is then."""
    known = json.loads((served_folder / ".leasehub" / "credentials.json").read_text())
    page, complaints = open_page(browser, known["url"])
    page.goto("/")
    page.get_by_label("Name").fill(known["admin_user"])
    page.get_by_label("Password").fill(known["admin_password"])
    page.keyboard.press("Enter")
    page.get_by_role("link", name="Inbox").first.click()
    page.get_by_role("link", name="release-42").click()
    page.get_by_role("button", name="Accept").click()
    page.get_by_text("Accepted.").wait_for()
    status = "/v1/leases/status?resource_type=kind&resource_id=deploy-search"
    assert json.loads(leasehub_says(served_folder, status))["data"]["holder"] == "admin"
    page.get_by_role("button", name="Complete").wait_for()
    assert complaints == []


def leasehub_says(served_folder: Path, path: str) -> bytes:
    known = json.loads((served_folder / ".leasehub" / "credentials.json").read_text())
    request = urllib.request.Request(known["url"] + path, headers={"Authorization": f"Bearer {known['token']}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        said: bytes = answer.read()
    return said


def test_the_tour_has_every_block() -> None:
    assert tour().count("leasehub ") >= 6
