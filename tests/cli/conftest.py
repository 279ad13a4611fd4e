"""Each command is a process of its own, as it is for its users; the server is the one of `leasehub up`."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.fake_server import FakeServer

ROOT = Path(__file__).resolve().parent.parent.parent
COMMAND = [sys.executable, "-P", "-c", "import sys; from leasehub.cli import main; sys.exit(main())"]
PATIENCE_SECONDS = 30
ENVIRONMENT = {
    "LEASEHUB_MIN_TTL_SECONDS": "1",
    "LEASEHUB_REAPER_SECONDS": "86400",
    "LEASEHUB_WEBHOOK_ALLOW": "127.0.0.0/8",
}


class Outcome:
    def __init__(self, process):
        self.status = process.returncode
        self.text = process.stdout
        self.errors = process.stderr

    @property
    def said(self):
        """The one JSON object on stdout."""
        assert self.text.endswith("\n"), (self.text, self.errors)
        return json.loads(self.text)


class CommandLine:
    def __init__(self, folder, environment):
        self.folder = folder
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "PYTHONPATH": str(ROOT),
            **environment,
        }

    def __call__(self, *arguments, environment=None, cwd=None, **more):
        process = subprocess.run(
            [*COMMAND, *map(str, arguments)],
            cwd=cwd or self.folder,
            env={**self.environment, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=60,
            **more,
        )
        return Outcome(process)

    def start(self, *arguments, environment=None, **more):
        return subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            cwd=self.folder,
            env={**self.environment, **(environment or {})},
            **more,
        )


def until(condition):
    """What the condition answers, once it is true; fails when it never is."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < give_up:
        if answer := condition():
            return answer
        time.sleep(0.02)
    raise AssertionError(f"never came true: {condition}")


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def up(folder, port):
    """`leasehub up` in that folder: its credentials. Leases may be as short as a second, and the reaper does not come:
    what has run out stays until a test's command ends it."""
    command_line = CommandLine(folder, ENVIRONMENT)
    with (folder / "errors").open("a") as errors:
        process = command_line.start("up", "--port", port, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        said = process.stdout.readline()
        assert '"ready"' in said, (said, (folder / "errors").read_text())
        yield json.loads((folder / ".leasehub" / "credentials.json").read_text())
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_SECONDS)
        process.stdout.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """A real server on SQLite; its credentials and where it is."""
    folder = tmp_path_factory.mktemp("server")
    with up(folder, free_port()) as credentials:
        yield {**credentials, "folder": folder}


@pytest.fixture(scope="session")
def person(server, tmp_path_factory):
    """Makes a command line with a key of its own, for a principal of that name."""

    def make(name, *flags):
        folder = tmp_path_factory.mktemp(name)
        admin = CommandLine(folder, {"LEASEHUB_URL": server["url"], "LEASEHUB_TOKEN": server["token"]})
        made = admin("key", "create", "--principal", name, *flags)
        environment = {"LEASEHUB_URL": server["url"], "LEASEHUB_TOKEN": made.said["api_key"]}
        command_line = CommandLine(folder, environment)
        command_line.key_id = made.said["key_id"]
        return command_line

    return make


@pytest.fixture(scope="session")
def operator(person):
    return person("olga", "--rings", "1,2,3")


@pytest.fixture(scope="session")
def alice(person):
    return person("alice")


@pytest.fixture(scope="session")
def bob(person):
    return person("bob")


@pytest.fixture(scope="session")
def outsider(person):
    """May act but not observe."""
    return person("otto", "--rings", "2")


@pytest.fixture
def kind(request):
    """A kind that no other test has."""
    return f"k-{time.time_ns()}"


@pytest.fixture
def fake():
    server = FakeServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def faulty(fake, tmp_path):
    """The command line of alice at the server whose faults are made by hand."""
    return CommandLine(tmp_path, fake.environment("alice"))
