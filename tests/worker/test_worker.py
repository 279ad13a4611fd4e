"""The worker with beat, as a process; and the scans it runs, many at once."""

import os
import signal
import sys
import threading
from typing import Any

import pytest
from celery import current_app
from django.db import connections

from leasehub import beat
from leasehub.events.models import Event
from leases import services
from leases.models import Resource
from tests.conftest import Caster
from tests.installation import Installation, eventually

EXPIRED = """
import uuid
from datetime import timedelta
from leasehub.db import clock
from leasehub.identity.models import Principal
from leases.models import Resource
at, principal = clock.now() - timedelta(hours=1), Principal.objects.get()
end = at + timedelta(minutes=1)
times = dict(acquired_at=at, heartbeat_at=at, expires_at=end, check_at=end)
held = dict(principal=principal, holder="gone", ttl_ms=60000, **times)
named = dict(organization_id=principal.organization_id, resource_type="deploy", last_token=1)
Resource.objects.bulk_create(
    Resource(resource_id=f"{tag}-{{number}}", lease_id=uuid.uuid4(), **named, **held) for number in range({count})
)
Resource.objects.count()
"""
REAPED = "SELECT resource_id, count(*) FROM events_event WHERE type = 'lease.reaped' GROUP BY resource_id"
WORKER = (sys.executable, "-m", "django", "worker")


def expire(installation: Installation, tag: str, count: int = 1) -> None:
    installation.python(EXPIRED.format(tag=tag, count=count))


def is_reaped(installation: Installation, tag: str) -> bool:
    return any(name.startswith(tag) for name, _ in installation.rows(REAPED))


@pytest.mark.processes
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_leases_are_reaped_while_nobody_calls_and_the_worker_stops_when_told(bootstrapped: Installation, end: int):
    worker = bootstrapped.start(*WORKER, LEASEHUB_REAPER_SECONDS="1")
    expire(bootstrapped, "first")
    eventually(lambda: is_reaped(bootstrapped, "first"))
    worker.send_signal(end)
    assert worker.wait(timeout=20) == 0


@pytest.mark.processes
def test_a_killed_worker_loses_nothing_and_the_next_goes_on(bootstrapped: Installation):
    worker = bootstrapped.start(*WORKER)
    expire(bootstrapped, "first")
    eventually(lambda: is_reaped(bootstrapped, "first"))
    expire(bootstrapped, "second", count=50)
    worker.kill()
    worker.wait()
    bootstrapped.start(*WORKER)
    eventually(lambda: len(bootstrapped.rows(REAPED)) == 51)
    assert all(times == 1 for _, times in bootstrapped.rows(REAPED))


@pytest.mark.processes
def test_two_workers_with_beat_reap_each_lease_once(bootstrapped: Installation):
    for _ in range(2):
        bootstrapped.start(*WORKER)
    for turn in range(3):
        expire(bootstrapped, f"turn{turn}", count=20)
        eventually(lambda turn=turn: is_reaped(bootstrapped, f"turn{turn}"))
    eventually(lambda: len(bootstrapped.rows(REAPED)) == 60)
    assert all(times == 1 for _, times in bootstrapped.rows(REAPED))


SUPERVISOR = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-m", "django", "worker"])
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.processes
def test_the_worker_ends_with_a_supervisor_that_was_killed(bootstrapped: Installation):
    supervisor = bootstrapped.start(sys.executable, "-c", SUPERVISOR, LEASEHUB_SUPERVISED="1")
    assert supervisor.stdout is not None
    worker = int(supervisor.stdout.readline())
    try:
        expire(bootstrapped, "first")
        eventually(lambda: is_reaped(bootstrapped, "first"))
        supervisor.kill()
        supervisor.wait()
        eventually(lambda: has_ended(worker))
    finally:
        if not has_ended(worker):
            os.kill(worker, signal.SIGKILL)


def has_ended(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as status:
            # A zombie waits for whoever adopted it.
            return status.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.processes
def test_a_prefork_worker_reaps(bootstrapped: Installation):
    """`celery -A leasehub worker`, as a fleet runs it; with beat inside, since the test's broker is in memory.

    Beat begins when the processes were forked: they may not open SQLite if it has it open by then.
    """
    expire(bootstrapped, "first", count=5)
    code = (
        "from celery.signals import worker_ready; from leasehub.celery import app; from leasehub.beat import Beat;"
        "beat = Beat(app); worker_ready.connect(lambda **_: beat.start(), weak=False);"
        "app.worker_main(['worker', '--pool=prefork', '--concurrency=2', '--loglevel=WARNING'])"
    )
    worker = bootstrapped.start(sys.executable, "-c", f"import django; django.setup(); {code}")
    eventually(lambda: len(bootstrapped.rows(REAPED)) == 5)
    worker.terminate()
    worker.wait(timeout=30)


@pytest.mark.django_db(transaction=True)
def test_five_reapers_at_once_write_one_event_for_each_lease(agent: Caster, clock: Any):
    for number in range(300):
        agent.acquire(f"r{number}")
    clock.move(minutes=5)
    gate, counts = threading.Barrier(5), []

    def reap() -> None:
        gate.wait()
        counts.append(services.reap_due())
        connections.close_all()

    threads = [threading.Thread(target=reap) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    services.reap_due()
    reaped = list(Event.objects.filter(type="lease.reaped").values_list("resource_id", flat=True))
    assert len(reaped) == len(set(reaped)) == 300
    assert not Resource.objects.filter(lease_id__isnull=False).exists()


class Fails:
    """A service that fails once, as when the database is away, and then runs until it is told to stop."""

    made = 0
    running = threading.Event()

    def __init__(self, app: Any, **given: Any) -> None:
        type(self).made += 1
        self.told = threading.Event()

    def start(self) -> None:
        if self.made == 1:
            raise ConnectionError("the database is away")
        self.running.set()
        self.told.wait()

    def stop(self, wait: bool) -> None:
        assert not wait
        self.told.set()


def test_beat_begins_again_when_it_fails(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(beat, "Service", Fails)
    monkeypatch.setattr(beat, "AGAIN_SECONDS", 0.01)
    thread = beat.Beat(current_app)
    thread.start()
    assert Fails.running.wait(10)
    thread.end()
    thread.join(10)
    assert not thread.is_alive() and Fails.made == 2


def test_reaping_by_hand(agent: Caster, clock: Any, capsys: pytest.CaptureFixture[str]):
    from django.core.management import call_command

    agent.acquire()
    call_command("reap")
    clock.move(minutes=5)
    call_command("reap")
    assert capsys.readouterr().out.splitlines() == ["0 reaped", "1 reaped"]
