"""A claim walks one index, whatever the depth, on both databases."""

import re
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.conftest import Caster
from tests.queues.conftest import ON_SQLITE, claim

DEPTH = 10_000


def fill(agent: Caster) -> None:
    for _ in range(DEPTH // 1000):
        agent.post("queues/build/tasks", {"tasks": [{"payload": 1}] * 1000})


def plans_of(agent: Caster, **members: Any) -> list[str]:
    """What every statement inside the function really did."""
    said: list[str] = []
    with connection.cursor() as cursor:
        cursor.execute(
            "LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; SET auto_explain.log_nested_statements = on;"
            "SET client_min_messages = log"
        )
        connection.connection.add_notice_handler(lambda notice: said.append(notice.message_primary or ""))
        claim(agent, **members)
        cursor.execute("RESET client_min_messages; SET auto_explain.log_min_duration = -1")
    return [plan for plan in said if "plan:" in plan and "leases_task" in plan]


@pytest.mark.skipif(ON_SQLITE, reason="the function is PostgreSQL's")
@pytest.mark.parametrize("analyzed", [True, False])
@pytest.mark.parametrize("count", [1, 10])
def test_the_function_takes_the_index_and_neither_sorts_nor_scans(
    agent: Caster, engine: str, analyzed: bool, count: int
) -> None:
    if engine != "plpgsql":
        pytest.skip("the function is not called")
    fill(agent)
    if analyzed:
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE leases_task, leases_resource, leases_lane, leases_queue")
    plans = plans_of(agent, count=count)
    taking = [plan for plan in plans if "LockRows" in plan and "task_claim" in plan]
    assert taking
    assert not any("Sort" in plan for plan in taking)
    assert not any(re.search(r"(Seq|Bitmap Heap) Scan on leases_task", plan) for plan in plans)


def test_the_portable_claim_takes_the_index_and_neither_sorts_nor_scans(agent: Caster, engine: str) -> None:
    if engine != "portable":
        pytest.skip("the function is PostgreSQL's")
    fill(agent)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    with CaptureQueriesContext(
        connection,
    ) as queries:
        claim(agent)
    taking = [
        query["sql"]
        for query in queries.captured_queries
        if query["sql"].startswith("SELECT")
        and 'FROM "leases_task"' in query["sql"]
        and "ORDER BY" in query["sql"]
        and '"place"' in query["sql"].rpartition("ORDER BY")[2]
    ]
    assert len(taking) == 2
    for sql in taking:
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN {'QUERY PLAN ' if ON_SQLITE else ''}{sql}")
            plan = "\n".join(str(row) for row in cursor.fetchall())
        assert "task_claim" in plan
        assert "TEMP B-TREE" not in plan
        assert "Sort" not in plan
