"""Equal requests at the same moment: one effect, and everybody is told of it or to come back."""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from leasehub.events.models import Event
from leasehub.identity import idempotency
from leasehub.identity.models import ApiKey, RememberedAnswer
from tests.conftest import Caster
from tests.idempotency.conftest import acquire

pytestmark = pytest.mark.django_db(transaction=True)
THREADS = 8


def at_once(call: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    """What each of the threads was answered; they start together."""
    barrier, answers = threading.Barrier(threads), [None] * threads

    def run(number: int) -> None:
        try:
            barrier.wait(timeout=10)
            answers[number] = call(number)
        finally:
            connection.close()

    started = [threading.Thread(target=run, args=[number]) for number in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join(timeout=30)
    return answers


def test_one_lease_for_all(agent: Caster) -> None:
    for round_number in range(5):
        headers = {"Idempotency-Key": f"round-{round_number}"}
        answers = at_once(lambda _, headers=headers, name=f"r{round_number}": acquire(agent, headers, resource_id=name))  # type: ignore[misc]
        statuses = Counter(answer.status_code for answer in answers)
        # On SQLite a writer that waited for too many others is told to come back as well.
        assert set(statuses) <= {201, 409, 503}, statuses
        leases = {answer.json()["data"]["lease_id"] for answer in answers if answer.status_code == 201}
        assert len(leases) == 1
        in_progress = [answer.json()["error"]["code"] for answer in answers if answer.status_code == 409]
        assert set(in_progress) <= {"IN_PROGRESS"}
        assert Event.objects.filter(resource_id=f"r{round_number}").count() == 1
    assert RememberedAnswer.objects.count() == 5


def test_one_key_for_all(operator: Caster) -> None:
    headers = {"Idempotency-Key": "make"}
    answers = at_once(lambda _: operator.post("keys", {"principal": "muse"}, **headers))
    assert len({answer.json()["data"]["api_key"] for answer in answers if answer.status_code == 201}) == 1
    assert ApiKey.objects.filter(principal__handle="muse").count() == 1


def test_different_requests_under_one_key_have_one_effect(agent: Caster) -> None:
    headers = {"Idempotency-Key": "mixed"}
    answers = at_once(lambda number: acquire(agent, headers, resource_id=f"r{number % 2}"))
    statuses = Counter(answer.status_code for answer in answers)
    assert sum(statuses[status] for status in (201, 422, 409, 503)) == THREADS
    assert statuses[201] >= 1 <= statuses[422]
    assert Event.objects.count() == 1


def test_without_the_row_the_effect_would_come_twice(agent: Caster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above can fail: here nothing is remembered."""
    monkeypatch.setattr(idempotency, "once", lambda *, effect, **_: (effect(), False))
    headers = {"Idempotency-Key": "unguarded"}
    at_once(lambda _: acquire(agent, headers))
    assert Event.objects.count() > 1


def test_while_the_first_takes_long_the_second_is_told_to_come_back(
    agent: Caster, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go_on = threading.Event(), threading.Event()
    real = idempotency.RememberedAnswer.objects.create

    def slow(**columns: Any) -> Any:
        row = real(**columns)
        entered.set()
        go_on.wait(timeout=10)
        return row

    monkeypatch.setattr(idempotency.RememberedAnswer.objects, "create", slow)
    headers = {"Idempotency-Key": "slow"}
    answers: dict[str, Any] = {}

    def first() -> None:
        try:
            answers["first"] = acquire(agent, headers)
        finally:
            connection.close()

    thread = threading.Thread(target=first)
    thread.start()
    assert entered.wait(timeout=10)
    monkeypatch.setattr(idempotency.RememberedAnswer.objects, "create", real)
    second = acquire(agent, headers)
    go_on.set()
    thread.join(timeout=10)
    # SQLite has one writer: there nothing is known of the request that is in the way.
    expected = (409, "IN_PROGRESS") if connection.vendor == "postgresql" else (503, "UNAVAILABLE")
    assert (second.status_code, second.json()["error"]["code"]) == expected
    assert second.headers["Retry-After"] == "1"
    assert answers["first"].status_code == 201
    assert acquire(agent, headers).json()["data"]["lease_id"] == answers["first"].json()["data"]["lease_id"]
    assert Event.objects.count() == 1
