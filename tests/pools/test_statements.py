"""What pools cost the database, in statements: it must not grow with the pool."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pools import services
from tests.conftest import Caster
from tests.pools.conftest import Declare, ask, on_slot, slots

LARGE = 300


def counted(call: Callable[[], Any]) -> int:
    with CaptureQueriesContext(connection) as captured:
        call()
    return len([query for query in captured if "SAVEPOINT" not in query["sql"]])


def test_a_pools_status_takes_a_handful_of_statements_however_large_it_is(
    agent: Caster, teammate: Caster, declare: Declare
) -> None:
    declare(slots=slots(LARGE))
    for _ in range(20):
        ask(agent)
    teammate.get("pools")
    assert counted(lambda: teammate.get("pools/e2e")) <= 5


@pytest.mark.parametrize("waiting", [0, 40])
def test_a_grant_costs_the_same_however_many_wait_for_something_else(
    waiting: int, agent: Caster, teammate: Caster, declare: Declare
) -> None:
    declare(slots=[*slots(30, region="eu"), {"id": "us", "region": "us"}])
    ask(agent, selector={"region": "us"})
    for _ in range(waiting):
        ask(teammate, selector={"region": "us"})
    assert counted(lambda: ask(agent, selector={"region": "eu"})) <= 36


@pytest.mark.parametrize("waiting", [1, 40])
def test_a_release_costs_the_same_however_many_wait(
    waiting: int, agent: Caster, teammate: Caster, declare: Declare
) -> None:
    declare(slots=slots(1))
    (grant,) = ask(agent)["grants"]
    for _ in range(waiting):
        ask(teammate)
    assert counted(lambda: on_slot(agent, grant, "release")) <= 40


def test_a_scan_of_idle_pools_locks_nothing(agent: Caster, declare: Declare) -> None:
    for name in ("a", "b", "c"):
        declare(name)
        ask(agent, name)
    with CaptureQueriesContext(connection) as captured:
        assert services.sweep_pools() == 0
    assert not [query for query in captured if query["sql"].startswith(("UPDATE", "INSERT", "DELETE"))]
