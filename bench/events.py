"""The feed: a page with many events on file, what an event costs, how soon it arrives, many followers, numbering."""

import http.client
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import ground, load, pgbench, processes
from bench.figure import Figure, Goal, Plan, Row, in_turns, milliseconds, per_second, ratio
from bench.ground import Ground
from bench.hot_path import HEALTH, LEASEHUB, function_rate, http_acquire
from bench.load import Talk, request

PAGE, FEW = 50, 1000
FULL, SHORT = "of many", "of few"
WITH, WITHOUT = "with its event", "without"
#: An insert into the journal does nothing: what is left is the acquire without its event.
NO_JOURNAL = "CREATE RULE no_journal AS ON INSERT TO events_event DO INSTEAD NOTHING"
UNNUMBERED = "UPDATE events_event SET position = NULL"
BEGIN_AGAIN = "UPDATE events_feed SET last_position = 0, low_water = 0, candidate = 0, candidate_xid = 0"
ROOT = Path(__file__).resolve().parent.parent


def figures(plan: Plan, base: Ground) -> Iterator[Row]:
    ground.forget_all(base)
    ground.journal(base, FEW)
    with ground.copied(base) as full, ground.copied(base) as silent:
        ground.forget_all(full)
        ground.journal(full, plan.feed)
        silent.execute(NO_JOURNAL)
        with processes.granian(LEASEHUB, base.environment, HEALTH) as port:
            with processes.granian(LEASEHUB, full.environment, HEALTH) as full_port:
                yield _page(plan, base, port, full_port)
            yield _share(plan, base, silent)
            yield from _arrival(plan, "PostgreSQL", port, base.secret, Goal(300, at_least=False, unit=" ms"))
            yield _followed(plan, base, port)
    with _embedded() as (port, secret):
        yield from _arrival(plan, "SQLite", port, secret, Goal(1000, at_least=False, unit=" ms"))
    yield _numbering(plan, base)


def _page(plan: Plan, base: Ground, port: int, full_port: int) -> Row:
    def seconds(port: int, events: int, plan: Plan = plan) -> float:
        def asked() -> Talk:
            page = request("GET", f"/v1/events?after={events - PAGE}&limit={PAGE}", token=base.secret)
            while True:
                yield page

        return 1 / load.run(port, asked, expect=200, seconds=plan.seconds, connections=1).rate

    sides: dict[str, Callable[[], float]] = {
        FULL: lambda: seconds(full_port, plan.feed),
        SHORT: lambda: seconds(port, FEW),
    }
    for side in sides.values():
        side()
    what = f"a page of {PAGE} events at the tail of {plan.feed:,} against one of {FEW:,}"
    return ratio(what, in_turns(plan.rounds, sides), FULL, SHORT, Goal(1.2, at_least=False), shown=milliseconds)


def _share(plan: Plan, base: Ground, silent: Ground) -> Row:
    sides: dict[str, Callable[[], float]] = {
        WITH: lambda: function_rate(base, pgbench.acquire(base.key, "event."), plan),
        WITHOUT: lambda: function_rate(silent, pgbench.acquire(silent.key, "event."), plan),
    }
    seen = in_turns(plan.rounds, sides)
    return ratio("acquire, 8 clients, against the same without its event", seen, WITH, WITHOUT, Goal(0.75))


def _arrival(plan: Plan, database: str, port: int, secret: str, goal: Goal) -> Iterator[Row]:
    """From when an acquire is sent until its event has come, so the acquire is part of it."""
    for way, arrive in {"a stream": _by_stream, "a read that waits": _by_waiting}.items():
        seen = [arrive(port, secret, plan.arrivals) for _ in range(plan.rounds)]
        yield Figure(
            f"an event reaches {way}, {database}, the median", seen, goal, ours=f"{plan.arrivals} events a round"
        )


def _by_stream(port: int, secret: str, arrivals: int) -> float:
    reader = _Client(port, secret)
    stream = reader.get("/v1/events/stream?after=tail")
    writer = _Client(port, secret)
    seen = []
    for number in range(arrivals):
        _pause()
        name, sent = f"stream.{time.time_ns()}.{number}", time.perf_counter()
        writer.acquire(name)
        while name.encode() not in stream.readline():
            pass
        seen.append(time.perf_counter() - sent)
    reader.close()
    writer.close()
    return _median(seen)


