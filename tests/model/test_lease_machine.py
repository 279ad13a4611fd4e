from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import pytest
from django.conf import settings
from django.db import Error
from hypothesis import HealthCheck, Phase
from hypothesis import settings as examples
from hypothesis.stateful import run_state_machine_as_test

from leasehub.errors import DomainError
from tests.concurrency.frozen import FrozenClock
from tests.concurrency.sql import replaced
from tests.concurrency.verbs import using
from tests.faulty.faults import FAULTS, mutated
from tests.model.lease_machine import LeaseMachine
from tests.model.queue_machine import QueueMachine
from tests.queues.conftest import use
from tests.rounds import FULL, rounds

ON_SQLITE = "sqlite" in settings.DATABASES["default"]["ENGINE"]
OWN_ENGINE = "portable" if ON_SQLITE else "plpgsql"
# What one caller after the other can be caught by; the other faults need two at once.
CAUGHT = [
    "the token starts again after a release",
    "exactly at the expiry a lease is alive",
    "the reaper does not look at the expiry",
    "a release goes by the name of the resource",
    "a shorter lease is looked at as late as before",
    "a heartbeat outlives the lifetime",
    "an expired lease blocks until it is reaped",
]

QUEUE_FAULTS = [
    ("leases.queues.engines.portable", "if row.last_token != fencing_token:", "if False:"),
    ("leases.queues.endings", "task.attempts >= task.max_attempts", "False"),
]


def run(
    frozen: FrozenClock,
    count: int,
    phases: Sequence[Phase] = tuple(Phase),
    machine: type[LeaseMachine] = LeaseMachine,
) -> None:
    class Machine(machine):  # type: ignore[valid-type, misc]
        clock = frozen

    run_state_machine_as_test(
        Machine,
        settings=examples(
            max_examples=count,
            stateful_step_count=50 if FULL else 40,
            deadline=None,
            database=None,
            print_blob=True,
            phases=phases,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("engine", ["portable"] if ON_SQLITE else ["plpgsql", "portable"])
def test_the_lease_is_what_the_model_says(engine: str, frozen: FrozenClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """On PostgreSQL with either engine, so that the two are held against each other."""
    with using(engine, monkeypatch):
        run(frozen, rounds(40, full=300) if engine == OWN_ENGINE else rounds(10, full=100))


@pytest.mark.parametrize("engine", ["portable"] if ON_SQLITE else ["plpgsql", "portable"])
def test_a_queues_claims_are_leases(engine: str, frozen: FrozenClock, monkeypatch: pytest.MonkeyPatch) -> None:
    with using(engine, monkeypatch):
        use(engine, monkeypatch)
        run(frozen, rounds(40, full=300) if engine == OWN_ENGINE else rounds(10, full=100), machine=QueueMachine)


@pytest.mark.parametrize("name", CAUGHT if FULL else CAUGHT[:2])
def test_the_machine_catches_a_fault(name: str, frozen: FrozenClock, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = next(fault for fault in FAULTS if fault.name == name)
    with ExitStack() as stack:
        stack.enter_context(using(OWN_ENGINE, monkeypatch))
        stack.enter_context(mutated(fault.python, monkeypatch) if ON_SQLITE else replaced(*fault.sql))
        caught: Any = (AssertionError, DomainError, Error)
        with pytest.raises(caught):
            run(frozen, 500, [Phase.generate])


@pytest.mark.parametrize("fault", QUEUE_FAULTS)
def test_the_machine_of_the_queue_catches_a_fault(
    fault: tuple[str, str, str], frozen: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Led to where the fault shows: by chance it is found late."""

    class Machine(QueueMachine):
        clock = frozen

    with using("portable", monkeypatch), mutated([fault], monkeypatch):
        use("portable", monkeypatch)
        machine = Machine()
        machine.put(name="alice", many=[(0, 0, 1)])
        machine.claim(name="alice", holder="shell", ttl=60, count=1)
        machine.every_task_is_where_the_model_has_it()
        with pytest.raises((AssertionError, DomainError, Error)):  # type: ignore[arg-type]
            machine.step(number=0, name="", wrong=1, verb="complete")
            machine.give_back(number=0, name="", wrong=0)
            machine.every_task_is_where_the_model_has_it()
