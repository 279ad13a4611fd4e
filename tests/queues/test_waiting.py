"""Calls that wait for a task: woken, bounded, and holding nothing meanwhile."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, connections

from leasehub.api import waiting as places
from leases.queues import waiting as task_waiting
from leases.queues.models import Queue
from leases.queues.waiting import CHANNEL, _say_awaited, watch
from tests.conftest import Caster, error_of
from tests.queues.conftest import ON_SQLITE, claim, put

pytestmark = pytest.mark.django_db(transaction=True)

Waiting = Callable[..., "Future[Any]"]


@pytest.fixture(autouse=True)
def thread_that_goes_when_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("leases.queues.waiting.LINGER_SECONDS", 0)
    yield
    until(lambda: watch._thread is None)
    for thread in threading.enumerate():
        if thread.name == "task-watch":
            thread.join(10)


@pytest.fixture
def waiting(agent: Caster) -> Iterator[Waiting]:
    """Sends a claim that waits from a thread of its own, and comes back when it waits."""
    agent.caller  # noqa: B018, remembered: the first use of a key writes
    with ThreadPoolExecutor(16) as pool:

        def send(caster: Caster = agent, queue: str = "build", wait: int = 20, **headers: str) -> "Future[Any]":
            before = waiters()
            sent = pool.submit(ask, caster, {"queue": queue, "wait_seconds": wait}, headers)
            until(lambda: sent.done() or waiters() > before)
            return sent

        yield send


def ask(caster: Caster, body: dict[str, Any], headers: dict[str, str]) -> Any:
    try:
        return caster.post("leases/hot-claim", body, **headers)
    finally:
        connection.close()


def waiters() -> int:
    return sum(len(bells) for bells in watch._waiting.values())


def until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def answered(sent: "Future[Any]") -> Any:
    return sent.result(timeout=15)


def test_a_look_that_fails_leaves_nobody_waiting_for_nothing(
    agent: Caster, waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it fails with: the thread goes on, since nobody would start another."""
    looks: list[None] = []
    known = task_waiting._known

    def fails_at_first(spots: Any) -> Any:
        looks.append(None)
        if len(looks) == 1:
            raise RuntimeError("not of the database")
        return known(spots)

    monkeypatch.setattr(task_waiting, "FAILED_SECONDS", 0.05)
    monkeypatch.setattr(task_waiting, "_known", fails_at_first)
    sent = waiting()
    until(lambda: len(looks) > 1)
    put(agent)
    assert answered(sent).status_code == 200


def test_a_task_that_is_put_wakes_who_waits(agent: Caster, waiting: Waiting) -> None:
    put(agent)
    claim(agent)
    sent = waiting()
    time.sleep(0.5)
    assert not sent.done()
    task_id = put(agent)
    assert answered(sent).json()["task_id"] == task_id


def test_a_queue_that_does_not_exist_yet_can_be_waited_at(agent: Caster, waiting: Waiting) -> None:
    sent = waiting(queue="not-yet")
    task_id = put(agent, "not-yet")
    assert answered(sent).json()["task_id"] == task_id


def test_a_task_that_comes_back_wakes_who_waits(agent: Caster, waiting: Waiting) -> None:
    task_id = put(agent)
    claimed = claim(agent)
    sent = waiting()
    agent.delete(f"leases/{task_id}?fencing_token={claimed['fencing_token']}")
    assert answered(sent).json()["task_id"] == task_id


def test_the_end_of_a_delay_wakes_who_waits(agent: Caster, waiting: Waiting) -> None:
    sent = waiting()
    task_id = put(agent, delay_seconds=1)
    assert answered(sent).json()["task_id"] == task_id


def test_a_claim_that_runs_out_wakes_who_waits(agent: Caster, waiting: Waiting, clock: Any) -> None:
    task_id = put(agent)
    claim(agent, ttl_seconds=60)
    sent = waiting()
    clock.move(seconds=60)
    assert answered(sent).json()["task_id"] == task_id


