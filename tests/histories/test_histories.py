"""Real client processes against a real server, stopped and killed at random; what they recorded is judged."""

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from leasehub.events.models import Event
from leases import services
from tests import servers
from tests.concurrency.fixtures import Acme
from tests.conftest import Caster
from tests.histories.checker import check, read
from tests.replay import assert_the_journal_gives_the_state
from tests.rounds import rounds

SECONDS = rounds(5, full=30)
CLIENTS = rounds(4, full=8)


@pytest.mark.processes
def test_what_client_processes_saw_is_what_a_correct_server_does(acme: Acme, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    log, records = tmp_path / "server.log", tmp_path / "records"
    records.mkdir()
    with servers.serving(log, workers=2, LEASEHUB_MIN_TTL_SECONDS="1") as port:
        followers = [Follower(port, acme.operator) for _ in range(2)]
        reaper = Reaper()
        crew = Crew(port, acme, records, seed)
        crew.run()
        reaper.stop()
        seen = [follower.stop() for follower in followers]
    files = sorted(records.iterdir())
    operations = read(files)
    violations = check(operations)
    assert not violations, f"seed {seed}: " + "; ".join(map(str, violations[:5]))
    assert_the_journal_gives_the_state()
    assert_every_grant_is_journaled(operations)
    lines = [line for file in files for line in file.read_text().splitlines()]
    statuses = Counter(record["status"] for line in lines if "status" in (record := told(line)))
    assert set(statuses) <= {200, 201, 404, 409, 410, 503}, statuses
    assert statuses[201] > SECONDS and statuses[409] > SECONDS, statuses
    assert crew.stopped and crew.killed
    events = Event.objects.count()
    for positions in seen:
        assert positions == list(range(1, events + 1)), f"{len(positions)} of {events} events"


def told(line: str) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(line)
    except ValueError:
        return {}
    return record


def assert_every_grant_is_journaled(operations: Any) -> None:
    acquires = [operation for operation in operations if operation.verb == "acquire" and operation.ok]
    granted = {(acquire.resource, acquire.token) for acquire in acquires}
    starts = Event.objects.filter(type__in=("lease.acquired", "lease.taken_over"))
    journal = list(starts.values_list("resource_id", "fencing_token"))
    assert len(journal) == len(set(journal))
    assert granted <= set(journal)


class Crew:
    """The client processes, and what befalls them."""

    def __init__(self, port: int, acme: Acme, records: Path, seed: int) -> None:
        self.port, self.acme, self.records = port, acme, records
        self.dice = random.Random(seed)
        self.deadline = time.monotonic() + SECONDS
        self.started = self.stopped = self.killed = 0
        self.clients: list[subprocess.Popen[bytes]] = []

    def run(self) -> None:
        try:
            for _ in range(CLIENTS):
                self.start()
            while time.monotonic() < self.deadline:
                time.sleep(self.dice.uniform(0.2, 0.6))
                self.befall(self.dice.choice(self.clients))
            for client in self.clients:
                assert client.wait(30) == 0
        finally:
            for client in self.clients:
                client.kill()
                client.wait()

    def start(self) -> None:
        self.started += 1
        caster = (self.acme.alice, self.acme.bob)[self.started % 2]
        file = self.records / f"client-{self.started}.jsonl"
        left = max(0.1, self.deadline - time.monotonic())
        arguments = [str(self.port), caster.secret, str(file), str(self.dice.random()), str(left)]
        self.clients.append(
            subprocess.Popen([sys.executable, "-m", "tests.histories.client", *arguments], cwd=servers.ROOT)
        )

    def befall(self, client: "subprocess.Popen[bytes]") -> None:
        """A pause longer than some ttl, as of a garbage collector; or the end."""
        if self.stopped <= self.killed:
            client.send_signal(signal.SIGSTOP)
            time.sleep(self.dice.uniform(0.8, 2.0))
            client.send_signal(signal.SIGCONT)
            self.stopped += 1
        else:
            client.kill()
            client.wait()
            self.clients.remove(client)
            self.killed += 1
            self.start()


class Reaper(threading.Thread):
    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()
        self.start()

    def run(self) -> None:
        while not self.over.wait(0.3):
            services.reap_due()
        connection.close()

    def stop(self) -> None:
        self.over.set()
        self.join(30)


class Follower(threading.Thread):
    """Follows the feed by its cursor while it grows."""

    def __init__(self, port: int, caster: Caster) -> None:
        super().__init__(daemon=True)
        self.api = servers.Api(port, caster.secret)
        self.positions: list[int] = []
        self.cursor = "0"
        self.over = threading.Event()
        self.start()

    def run(self) -> None:
        while not self.over.wait(0.05):
            self.read()

    def read(self) -> int:
        data = self.api.get(f"/v1/events?after={self.cursor}&limit=200")["data"]
        self.positions += [event["position"] for event in data["events"]]
        self.cursor = data["cursor"]
        return len(data["events"])

    def stop(self) -> list[int]:
        """The positions seen, when there is nothing more to see."""
        self.over.set()
        self.join(30)
        while self.read():
            pass
        self.api.close()
        return self.positions
