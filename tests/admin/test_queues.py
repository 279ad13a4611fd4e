from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from leasehub.admin import BoundedPaginator
from leases.queues.models import Queue, Task
from tests.admin.conftest import MANY, act, plans, reads_everything, scans, told
from tests.conftest import Caster
from tests.queues.conftest import claim, put, token

TASKS = "leases/task/"


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


# A large queue, and one that was all put before it; of what is rare there are some among the oldest.
FILL = """
    INSERT INTO leases_task (id, place, queue_id, principal_id, state, priority, ready_at, out_of_turn, attempts,
        max_attempts, dedupe_key, created_at, finished_at)
    WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 20000)
    SELECT {id}, n, CASE WHEN n <= 100 THEN %(old)s ELSE %(large)s END, %(principal)s,
        CASE WHEN n BETWEEN 200 AND 220 THEN 'dead' WHEN n BETWEEN 300 AND 320 THEN 'done' ELSE 'ready' END, 0,
        CASE WHEN n BETWEEN 400 AND 420 THEN {at} END, n BETWEEN 400 AND 420, 0, 5, 'key-' || n, {at},
        CASE WHEN n BETWEEN 200 AND 220 OR n BETWEEN 300 AND 320 THEN {at} END
    FROM numbers
"""
# Pages that go straight to what they show, and pages that walk back from the newest and stop when they are full.
FINDS = (
    "?state=delayed",
    "?state=done",
    "?state=dead",
    "?q=key-150",
    "?q=none",
    "?q=t_01a20000000000000000000000000007",
    "?queue={old}&state=ready",
    "?queue={large}&state=dead",
)
WALKS = ("", "?p=3", "?state=ready", "?state=leased", "?queue={large}", "?queue={large}&state=ready")


@pytest.fixture
def many_tasks(agent: Caster) -> dict[str, int]:
    """The two queues."""
    for name in ("old", "large"):
        put(agent, name)
    queues = {queue.name: queue.pk for queue in Queue.objects.all()}
    Task.objects.all().delete()
    on_postgresql = connection.vendor == "postgresql"
    number = "lpad(to_hex(n), 28, '0')" if on_postgresql else "printf('%%028x', n)"
    made = f"('01a2' || {number})" + ("::uuid" if on_postgresql else "")
    with connection.cursor() as cursor:
        at = "clock_timestamp()" if on_postgresql else "datetime('now')"
        cursor.execute(FILL.format(id=made, at=at), {**queues, "principal": agent.principal.pk})
        if on_postgresql:
            # As its autovacuum does; nothing does on SQLite.
            cursor.execute("ANALYZE leases_task")
            # Tables of a few rows are read whole, and rightly; where no index can be used it is read all the same.
            cursor.execute("SET LOCAL enable_seqscan = off")
    return queues


def test_the_pages_of_tasks_follow_indexes(
    root: Client, many_tasks: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # In proportion to the number of rows here, so that planners choose as they do for millions.
    monkeypatch.setattr(BoundedPaginator, "MOST", MANY // 100)
    for query in FINDS:
        for found in plans(root, TASKS + query.format(**many_tasks)):
            assert not scans(found), f"{query}\n{found}"
    for query in WALKS:
        for found in plans(root, TASKS + query.format(**many_tasks)):
            assert not reads_everything(found), f"{query}\n{found}"
