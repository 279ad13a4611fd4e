"""The race is real, and the lock decides it: many contenders on one resource, exactly one winner each round."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection
from django.db.models import F

from leases import granting, services
from leases.engines import portable
from leases.errors import Conflict
from leases.granting import Grant
from leases.models import Resource
from tests import servers
from tests.concurrency.fixtures import Acme, hurry
from tests.concurrency.frozen import FrozenClock
from tests.concurrency.sql import replaced
from tests.concurrency.stage import make_stage
from tests.concurrency.verbs import Scene, make_scene, operation, using
from tests.rounds import rounds

CONTENDERS = 64
ROUNDS = rounds(9, full=200)
# What the first readers of a row wait for the others; with locks the others cannot come.
MEETING_SECONDS = 0.3

RECHECK = "                    IF NOT (of_self AND p_reacquire) THEN\n                        outcome := CASE"
UNLOCKED = (
    # The row is read without a lock, and what was decided before is not decided again.
    ("lease_acquire", "resource_id = p_id\n            FOR UPDATE;", "resource_id = p_id;"),
    ("lease_acquire", RECHECK, RECHECK.replace("IF NOT (of_self AND p_reacquire)", "IF false")),
)


@contextmanager
def without_locks(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """The portable engine that trusts what it read: no row lock; on SQLite no transaction, so no writer lock."""
    with patch.context() as patched:
        patched.setattr(granting, "lock_rows", lambda rows, **options: rows.order_by("pk"))
        if connection.vendor == "sqlite":
            patched.setattr(portable, "transaction", SimpleNamespace(atomic=nullcontext))
        yield


def test_without_the_lock_two_get_the_same_resource(
    acme: Acme, frozen: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shows that the tests below could fail: in some order of steps both are told that it is theirs."""
    scene = make_scene(acme, frozen, "free")
    with using("portable", monkeypatch), without_locks(monkeypatch):
        assert any_twice(winners(scene, "portable"))


def test_with_the_lock_one_of_two_gets_it(acme: Acme, frozen: FrozenClock, monkeypatch: pytest.MonkeyPatch) -> None:
    with using("portable", monkeypatch):
        assert set(winners(make_scene(acme, frozen, "free"), "portable")) == {1}


def test_the_database_function_without_its_lock_grants_twice_too(
    acme: Acme, frozen: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    if connection.vendor == "postgresql":
        scene = make_scene(acme, frozen, "free")
        with using("plpgsql", monkeypatch):
            with replaced(*UNLOCKED):
                assert any_twice(winners(scene, "plpgsql"))
            assert set(winners(scene, "plpgsql")) == {1}


def winners(scene: Scene, engine: str) -> Iterator[int]:
    """How many of two got the free resource, for every order of their steps."""
    stage = make_stage(2)

    def operations() -> list[Callable[[], Any]]:
        scene.restore()
        return [operation(verb, scene, engine) for verb in ("acquire", "reacquire")]

    try:
        for play in stage.every_order(operations):
            yield sum(isinstance(result, Grant) for result in play.results)
    finally:
        stage.close()


def any_twice(counts: Iterator[int]) -> bool:
    with closing(counts):  # type: ignore[type-var]
        return 2 in counts


class Contest:
    """Contenders in threads of their own, each with a connection, who ask at once, round after round."""

    def __init__(self, acme: Acme, size: int) -> None:
        self.size = size
        self.resource = ""
        self.answers: list[Any] = [None] * size
        self.start = threading.Barrier(size + 1)
        self.end = threading.Barrier(size + 1)
        self.over = False
        self.callers = [acme.alice.caller, acme.bob.caller]
        self.threads = [threading.Thread(target=self._contend, args=[number], daemon=True) for number in range(size)]

    def __enter__(self) -> "Contest":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *failure: Any) -> None:
        self.over = True
        self.start.wait(30)
        for thread in self.threads:
            thread.join(30)

    def round(self, resource: str) -> list[Grant]:
        """All ask for the resource; who got it."""
        self.resource = resource
        self.start.wait(30)
        self.end.wait(120)
        assert all(isinstance(answer, Grant | Conflict) for answer in self.answers), self.answers
        return [answer for answer in self.answers if isinstance(answer, Grant)]

    def _contend(self, number: int) -> None:
        hurry()
        caller = self.callers[number % 2]
        while self.start.wait(60) >= 0 and not self.over:
            try:
                self.answers[number] = services.acquire(
                    caller=caller,
                    resource_type="deploy",
                    resource_id=self.resource,
                    holder=f"{caller.handle}-{number}",
                    ttl_seconds=60,
                )
            except Exception as refusal:
                self.answers[number] = refusal
            self.end.wait(60)
        connection.close()


