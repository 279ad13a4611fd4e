"""Real processes, killed and stopped: every task is done once as far as tokens can tell, and none is lost."""

import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from leasehub.events.models import Event
from leases.models import Resource
from leases.queues import services
from leases.queues.engines import NewTask
from leases.queues.models import Task
from tests.conftest import Caster
from tests.queues.conftest import claim, engines
from tests.queues.workers import forked, until, work_until
from tests.replay import assert_the_journal_gives_the_state

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.processes]

FULL = os.environ.get("LEASEHUB_TEST_ROUNDS") == "full"
WORKERS = 16
TASKS = 10_000 if FULL else 400
PATIENCE_SECONDS = 1800 if FULL else 240


@pytest.fixture(autouse=True)
def short_leases(settings: Any, engine: str) -> None:
    if engine != engines()[0]:
        pytest.skip("the engine of the other database")
    settings.LEASEHUB_MIN_TTL_SECONDS = 1


def reaped(pid: int) -> int:
    return os.waitpid(pid, 0)[1]


def test_workers_that_are_killed_lose_nothing_and_nothing_is_done_twice(
    agent: Caster, tmp_path: Path, engine: str
) -> None:
    caller, stop, log = agent.caller, tmp_path / "stop", tmp_path / "log"
    for start in range(0, TASKS, 200):
        tasks = [NewTask(payload=n, max_attempts=1000) for n in range(start, min(start + 200, TASKS))]
        services.put(caller=caller, queue="build", tasks=tasks)
    chance = random.Random(41)
    seeds = iter(range(1, 1_000_000))

    def start_worker() -> int:
        seed = next(seeds)
        return forked(lambda: work_until(stop, caller=caller, queue="build", seed=seed, log=log))

    workers = [start_worker() for _ in range(WORKERS)]
    killed = 0
    try:
        give_up = time.monotonic() + PATIENCE_SECONDS
        while (left := Task.objects.exclude(state="done").count()) > 0:
            assert time.monotonic() < give_up, f"{left} tasks are not done"
            time.sleep(chance.random() * 0.2)
            if left > WORKERS:
                victim = chance.randrange(WORKERS)
                os.kill(workers[victim], signal.SIGKILL)
                reaped(workers[victim])
                workers[victim] = start_worker()
                killed += 1
    finally:
        stop.touch()
        assert [reaped(worker) for worker in workers] == [0] * WORKERS
    assert killed > 0
    assert_each_was_done_once(log)
    assert_the_journal_gives_the_state()


def assert_each_was_done_once(log: Path) -> None:
    assert Counter(Task.objects.values_list("state", flat=True)) == {"done": TASKS}
    assert not Resource.objects.filter(lease_id__isnull=False).exists()
    journal = list(Event.objects.filter(resource_type="task").order_by("pk").values_list("type", "resource_id"))
    counts = Counter(journal)
    for task in Task.objects.all():
        assert counts["task.completed", task.task_id] == 1
        assert counts["task.claimed", task.task_id] == task.attempts
        # Each claim but the last one ran out.
        assert counts["lease.reaped", task.task_id] == task.attempts - 1
    # A worker that was killed while it wrote leaves half a line.
    lines = [line for line in read(log) if line.startswith("{") and line.endswith("}")]
    said = [json.loads(line) for line in lines]
    accepted = Counter(line["task"] for line in said if "accepted" in line)
    assert set(accepted.values()) == {1}
    completed = {
        (resource_id[2:], token)
        for resource_id, token in Event.objects.filter(type="task.completed").values_list(
            "resource_id", "fencing_token"
        )
    }
    assert {(line["task"], line["token"]) for line in said if "accepted" in line} <= completed


def test_a_worker_that_was_paused_past_its_lease_is_refused_and_the_new_holder_is_untouched(
    agent: Caster, teammate: Caster, tmp_path: Path
) -> None:
    services.put(caller=agent.caller, queue="build", tasks=[NewTask()])
    caller, claimed, outcome, go = agent.caller, tmp_path / "claimed", tmp_path / "outcome", tmp_path / "go"

    def work() -> None:
        (mine,) = services.claim(caller=caller, queue="build", ttl_seconds=1)
        claimed.touch()
        while not go.exists():
            time.sleep(0.01)
        body = {"fencing_token": mine.fencing_token}
        answer = agent.post(f"tasks/t_{mine.task.hex}/complete", body)
        outcome.write_text(json.dumps([answer.status_code, answer.json()["error"]["ended_by"]]))

    worker = forked(work)
    until(claimed.exists)
    os.kill(worker, signal.SIGSTOP)
    taken: dict[str, Any] = {}
    until(lambda: bool(taken.update(claim(teammate, ttl_seconds=60) or {}) or taken))
    go.touch()
    os.kill(worker, signal.SIGCONT)
    assert reaped(worker) == 0
    assert json.loads(outcome.read_text()) == [410, "reaped"]
    done = teammate.post(f"tasks/{taken['task_id']}/complete", {"fencing_token": taken["fencing_token"]})
    assert done.status_code == 200


def test_a_younger_task_never_overtakes_one_that_both_could_see(agent: Caster, tmp_path: Path) -> None:
    """Several claimers at once, each noting what it took and when it asked."""
    caller, log = agent.caller, tmp_path / "log"
    count = 2000 if FULL else 160
    for start in range(0, count, 200):
        tasks = [NewTask(payload=n) for n in range(start, min(start + 200, count))]
        services.put(caller=caller, queue="build", tasks=tasks)

    def take() -> None:
        with log.open("a", buffering=1) as said:
            while True:
                asked = time.monotonic()
                if not (claims := services.claim(caller=caller, queue="build", ttl_seconds=60)):
                    return
                said.write(f"{claims[0].payload} {asked} {time.monotonic()}\n")

    workers = [forked(take) for _ in range(4)]
    assert [reaped(worker) for worker in workers] == [0] * 4
    took = [(int(place), float(asked), float(answered)) for place, asked, answered in map(str.split, read(log))]
    assert sorted(place for place, _, _ in took) == list(range(count))
    for place, _, answered in took:
        overtaken = [older for older, asked, _ in took if older < place and asked > answered]
        assert not overtaken, f"{place} came before {overtaken}"


def read(log: Path) -> list[str]:
    return log.read_text().splitlines()
