"""Each command is a process of its own, as it is for its users."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.cli.fake_server import FakeServer

ROOT = Path(__file__).resolve().parent.parent.parent
COMMAND = [sys.executable, "-P", "-c", "import sys; from leasehub.cli import main; sys.exit(main())"]


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

    def __call__(self, *arguments, environment=None, **more):
        process = subprocess.run(
            [*COMMAND, *map(str, arguments)],
            cwd=self.folder,
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
def alice(fake, tmp_path):
    return CommandLine(tmp_path, fake.environment("alice"))


@pytest.fixture
def bob(fake, tmp_path):
    return CommandLine(tmp_path, fake.environment("bob"))