def _by_waiting(port: int, secret: str, arrivals: int) -> float:
    reader, writer = _Client(port, secret), _Client(port, secret)
    cursor = json.loads(reader.get("/v1/events?after=tail").read())["data"]["cursor"]
    seen = []
    for number in range(arrivals):
        reader.ask(f"/v1/events?after={cursor}&wait_seconds=20")
        _pause()
        sent = time.perf_counter()
        writer.acquire(f"wait.{time.time_ns()}.{number}")
        page = json.loads(reader.answer().read())["data"]
        seen.append(time.perf_counter() - sent)
        cursor = page["cursor"]
    reader.close()
    writer.close()
    return _median(seen)


def _pause() -> None:
    # At no fixed place between two looks of the server.
    time.sleep(random.uniform(0.2, 0.5))


def _median(seconds: list[float]) -> float:
    return load.percentile(sorted(seconds), 50) * 1000


class _Client:
    def __init__(self, port: int, secret: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._headers = {"Authorization": f"Bearer {secret}"}

    def ask(self, path: str) -> None:
        self._connection.request("GET", path, headers=self._headers)

    def answer(self) -> http.client.HTTPResponse:
        response = self._connection.getresponse()
        if response.status not in (200, 201):
            raise load.WrongAnswer(response.read().decode())
        return response

    def get(self, path: str) -> http.client.HTTPResponse:
        self.ask(path)
        return self.answer()

    def acquire(self, name: str) -> None:
        body = json.dumps({"resource_type": "bench", "resource_id": name, "ttl_seconds": 60, "holder": "bench"})
        headers = {**self._headers, "Content-Type": "application/json"}
        self._connection.request("POST", "/v1/leases", body, headers)
        self.answer().read()

    def close(self) -> None:
        self._connection.close()


def _followed(plan: Plan, base: Ground, port: int) -> Row:
    alone, followed = "nobody follows", f"{plan.followers} follow"

    def p95() -> float:
        return load.percentile(http_acquire(base, port, plan).latencies, 95)

    def p95_followed() -> float:
        with _followers(port, base.secret, plan.followers):
            return p95()

    p95()
    seen = in_turns(plan.rounds, {followed: p95_followed, alone: p95})
    what = f"95th percentile of acquire, 8 clients, while {plan.followers} streams follow each, against none"
    return ratio(what, seen, followed, alone, Goal(2.0, at_least=False), shown=milliseconds)


@contextmanager
def _followers(port: int, secret: str, count: int) -> Iterator[None]:
    command = [sys.executable, "-m", "bench.followers", str(port), secret, str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as followers:
        assert followers.stdout is not None and followers.stdin is not None
        if followers.stdout.readline() != b"ready\n":
            raise load.WrongAnswer(f"{count} streams could not be opened")
        yield
        if followers.poll() is not None:
            raise load.WrongAnswer("a stream ended")
        followers.stdin.close()


@contextmanager
def _embedded() -> Iterator[tuple[int, str]]:
    """``leasehub up`` with its SQLite: its port and its key."""
    port = processes.free_port()
    start = "import sys; from leasehub.cli import main; sys.exit(main())"
    with tempfile.TemporaryDirectory(prefix="leasehub-up-") as data:
        command = [sys.executable, "-c", start, "up", "--data", data, "--port", str(port)]
        environment = {
            "DATABASE_URL": "", "CELERY_BROKER_URL": "", "LEASEHUB_SECRET_KEY": "",
            "DJANGO_SETTINGS_MODULE": "leasehub.settings", "PYTHONPATH": str(ROOT),
        }  # fmt: skip
        with processes.running(command, environment, silent=True):
            processes.await_http(port, "/readyz")
            yield port, json.loads((Path(data) / "credentials.json").read_text())["token"]


def _numbering(plan: Plan, base: Ground) -> Row:
    from django.db import connection

    from leasehub.events import feed

    ground.forget_all(base)
    ground.journal(base, plan.feed // 10)

    def rate() -> float:
        base.execute(UNNUMBERED, BEGIN_AGAIN, "VACUUM events_event")
        began = time.perf_counter()
        numbered = feed.stamp_all()
        return numbered / (time.perf_counter() - began)

    seen = [rate() for _ in range(plan.rounds)]
    connection.close()
    ours = per_second(sorted(seen)[len(seen) // 2])
    return Figure(f"events numbered a second, {plan.feed // 10:,} at a go", seen, Goal(5000, unit="/s"), ours=ours)
