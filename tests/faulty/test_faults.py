"""Each scenario passes on the code as it is, and each seeded fault is caught by one of them."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from django.conf import settings
from django.db import Error, connection

from leasehub.errors import DomainError
from tests.concurrency.fixtures import Acme
from tests.concurrency.frozen import FrozenClock
from tests.concurrency.sql import replaced
from tests.concurrency.verbs import using
from tests.faulty.faults import FAULTS, Fault, mutated
from tests.faulty.scenarios import SCENARIOS, World
from tests.rounds import FULL

ON_SQLITE = "sqlite" in settings.DATABASES["default"]["ENGINE"]
ENGINES = ["portable"] if ON_SQLITE else ["plpgsql", "portable"]


@pytest.fixture
def world(acme: Acme, frozen: FrozenClock) -> World:
    return World(acme, frozen)


def seeded() -> Iterator[tuple[str, Fault]]:
    """(engine, fault), where the fault can be made on this database."""
    for fault in FAULTS:
        if ON_SQLITE and fault.needs_postgresql:
            continue
        if fault.python and not fault.of_an_engine:
            yield ENGINES[0], fault
        # The same engine as on SQLite.
        if fault.python and fault.of_an_engine and (ON_SQLITE or FULL):
            yield "portable", fault
        if fault.sql and not ON_SQLITE:
            yield "plpgsql", fault


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(scenario: str, engine: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with using(engine, monkeypatch):
        SCENARIOS[scenario](world)


@pytest.mark.parametrize(
    ("engine", "fault"), [pytest.param(engine, fault, id=f"{fault.name} ({engine})") for engine, fault in seeded()]
)
def test_fault_is_caught(engine: str, fault: Fault, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        stack.enter_context(using(engine, monkeypatch))
        if engine == "plpgsql" and fault.sql:
            stack.enter_context(replaced(*fault.sql))
        else:
            stack.enter_context(mutated(fault.python, monkeypatch))
        # Whatever it trips over: a wrong answer, a constraint, an impossible replay.
        with pytest.raises((AssertionError, DomainError, Error)):
            SCENARIOS[fault.scenario](world)
        if connection.in_atomic_block:
            connection.rollback()


def test_there_are_enough_faults_and_every_scenario_is_named() -> None:
    assert len(FAULTS) >= 12
    assert {fault.scenario for fault in FAULTS} <= set(SCENARIOS)