def room() -> int:
    """64, or as many as the PostgreSQL server has connections left for."""
    if connection.vendor != "postgresql":
        return CONTENDERS
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int"
            " - count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
        )
        (left,) = cursor.fetchone()
    return int(max(8, min(CONTENDERS, left - 10)))


def meeting(size: int) -> Callable[..., Any]:
    """``lock_or_make``, after which everybody waits until all have read the row, or nobody more can come."""
    barrier = threading.Barrier(size)

    def meet(*given: Any, **named: Any) -> Resource:
        row = granting.lock_or_make(*given, **named)
        with suppress(threading.BrokenBarrierError):
            barrier.wait(MEETING_SECONDS)
        return row

    return meet


def release_once(acme: Acme, resource: str) -> None:
    """A free row: for a resource without one the unique constraint would stand in for the lock."""
    caller = acme.alice.caller
    lease = services.acquire(caller=caller, resource_type="deploy", resource_id=resource, ttl_seconds=60)
    services.release(caller=caller, lease_id=lease.lease_id)


def test_of_many_without_the_lock_many_win(acme: Acme, monkeypatch: pytest.MonkeyPatch) -> None:
    release_once(acme, "checkout")
    monkeypatch.setattr(portable, "lock_or_make", meeting(8))
    with using("portable", monkeypatch), without_locks(monkeypatch), Contest(acme, 8) as contest:
        assert len(contest.round("checkout")) > 1


def test_of_many_with_the_lock_one_wins(acme: Acme, monkeypatch: pytest.MonkeyPatch) -> None:
    release_once(acme, "checkout")
    monkeypatch.setattr(portable, "lock_or_make", meeting(8))
    with using("portable", monkeypatch), Contest(acme, 8) as contest:
        assert len(contest.round("checkout")) == 1


def test_many_contenders_have_exactly_one_winner_each_round(acme: Acme) -> None:
    """On a resource that nobody ever held, on one that was released, and on one whose lease ran out."""
    token = 0
    with Contest(acme, room()) as contest:
        for number in range(ROUNDS):
            if number % 3 == 0:
                resource, token = f"checkout-{number}", 0
            winners = contest.round(resource)
            assert len(winners) == 1, f"round {number}: {winners}"
            assert winners[0].fencing_token > token
            assert winners[0].took_over_expired == (number % 3 == 2)
            token = winners[0].fencing_token
            if number % 3 == 0:
                services.force_release(
                    actor=services.Actor(acme.organization, None),
                    lease_id=winners[0].lease_id,
                    fencing_token=token,
                    reason="next round",
                )
            else:
                let_run_out(resource)


def let_run_out(resource: str) -> None:
    hour = timedelta(hours=1)
    columns = ("acquired_at", "heartbeat_at", "expires_at", "check_at")
    Resource.objects.filter(resource_id=resource).update(**{column: F(column) - hour for column in columns})


@pytest.mark.processes
def test_many_client_processes_over_http_have_exactly_one_winner_each_round(acme: Acme, tmp_path: Path) -> None:
    """Eight processes with eight connections each, against two processes of the server."""
    with servers.serving(tmp_path / "server.log", workers=2) as port:
        clients = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.concurrency.contender", str(port), caster.secret, "8"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=servers.ROOT,
            )
            for caster in (acme.alice, acme.bob) * 4
        ]
        try:
            for client in clients:
                assert client.stdout and client.stdout.readline() == "ready\n"
            for number in range(ROUNDS):
                answers = http_round(clients, f"checkout-{number}")
                statuses = sorted(status for status, _, _ in answers)
                assert statuses == [201] + [409] * (CONTENDERS - 1), f"round {number}: {statuses}"
        finally:
            for client in clients:
                client.kill()
                client.communicate()
    assert Resource.objects.filter(lease_id__isnull=False).count() == ROUNDS


def http_round(clients: list["subprocess.Popen[str]"], resource: str) -> list[Any]:
    for number, client in enumerate(clients):
        assert client.stdin
        client.stdin.write(f"{resource} holder-{number}\n")
        client.stdin.flush()
    answers = []
    for client in clients:
        assert client.stdout
        answers += json.loads(client.stdout.readline())
    return answers
