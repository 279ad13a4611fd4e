from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from leases.queues.models import Queue, Task
from tests.admin.conftest import act, told
from tests.conftest import Caster
from tests.queues.conftest import claim, put, token


@pytest.fixture
def dead(agent: Caster) -> str:
    task_id = put(agent, max_attempts=1)
    agent.post(f"tasks/{task_id}/fail", {**token(claim(agent)), "error": "boom"})
    return task_id


def pk(task_id: str) -> str:
    return task_id.removeprefix("t_")


def test_the_queues_show_depth_age_and_rate(root: Client, agent: Caster, dead: str) -> None:
    for _ in range(2):
        put(agent)
    put(agent, delay_seconds=60)
    page = root.get("/admin/leases/queue/")
    (queue,) = page.context["cl"].result_list
    shown = queue.figures
    assert (shown.ready, shown.delayed, shown.leased, shown.dead, shown.claims_per_minute) == (2, 1, 0, 1, 1)
    assert b"0 s ago" in page.content or b" s ago" in page.content
    change = root.get(f"/admin/leases/queue/{queue.pk}/change/")
    assert change.status_code == 200


def test_the_queues_of_a_page_are_counted_together(root: Client, agent: Caster) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            root.get("/admin/leases/queue/")
        return len(captured)

    put(agent, "first")
    few = queries()
    for n in range(10):
        put(agent, f"queue-{n}")
    assert queries() <= few + 10
    assert len([None for _ in Queue.objects.all()]) == 11


def test_the_settings_of_a_queue_can_be_changed_within_reason(root: Client, agent: Caster) -> None:
    put(agent)
    queue = Queue.objects.get()
    good = {"max_attempts": 3, "backoff_base_seconds": 1, "backoff_max_seconds": 60, "keep_days": 1}
    assert root.post(f"/admin/leases/queue/{queue.pk}/change/", good).status_code == 302
    queue.refresh_from_db()
    assert (queue.max_attempts, queue.keep_days) == (3, 1)
    for wrong in ({"max_attempts": 0}, {"backoff_max_seconds": 0}, {"keep_days": 2**31 - 1}, {"max_attempts": 1001}):
        assert root.post(f"/admin/leases/queue/{queue.pk}/change/", {**good, **wrong}).status_code == 200
    assert root.get("/admin/leases/queue/add/").status_code == 403


def test_a_task_is_shown_and_cannot_be_changed(root: Client, agent: Caster, dead: str) -> None:
    held = put(agent, payload={"commit": "a1"})
    claim(agent, holder="muse-04")
    page = root.get(f"/admin/leases/task/{pk(held)}/change/")
    assert b"muse-04" in page.content
    assert b"commit" in page.content
    assert b"boom" in root.get(f"/admin/leases/task/{pk(dead)}/change/").content
    assert b'name="_save"' not in page.content
    assert root.get("/admin/leases/task/add/").status_code == 403


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("state=ready", ["ready"]),
        ("state=delayed", ["delayed"]),
        ("state=leased", ["leased"]),
        ("state=dead", ["dead"]),
        ("state=done", []),
        ("state=other", ["ready", "delayed", "leased", "dead"]),
        ("q=key", ["ready"]),
        ("q=nothing", []),
        ("q=t_00000000000000000000000000000000", []),
        ("queue=999999999999999999999999", []),
        ("queue=x", []),
        ("organization=x", []),
    ],
)
def test_the_tasks_are_found_by_state_queue_and_key(
    root: Client, agent: Caster, dead: str, query: str, found: list[str]
) -> None:
    ids = {dead: "dead", put(agent, priority=5): "leased"}
    claim(agent)
    ids |= {put(agent, dedupe_key="key"): "ready", put(agent, delay_seconds=60): "delayed"}
    page = root.get(f"/admin/leases/task/?{query}")
    assert page.status_code == 200
    assert sorted(ids[task.task_id] for task in page.context["cl"].result_list) == sorted(found)


def test_dead_tasks_are_retried_and_purged_by_the_services(root: Client, agent: Caster, dead: str) -> None:
    waiting = put(agent)
    assert told(act(root, "leases/task", "retry", pk(dead), pk(waiting))) == [
        "1 retried.",
        "1 not: they are not dead, or a live task has their key.",
    ]
    for _ in range(2):
        claimed = claim(agent)
        agent.post(f"tasks/{claimed['task_id']}/fail", {**token(claimed), "error": "no", "final": True})
    third = put(agent)
    assert told(act(root, "leases/task", "purge", pk(dead), pk(third))) == ["1 purged."]
    assert told(act(root, "leases/queue", "purge_dead", Queue.objects.get().pk)) == ["1 purged."]
    assert [task.task_id for task in Task.objects.all()] == [third]


def test_the_actions_need_their_permissions(staff: Callable[..., Client], agent: Caster, dead: str) -> None:
    viewer = staff("leases.view_task", "leases.view_queue")
    page: Any = viewer.get("/admin/leases/task/")
    assert page.status_code == 200
    for action in ("retry", "purge"):
        act(viewer, "leases/task", action, pk(dead))
    assert Task.objects.get().state == "dead"
