"""A server of its own for a test: a data folder, a fresh database of the kind under test, real processes."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.conf import settings

URL = "http://127.0.0.1:8787"
LONGEST_WAIT_SECONDS = 60.0


class Installation:
    def __init__(self, data: Path, database: str) -> None:
        self.data = data
        self.environment = {
            **os.environ,
            "LEASEHUB_DATA": str(data),
            "DATABASE_URL": database,
            "DJANGO_SETTINGS_MODULE": "leasehub.settings",
            "CELERY_BROKER_URL": "",
        }
        self.started: list[subprocess.Popen[str]] = []

    @property
    def credentials(self) -> dict[str, str]:
        document: dict[str, str] = json.loads((self.data / "credentials.json").read_text())
        return document

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "django", *words]

    def start(self, *command: str, **environment: str) -> "subprocess.Popen[str]":
        with (self.data.parent / "stderr").open("a") as stderr:
            process = subprocess.Popen(
                command, env={**self.environment, **environment}, stdout=subprocess.PIPE, stderr=stderr, text=True
            )
        self.started.append(process)
        return process

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=LONGEST_WAIT_SECONDS, check=False
        )

    def rows(self, statement: str) -> list[Any]:
        """What its database answers, without a process of its own."""
        if address := self.environment["DATABASE_URL"]:
            with psycopg.connect(address) as database:
                return database.execute(statement).fetchall()
        with closing(sqlite3.connect(self.data / "leasehub.sqlite3", timeout=30)) as file:
            return file.execute(statement).fetchall()

    def bootstrap(self, url: str = URL) -> dict[str, Any]:
        done = self.run(*self.command("bootstrap", "--url", url))
        assert done.returncode == 0, done.stderr
        facts: dict[str, Any] = json.loads(done.stdout)
        return facts

    def python(self, code: str) -> Any:
        """The value of the last line's expression, computed by a process of this server."""
        *lines, last = code.strip().splitlines()
        whole = "\n".join(["import django, json; django.setup()", *lines, f"print(json.dumps({last}))"])
        done = self.run(sys.executable, "-c", whole)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def stop(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@contextmanager
def prepared(data: Path, like: Installation | None = None) -> Iterator[Installation]:
    """One without anything, or a copy."""
    if like is not None:
        shutil.copytree(like.data, data)
    configured = settings.DATABASES["default"]
    if "postgresql" not in configured["ENGINE"]:
        made = Installation(data, "")
        try:
            yield made
        finally:
            made.stop()
        return
    name = f"leasehub_{uuid.uuid4().hex[:12]}"
    template = "template1" if like is None else like.environment["DATABASE_URL"].rpartition("/")[2]
    server = {part: configured[part.upper()] or None for part in ("host", "port", "user", "password")}
    with psycopg.connect(dbname="postgres", autocommit=True, **server) as administration:
        administration.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        made = Installation(data, os.environ["DATABASE_URL"].rpartition("/")[0] + f"/{name}")
        try:
            yield made
        finally:
            made.stop()
            administration.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    with prepared(tmp_path / "data") as made:
        yield made


@pytest.fixture(scope="session")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with prepared(tmp_path_factory.mktemp("first-run") / "data") as made:
        made.bootstrap()
        yield made


@pytest.fixture
def bootstrapped(tmp_path: Path, first_run: Installation) -> Iterator[Installation]:
    """As after its first run, which takes seconds, and so is copied."""
    with prepared(tmp_path / "data", like=first_run) as made:
        yield made


def eventually(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONGEST_WAIT_SECONDS
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.2)