def test_the_wait_has_an_end(agent: Caster) -> None:
    started = time.monotonic()
    assert claim(agent, wait_seconds=1) is None
    assert time.monotonic() - started >= 1


def test_of_two_that_wait_one_gets_the_task(agent: Caster, teammate: Caster, waiting: Waiting) -> None:
    sent = [waiting(wait=3), waiting(teammate, wait=3)]
    put(agent)
    statuses = sorted(answered(each).status_code for each in sent)
    assert statuses == [200, 204]


def test_another_queues_task_wakes_nobody_for_long(agent: Caster, waiting: Waiting) -> None:
    sent = waiting(wait=2)
    put(agent, "other")
    assert answered(sent).status_code == 204


def test_more_than_may_wait_are_answered_at_once_and_told_when_to_come_back(agent: Caster, waiting: Waiting) -> None:
    sent = [waiting() for _ in range(places.PLACES)]
    crowded = ask(agent, {"queue": "build", "wait_seconds": 20}, {})
    assert (crowded.status_code, crowded.headers["Retry-After"]) == (204, "1")
    agent.post("queues/build/tasks", {"tasks": [{}] * len(sent)})
    assert {answered(each).status_code for each in sent} == {200}
    assert len({answered(each).json()["task_id"] for each in sent}) == len(sent)
    assert waiters() == 0
    with places.place(agent.principal.organization_id) as is_free:
        assert is_free


def test_whoever_waits_holds_no_connection_and_no_transaction(
    agent: Caster, waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: dict[int, bool] = {}
    wait = threading.Event.wait

    def looking_wait(event: threading.Event, timeout: float | None = None) -> bool:
        if any(event in bells for bells in watch._waiting.values()):
            held[threading.get_ident()] = connections["default"].connection is not None
        return wait(event, timeout)

    monkeypatch.setattr(threading.Event, "wait", looking_wait)
    sent = [waiting(), waiting(**{"Idempotency-Key": "w"})]
    until(lambda: len(held) == 2)
    assert set(held.values()) == {False}
    agent.post("queues/build/tasks", {"tasks": [{}] * 2})
    assert {answered(each).status_code for each in sent} == {200}


def test_a_wait_with_an_idempotency_key_claims_once(agent: Caster, waiting: Waiting) -> None:
    sent = waiting(**{"Idempotency-Key": "w1"})
    task_id = put(agent)
    first = answered(sent).json()
    put(agent)
    again = ask(agent, {"queue": "build", "wait_seconds": 20}, {"Idempotency-Key": "w1"}).json()
    assert first["task_id"] == again["task_id"] == task_id


def test_a_key_that_is_revoked_meanwhile_gets_nothing(agent: Caster, operator: Caster, waiting: Waiting) -> None:
    from leasehub.db import clock
    from leasehub.identity.models import ApiKey

    sent = waiting()
    ApiKey.objects.filter(principal=agent.principal).update(revoked_at=clock.now())
    put(operator)
    assert error_of(answered(sent))["status"] == 401


@pytest.mark.skipif(ON_SQLITE, reason="SQLite has no bell")
def test_a_put_rings_where_somebody_waits_and_nowhere_else(agent: Caster) -> None:
    for queue in ("build", "quiet"):
        put(agent, queue)
    spots = {queue.pk: (queue.organization_id, queue.name) for queue in Queue.objects.filter(name="build")}
    _say_awaited(spots)
    listener = connection.copy()
    try:
        with listener.cursor() as cursor:
            cursor.execute(f"LISTEN {CHANNEL}")
        put(agent, "quiet")
        put(agent, "build")
        claimed = claim(agent)
        agent.delete(f"leases/{claimed['lease_id']}")
        rung = [int(notify.payload) for notify in listener.connection.notifies(timeout=10, stop_after=2)]
    finally:
        listener.close()
    assert rung == [*spots] * 2
