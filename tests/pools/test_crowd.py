"""Many processes on few slots, with waiters, holders and workers killed at random; and races of two."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.db import connection, connections

from leasehub.events.models import Event
from leases import services as leases
from pools import runs, services, worker
from pools.models import CommandRun, Pool, Request, Slot
from tests.conftest import Caster
from tests.pools.conftest import Declare, ask, on_slot, slots
from tests.replay import assert_the_journal_gives_the_state
from tests.rounds import rounds

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.processes]

SECONDS = rounds(5, full=90)
CANCELS = rounds(25, full=500)
PATIENCE_SECONDS = 60
CROWD = Path(__file__).with_name("crowd.py")
SLOTS = 3


class Crowd:
    def __init__(self, casters: list[Caster]) -> None:
        self._casters = casters
        self._chance = random.Random(4)
        self._members: list[tuple[str, Caster, subprocess.Popen[bytes]]] = []

    def start(self, role: str, caster: Caster) -> None:
        database = str(django_settings.DATABASES["default"]["NAME"])
        environment = {**os.environ, "LEASEHUB_MIN_TTL_SECONDS": "1", "PYTHONPATH": str(CROWD.parents[2])}
        seed = str(self._chance.random())
        process = subprocess.Popen(
            [sys.executable, str(CROWD), role, database, caster.secret, seed],
            env=environment,
            stderr=subprocess.DEVNULL,
        )
        self._members.append((role, caster, process))

    def kill_one(self) -> None:
        """And start another in its place."""
        role, caster, process = self._members.pop(self._chance.randrange(len(self._members)))
        assert process.poll() is None, f"a {role} ended by itself with {process.returncode}"
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.start(role, caster)

    def end(self) -> None:
        for _, _, process in self._members:
            process.kill()
            process.wait()


@pytest.fixture
def crowd(agent: Caster, teammate: Caster, settings: Any) -> Iterator[Crowd]:
    settings.LEASEHUB_MIN_TTL_SECONDS = 1
    made = Crowd([agent, teammate])
    yield made
    made.end()


@pytest.mark.parametrize("command", ["", "sleep 0.0$POOL_SLOT_ID #"], ids=["without commands", "with commands"])
def test_a_crowd_on_a_few_slots(command: str, crowd: Crowd, agent: Caster, teammate: Caster, declare: Declare) -> None:
    members = {"provision": command, "commandTimeoutMs": 2000} if command else {}
    declare("crowd", slots=slots(SLOTS), waiterStaleMs=600, ttlMinutes=1 / 60, claimWindowMs=600, **members)
    for caster in [agent, teammate] * 2:
        crowd.start("holder", caster)
    if command:
        for _ in range(2):
            crowd.start("worker", agent)
    wait_for_grants(SLOTS)
    until = time.monotonic() + SECONDS
    tick = 0
    # On a busy machine it takes longer until it is a crowd.
    while time.monotonic() < until or (grants() <= 3 * SLOTS and time.monotonic() < until + PATIENCE_SECONDS):
        time.sleep(0.2)
        tidy()
        tick += 1
        if tick % 10 == 0:
            crowd.kill_one()
    crowd.end()
    settle()
    assert grants() > 3 * SLOTS, "it was no crowd"
    check_exclusion()
    check_order()
    check_commands()
    check_copies()
    assert_the_journal_gives_the_state()


def grants() -> int:
    return Event.objects.filter(type="pool.granted").count()


def wait_for_grants(count: int) -> None:
    """Processes take their time to start on a busy machine."""
    until = time.monotonic() + PATIENCE_SECONDS
    while grants() < count:
        assert time.monotonic() < until
        tidy()
        time.sleep(0.1)


def tidy() -> None:
    leases.reap_due()
    runs.give_up_overdue()
    services.sweep_pools()


def settle() -> None:
    """Nobody asks any more: everything ends by itself."""
    until = time.monotonic() + PATIENCE_SECONDS
    while is_unsettled():
        assert time.monotonic() < until, list(Request.objects.filter(state__in=Request.OPEN).values())
        worker.heal_orphans(worker.own_name())
        tidy()
        time.sleep(0.1)


def is_unsettled() -> bool:
    return (
        Request.objects.filter(state__in=Request.OPEN).exists()
        or Slot.objects.exclude(lease_id=None).exists()
        or CommandRun.objects.exclude(state=CommandRun.State.ENDED).exists()
    )


def check_exclusion() -> None:
    """On each slot one lease ends before the next begins, and tokens grow."""
    held: dict[str, Any] = {}
    tokens: dict[str, int] = {}
    live = 0
    for event in Event.objects.filter(resource_type="slot").order_by("pk"):
        assert event.fencing_token is not None
        if event.type == "pool.granted":
            assert held.get(event.resource_id) is None, "two leases on one slot"
            assert event.fencing_token > tokens.get(event.resource_id, 0)
            held[event.resource_id], tokens[event.resource_id] = event.lease_id, event.fencing_token
            live += 1
            assert live <= SLOTS
        else:
            assert held.get(event.resource_id) == event.lease_id, f"{event.type} of a lease that is not on"
            held[event.resource_id] = None
            live -= 1


def check_order() -> None:
    """First grants follow the tickets; one that was put back keeps its number."""
    first: list[int] = []
    for data in Event.objects.filter(type="pool.granted").order_by("pk").values_list("data", flat=True):
        if data["ticket"] not in first:
            first.append(data["ticket"])
    assert first == sorted(first)


def check_commands() -> None:
    """Nothing was granted of a slot between the start of a command on it and its recorded end."""
    grants = list(Event.objects.filter(type="pool.granted").values_list("resource_id", "at", "lease_id"))
    for run in CommandRun.objects.exclude(started_at=None).select_related("slot"):
        assert run.slot is not None and run.ended_at is not None
        for resource_id, at, lease_id in grants:
            if resource_id == f"crowd/{run.slot.slot_id}" and lease_id != run.lease_id:
                assert not (run.started_at < at < run.ended_at), "granted while a command ran"


def check_copies() -> None:
    """What slots say of their leases is what the leases say; no slot is kept for nothing."""
    assert not Slot.objects.filter(is_busy=True).exists()
    assert not Slot.objects.exclude(request=None).exists()
    assert not CommandRun.objects.exclude(state=CommandRun.State.ENDED).exists()


def race(*contenders: Callable[[], Any]) -> list[Any]:
    """Runs them at the same moment, each on a connection of its own; what each answered or raised."""
    barrier = threading.Barrier(len(contenders))
    results: list[Any] = [None] * len(contenders)

    def run(place: int, contender: Callable[[], Any]) -> None:
        barrier.wait()
        try:
            results[place] = contender()
        except Exception as error:
            results[place] = error
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(place, contender)) for place, contender in enumerate(contenders)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


def test_cancel_against_grant(agent: Caster, teammate: Caster, declare: Declare) -> None:
    declare(slots=slots(1))
    for _ in range(CANCELS):
        held, waiter = ask(agent), ask(teammate)
        address = f"pools/e2e/requests/{waiter['request_id']}"
        grant = held["grants"][0]
        released, cancelled = race(
            lambda grant=grant: on_slot(agent, grant, "release"), lambda address=address: teammate.delete(address)
        )
        assert (released.status_code, cancelled.status_code) == (200, 200)
        assert cancelled.json()["data"]["state"] == "cancelled"
        # Whoever cancelled holds nothing, and the slot is free for the next.
        assert not Slot.objects.exclude(lease_id=None).exists()


def test_two_claims_of_one_run_have_one_winner(agent: Caster, declare: Declare) -> None:
    declare(slots=slots(8), provision="x")
    for _ in range(8):
        ask(agent)
    claimed: list[int] = []
    for _ in range(4):
        taken = race(
            *(
                lambda name=name: runs.claim(worker_name=name, queues=["default"], nudges=True)
                for name in ("here/b:1:1", "here/b:2:2")
            )
        )
        claimed += [run.pk for run in taken if run is not None]
    assert len(claimed) == len(set(claimed)) == 8


def test_releases_at_once_wake_as_many_waiters(agent: Caster, teammate: Caster, declare: Declare) -> None:
    declare(slots=slots(4))
    for _ in range(rounds(2, full=5)):
        held = [ask(agent)["grants"][0] for _ in range(4)]
        waiters = [ask(teammate) for _ in range(5)]
        race(*(lambda grant=grant: on_slot(agent, grant, "release") for grant in held))
        states = list(
            Request.objects.filter(state__in=Request.OPEN, principal=teammate.principal)
            .order_by("ticket")
            .values_list("state", flat=True)
        )
        assert states == ["ready"] * 4 + ["queued"]
        for waiter in waiters:
            teammate.delete(f"pools/e2e/requests/{waiter['request_id']}")


def test_without_the_pools_lock_two_promotions_grant_one_slot_twice_or_fail(
    agent: Caster, declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shows that the tests above can see what they look for."""
    if connection.vendor != "postgresql":
        pytest.skip("one writer at a time: there is no lock to leave out")
    declare(slots=slots(1))
    monkeypatch.setattr(services, "locked_pool", lambda organization, name: Pool.objects.get(name=name))
    seen: set[str] = set()
    for _ in range(10):
        answers = race(*(lambda: agent.post("pools/e2e/requests", {"mode": "blocking"}) for _ in range(4)))
        seen |= {str(getattr(answer, "status_code", type(answer).__name__)) for answer in answers}
        for row in Request.objects.filter(state__in=Request.OPEN):
            agent.delete(f"pools/e2e/requests/req_{row.request_id.hex}")
    assert seen - {"201", "202"}, "tickets or slots were not fought over"
