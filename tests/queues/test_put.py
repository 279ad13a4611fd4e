import threading
from typing import Any

import pytest
from django.db import connection

from leasehub.events.models import Event
from leases.queues.models import Lane, Queue, Task, TaskContent
from tests.conftest import Caster, error_of
from tests.queues.conftest import claim, events, put, task, token


def test_a_task_is_put_and_says_where_it_is(agent: Caster) -> None:
    answer = agent.post("queues/build/tasks", {"payload": {"commit": "a1"}, "priority": 3})
    given = answer.json()["data"]
    assert answer.status_code == 201
    assert answer.headers["Location"] == f"/v1/tasks/{given['task_id']}"
    assert given["task_id"].startswith("t_") and len(given["task_id"]) == 34
    assert (given["state"], given["ready_at"], given["deduplicated"]) == ("ready", None, False)
    shown = task(agent, given["task_id"])
    assert shown["payload"] == {"commit": "a1"}
    assert (shown["queue"], shown["priority"], shown["attempts"], shown["max_attempts"]) == ("build", 3, 0, 5)
    assert [event.type for event in events(given["task_id"])] == ["task.queued"]


def test_many_are_put_in_their_order_and_all_or_none(agent: Caster) -> None:
    answer = agent.post("queues/build/tasks", {"tasks": [{"payload": n} for n in range(5)]})
    assert answer.status_code == 201
    ids = [each["task_id"] for each in answer.json()["data"]["tasks"]]
    assert [claim(agent)["task_id"] for _ in ids] == ids
    bad = agent.post("queues/build/tasks", {"tasks": [{"payload": 1}, {"priority": "high"}]})
    assert error_of(bad)["status"] == 400
    assert "tasks.1.priority" in error_of(bad)["fields"]
    assert Task.objects.count() == 5


def test_a_thousand_are_taken_and_one_more_is_refused(agent: Caster) -> None:
    answer = agent.post("queues/build/tasks", {"tasks": [{}] * 1000})
    assert answer.status_code == 201
    assert Task.objects.count() == 1000
    assert Event.objects.filter(type="task.queued").count() == 1000
    assert not TaskContent.objects.exists()
    assert error_of(agent.post("queues/build/tasks", {"tasks": [{}] * 1001}))["status"] == 400
    assert error_of(agent.post("queues/build/tasks", {"tasks": []}))["status"] == 400
    assert error_of(agent.post("queues/build/tasks", {"tasks": [{}], "priority": 1}))["status"] == 400


def test_a_live_tasks_dedupe_key_answers_that_task(agent: Caster) -> None:
    first = put(agent, dedupe_key="nightly")
    again = agent.post("queues/build/tasks", {"dedupe_key": "nightly", "payload": "other"})
    assert again.status_code == 200
    assert again.json()["data"] == {"task_id": first, "state": "ready", "ready_at": None, "deduplicated": True}
    claimed = claim(agent)
    assert agent.post("queues/build/tasks", {"dedupe_key": "nightly"}).json()["data"]["state"] == "leased"
    assert put(agent, "other-queue", dedupe_key="nightly") != first
    agent.post(f"tasks/{first}/complete", token(claimed))
    fresh = agent.post("queues/build/tasks", {"dedupe_key": "nightly"})
    assert fresh.status_code == 201
    assert fresh.json()["data"]["task_id"] != first


def test_one_call_with_a_key_twice_makes_one_task(agent: Caster) -> None:
    known = put(agent, dedupe_key="b")
    answers = agent.post("queues/build/tasks", {"tasks": [{"dedupe_key": key} for key in ("a", "b", "a", "c")]}).json()[
        "data"
    ]["tasks"]
    assert [answer["deduplicated"] for answer in answers] == [False, True, True, False]
    assert answers[0]["task_id"] == answers[2]["task_id"]
    assert answers[1]["task_id"] == known
    assert Task.objects.count() == 3
    assert Event.objects.filter(type="task.queued").count() == 3


def test_the_same_idempotency_key_puts_once(agent: Caster) -> None:
    headers = {"Idempotency-Key": "put-1"}
    first = agent.post("queues/build/tasks", {"payload": 1}, **headers)
    second = agent.post("queues/build/tasks", {"payload": 1}, **headers)
    assert first.json() == second.json()
    assert Task.objects.count() == 1
    assert error_of(agent.post("queues/build/tasks", {"payload": 2}, **headers))["code"] == "IDEMPOTENCY_MISMATCH"


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        ({"priority": 1001}, "priority"),
        ({"priority": True}, "priority"),
        ({"priority": 1.0}, "priority"),
        ({"delay_seconds": -1}, "delay_seconds"),
        ({"delay_seconds": 10**30}, "delay_seconds"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"dedupe_key": ""}, "dedupe_key"),
        ({"dedupe_key": "a\u0000b"}, "dedupe_key"),
        ({"payload": "a\u0000b"}, "payload"),
        ({"payload": "x" * 65537}, "payload"),
        ({"when": "now"}, "when"),
        ({"tasks": {}}, "tasks"),
    ],
)
def test_what_is_wrong_is_named(agent: Caster, body: dict[str, Any], wrong: str) -> None:
    refused = error_of(agent.post("queues/build/tasks", body))
    assert refused["status"] == 400
    assert wrong in refused["fields"]
    assert not Queue.objects.exists()


@pytest.mark.parametrize("name", ["%00", "x" * 201, "%20", "a%0Ab"])
def test_an_unfit_name_of_a_queue_is_refused(agent: Caster, name: str) -> None:
    assert agent.post(f"queues/{name}/tasks", {}).status_code in (400, 404)
    assert agent.get(f"queues/{name}").status_code in (400, 404)
    assert not Queue.objects.exists()


def test_a_null_payload_is_no_payload(agent: Caster) -> None:
    put(agent, payload=None)
    assert claim(agent)["payload"] is None


@pytest.mark.django_db(transaction=True)
def test_two_at_once_with_one_dedupe_key_make_one_task(agent: Caster) -> None:
    keys = ["a", "b", "c", "d"]
    caller, results = agent.caller, []

    def put_all(order: list[str]) -> None:
        from leases.queues import services
        from leases.queues.engines import NewTask

        try:
            tasks = [NewTask(dedupe_key=key) for key in order]
            results.append({put.task for put in services.put(caller=caller, queue="build", tasks=tasks)})
        finally:
            connection.close()

    for _ in range(5):
        threads = [threading.Thread(target=put_all, args=(order,)) for order in (keys, keys[::-1])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == 10
    assert all(result == results[0] for result in results)
    assert Task.objects.count() == 4
    assert Lane.objects.count() == 1
