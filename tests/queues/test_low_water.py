"""The low water of a lane on PostgreSQL: claims start behind the dead entries and miss nothing.

Each scene is played without the guard first: then the task is missed, which is what the guard is for.
"""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.db import connection

from leases.queues.models import Lane, Task
from tests.conftest import Caster
from tests.queues.conftest import ON_SQLITE, claim, put, token

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(ON_SQLITE, reason="SQLite leaves no dead entries"),
]
MANY = 700


@pytest.fixture(autouse=True)
def function_only(engine: str) -> None:
    if engine != "plpgsql":
        pytest.skip("the portable engine has no low water")


@contextmanager
def another_connection() -> Iterator["psycopg.Connection[Any]"]:
    options = {key: value for key, value in connection.get_connection_params().items() if key != "cursor_factory"}
    with psycopg.connect(**{**options, "context": None}) as other:
        other.execute("SET idle_in_transaction_session_timeout = 0")
        other.commit()
        yield other


PUT = "SELECT * FROM task_put(%s::bigint, 'build', '{0}', '{0}', '{NULL}', '{NULL}', '{NULL}')"
CLAIM = "SELECT task_id FROM task_claim(%s::bigint, 'build', 'w', 60000::bigint, %s, %s)"


def take(agent: Caster, count: int = 1, *, whole: bool = False) -> list[uuid.UUID]:
    """Claims that trust the marks, as nearly all do."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT leasehub_now()")
        now = None if whole else cursor.fetchone()[0]
        cursor.execute(CLAIM, [agent.caller.key, count, now])
        return [task for (task,) in cursor.fetchall() if task is not None]


def take_many(agent: Caster) -> None:
    for _ in range(MANY // 20):
        assert len(take(agent, 20)) == 20


def low_water() -> int:
    """How far it has risen above the first task."""
    first = Task.objects.order_by("place").values_list("place", flat=True)[0]
    return max(0, Lane.objects.get().low_water - first)


def fill(agent: Caster) -> None:
    assert agent.post("queues/build/tasks", {"tasks": [{}] * (MANY + 100)}).status_code == 201


@pytest.fixture
def unguarded() -> Iterator[None]:
    """lane_advance() that does not wait for the transactions before it and does not look again."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_get_functiondef('lane_advance(bigint, bigint)'::regprocedure)")
        (guarded,) = cursor.fetchone()
        cursor.execute(
            "CREATE OR REPLACE FUNCTION lane_advance(p_lane bigint, p_reached bigint) RETURNS void"
            " LANGUAGE sql AS 'UPDATE leases_lane SET low_water = p_reached WHERE id = p_lane'"
        )
    yield
    with connection.cursor() as cursor:
        cursor.execute(guarded)


def put_that_commits_late(agent: Caster) -> list[uuid.UUID]:
    """A task with a low place becomes visible when many later ones have been claimed; what the next claim gets."""
    put(agent)
    claim(agent)
    with another_connection() as late:
        late.execute(PUT, [agent.caller.key])
        fill(agent)
        take_many(agent)
    with connection.cursor() as cursor:
        cursor.execute("SELECT id FROM leases_task WHERE state = 'ready' ORDER BY place LIMIT 1")
        (first,) = cursor.fetchone()
    return [*take(agent), first]


def claim_that_is_rolled_back(agent: Caster) -> list[uuid.UUID]:
    # The first claim takes the mark up to where the numbers of this database have got.
    put(agent)
    claim(agent)
    put(agent)
    with another_connection() as late:
        ((first,),) = late.execute(CLAIM, [agent.caller.key, 1, None]).fetchall()
        fill(agent)
        take_many(agent)
        late.rollback()
    return [*take(agent), first]


@pytest.mark.parametrize("scene", [put_that_commits_late, claim_that_is_rolled_back])
def test_without_the_guard_a_task_is_missed_until_a_whole_look(agent: Caster, unguarded: None, scene: Any) -> None:
    got, first = scene(agent)
    assert got != first
    assert take(agent, whole=True) == [first]


@pytest.mark.parametrize("scene", [put_that_commits_late, claim_that_is_rolled_back])
def test_with_the_guard_it_is_the_next(agent: Caster, scene: Any) -> None:
    got, first = scene(agent)
    assert got == first


def test_the_low_water_rises_behind_the_claims_and_never_above_what_waits(agent: Caster) -> None:
    fill(agent)
    take_many(agent)
    assert low_water() > 300
    with connection.cursor() as cursor:
        cursor.execute("SELECT min(place) FROM leases_task WHERE state = 'ready'")
        assert Lane.objects.get().low_water <= cursor.fetchone()[0]


def test_it_does_not_rise_while_an_older_transaction_could_still_put_something(agent: Caster) -> None:
    fill(agent)
    with another_connection() as older:
        older.execute(PUT, [agent.caller.key])
        take_many(agent)
        assert low_water() == 0
    for _ in range(2):
        take(agent, 20)
    assert low_water() > 300


def test_a_transaction_that_only_writes_elsewhere_does_not_keep_it_down(agent: Caster) -> None:
    fill(agent)
    with another_connection() as older:
        older.execute("SELECT pg_current_xact_id(), count(*) FROM leases_task")
        take_many(agent)
        assert low_water() > 300


def test_an_old_snapshot_that_writes_nothing_does_not_keep_it_down(agent: Caster) -> None:
    fill(agent)
    with another_connection() as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT count(*) FROM leases_task")
        take_many(agent)
        assert low_water() > 300


def test_a_task_that_comes_back_from_below_the_low_water_is_next(agent: Caster) -> None:
    fill(agent)
    first = claim(agent)
    take_many(agent)
    assert low_water() > 300
    agent.delete(f"leases/{first['task_id']}?fencing_token={first['fencing_token']}")
    assert take(agent) == [uuid.UUID(hex=first["task_id"][2:])]


def test_a_delayed_a_failed_and_a_retried_task_are_found_below_it(agent: Caster, operator: Caster, clock: Any) -> None:
    delayed = put(agent, delay_seconds=60)
    failed, dead = put(agent), put(agent, max_attempts=1)
    claims = [claim(agent), claim(agent)]
    fill(agent)
    take_many(agent)
    assert low_water() > 300
    for claimed in claims:
        agent.post(f"tasks/{claimed['task_id']}/fail", {**token(claimed), "error": "no", "retry_in_seconds": 60})
    operator.post(f"tasks/{dead}/retry")
    clock.move(seconds=60)
    found = [f"t_{task.hex}" for _ in range(3) for task in take(agent, whole=True)]
    assert found == [delayed, failed, dead]


def test_a_candidate_from_another_server_is_replaced(agent: Caster) -> None:
    """A backup that was loaded into a new server carries numbers of transactions that are far ahead there."""
    fill(agent)
    Lane.objects.update(candidate=1, candidate_xid=2**60)
    take_many(agent)
    assert low_water() > 300
