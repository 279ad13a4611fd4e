"""Every follower sees every position once, in order: whatever commits when, and whoever is killed."""

import http.client
import json
import os
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction

from leasehub.events.models import Event
from tests.conftest import Caster
from tests.events.streaming import Reader
from tests.rounds import FULL, rounds
from tests.servers import Server, started

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.processes]

WRITERS = rounds(4, full=16)
EVENTS = rounds(160, full=50_000)
KILLS = rounds(1, full=20)

Seen = list[dict[str, Any]]


class Following:
    """A reader that starts at the beginning, goes to another server when its own is killed, and reads on."""

    def __init__(self, secret: str, servers: list[Server]) -> None:
        self.secret = secret
        self.servers = servers
        self.seen: Seen = []
        self.is_done: Callable[[], bool] = lambda: False

    @property
    def position(self) -> int:
        return int(self.seen[-1]["position"]) if self.seen else 0

    def read_until(self, end: Callable[[], int | None]) -> None:
        turn = 0
        self.is_done = lambda: (last := end()) is not None and self.position >= last
        while not self.is_done():
            turn += 1
            try:
                self.read_some(self.servers[turn % 2].port)
            except (OSError, http.client.HTTPException):
                continue

    def read_some(self, port: int) -> None:
        raise NotImplementedError

    def page(self, port: int, query: str) -> None:
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            path = f"/v1/events?after={self.position}&{query}"
            client.request("GET", path, headers={"Authorization": f"Bearer {self.secret}"})
            response = client.getresponse()
            content = response.read()
            if response.status == 200:
                self.seen += json.loads(content)["data"]["events"]
        finally:
            client.close()


class ByPages(Following):
    def read_some(self, port: int) -> None:
        self.page(port, "limit=7")


class ByWaiting(Following):
    def read_some(self, port: int) -> None:
        self.page(port, "limit=200&wait_seconds=1")


class ByStream(Following):
    def read_some(self, port: int) -> None:
        reader = Reader(port, self.secret, **{"Last-Event-ID": str(self.position)})
        try:
            if reader.response.status != 200:
                return
            # A bounded number, so that it also goes on from where it was.
            for _ in range(100):
                if self.is_done():
                    return
                told = reader.next(among=("lease.acquired", "lease.released", "comment"))
                if told is None or (told.type == "comment" and self.position):
                    return
                if told.type != "comment":
                    assert told.id == told.data["position"]
                    self.seen.append(told.data)
        finally:
            reader.close()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Server]]:
    """Two on one database. The second may be killed and replaced."""
    with ExitStack() as stack:
        yield [stack.enter_context(started(tmp_path / f"{name}.log")) for name in ("first", "second")]


def test_many_writers_and_followers_and_a_server_that_is_killed(
    agent: Caster, servers: list[Server], tmp_path: Path
) -> None:
    followers = [kind(agent.secret, servers) for kind in (ByPages, ByWaiting, ByStream)]
    end: list[int] = []
    with ThreadPoolExecutor(WRITERS + len(followers)) as threads, ExitStack() as replacements:
        reading = [threads.submit(follower.read_until, lambda: end[0] if end else None) for follower in followers]
        written = threading.Semaphore(0)
        writing = [threads.submit(write, agent.secret, servers, str(number), written) for number in range(WRITERS)]
        for _ in range(KILLS):
            for _ in range(EVENTS // 2 // (KILLS + 1)):
                written.acquire()
            os.killpg(servers[1].process.pid, signal.SIGKILL)
            if FULL:
                servers[1] = replacements.enter_context(started(tmp_path / "replacement.log"))
        for writer in writing:
            writer.result()
        # Not the feed's tail: while a server numbers events, that of the others is behind.
        end.append(Event.objects.count() + 1)
        # Wakes those who have seen all and wait for more.
        agent.acquire("last")
        for follower in reading:
            follower.result(timeout=600 if FULL else 60)
    for follower in followers:
        assert [event["position"] for event in follower.seen] == list(range(1, end[0] + 1)), type(follower)
        assert_in_order_of_each_resource(follower.seen)
    assert Event.objects.count() == end[0] >= EVENTS * 0.9


def write(secret: str, servers: list[Server], name: str, written: threading.Semaphore) -> None:
    """Takes and gives back a resource, time and again, at either server."""
    headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
    for number in range(EVENTS // WRITERS // 2):
        body = json.dumps({"resource_type": "deploy", "resource_id": name, "ttl_seconds": 60})
        for port in (servers[number % 2].port, servers[0].port):
            client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            try:
                client.request("POST", "/v1/leases", body, headers)
                lease = json.loads(client.getresponse().read())["data"]["lease_id"]
                client.request("DELETE", f"/v1/leases/{lease}", headers=headers)
                client.getresponse().read()
                break
            except (OSError, http.client.HTTPException, KeyError):
                continue
            finally:
                client.close()
        written.release()


def assert_in_order_of_each_resource(seen: Seen) -> None:
    tokens: dict[str, int] = defaultdict(int)
    for event in seen:
        name = event["resource_id"]
        if event["type"] == "lease.acquired":
            assert event["fencing_token"] > tokens[name], event
            tokens[name] = event["fencing_token"]
        else:
            assert event["fencing_token"] == tokens[name], event


@pytest.mark.skipif("sqlite" in connection.settings_dict["ENGINE"], reason="SQLite has one writer")
def test_what_commits_late_comes_later_to_every_follower(agent: Caster, tmp_path: Path) -> None:
    """The second of two transactions commits first, and both are followed while they do."""
    with started(tmp_path / "server.log") as server:
        followers = [kind(agent.secret, [server, server]) for kind in (ByPages, ByWaiting, ByStream)]
        with ThreadPoolExecutor(len(followers) + 1) as threads:
            reading = [threads.submit(follower.read_until, lambda: 2) for follower in followers]
            with transaction.atomic():
                agent.acquire("first")
                threads.submit(acquire_aside, agent, "second").result(timeout=20)
                while any(follower.position < 1 for follower in followers):
                    threading.Event().wait(0.02)
            for follower in reading:
                follower.result(timeout=60)
    for follower in followers:
        assert [(event["position"], event["resource_id"]) for event in follower.seen] == [(1, "second"), (2, "first")]
    first, second = Event.objects.order_by("pk").values_list("resource_id", flat=True)
    assert (first, second) == ("first", "second"), "the commits did not cross"


def acquire_aside(agent: Caster, name: str) -> None:
    try:
        agent.acquire(name)
    finally:
        connection.close()
