"""The one writer of SQLite: in order of arrival, across processes, and never for ever."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from leasehub.db.sqlite.writer_lock import WriterLock, WriterLockTimeout, writer_lock
from leases.models import Resource
from tests import servers
from tests.concurrency.fixtures import Acme
from tests.concurrency.waiting import await_that
from tests.conftest import error_of

SECONDS = 10


@pytest.fixture
def lock(tmp_path: Path) -> WriterLock:
    return WriterLock(tmp_path / "writer-lock")


def start(target: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread


def test_threads_get_their_turn_in_the_order_in_which_they_came(lock: WriterLock) -> None:
    turns: list[int] = []

    def write(number: int) -> None:
        lock.acquire(timeout_seconds=SECONDS)
        turns.append(number)
        lock.release()

    lock.acquire(timeout_seconds=SECONDS)
    threads = []
    for number in range(20):
        threads.append(start(lambda number=number: write(number)))  # type: ignore[misc]
        await_that(lambda number=number: len(lock._queue) == number + 1)  # type: ignore[misc]
    lock.release()
    for thread in threads:
        thread.join(SECONDS)
    assert turns == list(range(20))


def test_one_that_gave_up_waiting_holds_up_nobody(lock: WriterLock) -> None:
    outcomes: list[str] = []

    def give_up() -> None:
        try:
            lock.acquire(timeout_seconds=0.05)
        except WriterLockTimeout:
            outcomes.append("gave up")

    def wait() -> None:
        lock.acquire(timeout_seconds=SECONDS)
        outcomes.append("wrote")
        lock.release()

    lock.acquire(timeout_seconds=SECONDS)
    impatient = start(give_up)
    await_that(lambda: len(lock._queue) == 1)
    patient = start(wait)
    await_that(lambda: len(lock._queue) == 2)
    impatient.join(SECONDS)
    lock.release()
    patient.join(SECONDS)
    assert outcomes == ["gave up", "wrote"]
    lock.acquire(timeout_seconds=0)


WRITER = """
import json, sys, threading, time
from pathlib import Path
from leasehub.db.sqlite.writer_lock import WriterLock

lock, threads, seconds, hold = WriterLock(Path(sys.argv[1])), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
turns = 0

def write():
    global turns
    while time.monotonic() < deadline:
        lock.acquire(timeout_seconds=30)
        if time.monotonic() < deadline:
            turns += 1
        time.sleep(hold)
        lock.release()

print("ready", flush=True)
sys.stdin.readline()
deadline = time.monotonic() + seconds
writers = [threading.Thread(target=write) for _ in range(threads)]
for writer in writers: writer.start()
for writer in writers: writer.join()
print(json.dumps(turns), flush=True)
"""


@contextmanager
def process(code: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """A Python process that has said that it is ready."""
    started = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=servers.ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert started.stdout and started.stdout.readline() == "ready\n"
        yield started
    finally:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.communicate()


@pytest.mark.processes
@pytest.mark.parametrize("threads", [(1, 1), (8, 1)], ids=["one thread each", "eight threads against one"])
def test_two_processes_alternate(threads: tuple[int, int], tmp_path: Path) -> None:
    file = str(tmp_path / "writer-lock")
    with (
        process(WRITER, file, str(threads[0]), "1.5", "0.002") as first,
        process(WRITER, file, str(threads[1]), "1.5", "0.002") as second,
    ):
        for writer in (first, second):
            assert writer.stdin
            writer.stdin.write("go\n")
            writer.stdin.flush()
        turns = [json.loads(writer.stdout.readline()) for writer in (first, second) if writer.stdout]
    # Alternating turns would be a half each; a lock that starves gives one of them a few in a hundred.
    assert min(turns) > 0.25 * sum(turns), turns


HOLDER = """
import os, sys, time
from leasehub.db.sqlite.writer_lock import WriterLockTimeout, writer_lock

lock = writer_lock(sys.argv[1])
lock.acquire(timeout_seconds=5)
if sys.argv[2] == "fork" and os.fork() == 0:
    try:
        lock.acquire(timeout_seconds=0.05)
    except WriterLockTimeout:
        print("ready", flush=True)
    time.sleep(60)
    os._exit(0)
if sys.argv[2] == "alone":
    print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.processes
@pytest.mark.parametrize("way", ["alone", "fork"])
def test_a_killed_holder_lets_go_at_once(way: str, tmp_path: Path) -> None:
    """Also when a process that it forked lives on; and that one knows that it does not hold the lock."""
    database = str(tmp_path / "database")
    with process(HOLDER, database, way) as holder:
        lock = WriterLock(Path(f"{database}.writer-lock"))
        with pytest.raises(WriterLockTimeout):
            lock.acquire(timeout_seconds=0.05)
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait(SECONDS)
        lock.acquire(timeout_seconds=1)


@pytest.fixture
def busy(acme: Acme, settings: Any) -> Iterator[Acme]:
    """Somebody writes, and does not end."""
    if connection.vendor != "sqlite":
        pytest.skip("PostgreSQL has many writers")
    settings.LEASEHUB_LOCK_TIMEOUT_MS = 50
    # The first use of a key in a minute is written down.
    acme.alice.get("whoami")
    lock = writer_lock(str(connection.settings_dict["NAME"]))
    holder, over = threading.Event(), threading.Event()

    def write() -> None:
        lock.acquire(timeout_seconds=SECONDS)
        holder.set()
        over.wait(SECONDS)
        lock.release()

    thread = start(write)
    assert holder.wait(SECONDS)
    yield acme
    over.set()
    thread.join(SECONDS)
    assert acme.alice.acquire().status_code == 201


def test_a_writer_that_waits_too_long_is_told_when_to_come_back(busy: Acme) -> None:
    response = busy.alice.acquire()
    refused = error_of(response)
    assert (refused["status"], refused["code"]) == (503, "UNAVAILABLE")
    assert refused["retry_after_ms"] > 0
    assert int(response.headers["Retry-After"]) >= 1
    assert not Resource.objects.exists()


def test_readers_do_not_wait_for_the_writer(busy: Acme) -> None:
    assert busy.alice.get("leases/status?resource_type=deploy&resource_id=checkout").status_code == 200
    assert busy.alice.get("leases").status_code == 200


def test_the_first_use_of_a_key_does_not_wait_for_the_writer(busy: Acme) -> None:
    assert busy.bob.get("leases").status_code == 200
