"""Two at once: one outcome, tokens grow, one event each. 8 rounds, 200 with LEASEHUB_TEST_ROUNDS=full."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection, connections, transaction

from handoffs import services
from handoffs.models import Handoff
from handoffs.queries import parse_handoff_id
from leasehub.db.clock import iso
from leasehub.db.locks import lock_rows
from leasehub.events.models import Event
from leasehub.identity import services as identity
from leasehub.identity.models import Organization
from tests.conftest import Caster
from tests.handoffs.conftest import resolve, sent
from tests.replay import assert_the_journal_gives_the_state
from tests.rounds import rounds

ROUNDS = rounds(8, full=200)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def organization(transactional_db: None) -> Organization:
    return identity.create_organization(name="acme")


@pytest.fixture(autouse=True)
def proven(organization: Organization) -> Iterator[None]:
    """Whoever won: afterwards the journal gives what the rows say."""
    yield
    assert_the_journal_gives_the_state()


def race(*steps: Callable[[], Any]) -> list[Any]:
    """What each step returned, all started at once, each on its own connection."""
    barrier = threading.Barrier(len(steps))
    answers: list[Any] = [None] * len(steps)

    def run(index: int, step: Callable[[], Any]) -> None:
        try:
            connection.ensure_connection()
            barrier.wait(timeout=20)
            answers[index] = step()
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(index, step)) for index, step in enumerate(steps)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    return answers


def statuses(*steps: Callable[[], Any]) -> list[int]:
    return [response.status_code for response in race(*steps)]


def journal(resource_id: str) -> Counter[str]:
    """The types of the events of a resource and of handoffs about it; its tokens must only grow."""
    tokens = [
        event.fencing_token
        for event in Event.objects.filter(resource_id=resource_id, previous_lease_id__isnull=False).order_by("pk")
    ]
    assert tokens == sorted(set(tokens))
    about = Event.objects.filter(resource_id=resource_id) | Event.objects.filter(data__subject_id=resource_id)
    return Counter(about.values_list("type", flat=True))


def offered(giver: Caster, to: Caster, name: str, **members: Any) -> tuple[dict[str, Any], str]:
    lease = giver.acquire(name).json()["data"]
    return lease, sent(giver, to, subject_id=name, lease_ids=[lease["lease_id"]], **members)


def test_of_two_accepters_one_gets_the_work(agent: Caster, teammate: Caster) -> None:
    for number in range(ROUNDS):
        name = f"r{number}"
        lease, handoff_id = offered(agent, teammate, name)
        answers = race(*[partial(resolve, teammate, handoff_id, holder=holder) for holder in ("a", "b")])
        assert sorted(answer.status_code for answer in answers) == [200, 404]
        (won,) = [answer.json()["data"] for answer in answers if answer.status_code == 200]
        assert won["leases"][0]["fencing_token"] > lease["fencing_token"]
        found = journal(name)
        assert (found["handoff.accepted"], found["lease.transferred"]) == (1, 1)


def test_accept_against_withdraw_is_one_or_the_other(agent: Caster, teammate: Caster) -> None:
    for number in range(ROUNDS):
        name = f"r{number}"
        lease, handoff_id = offered(agent, teammate, name)
        accepted, withdrawn = statuses(
            partial(resolve, teammate, handoff_id), partial(agent.post, f"handoffs/{handoff_id}/withdraw")
        )
        assert sorted([accepted, withdrawn]) == [200, 404]
        found = journal(name)
        assert (found["handoff.accepted"], found["handoff.withdrawn"]) == (int(accepted == 200), int(withdrawn == 200))
        beat = agent.post(f"leases/{lease['lease_id']}/heartbeat", {"fencing_token": lease["fencing_token"]})
        assert beat.status_code == (410 if accepted == 200 else 200)


def test_accept_against_the_expiry_of_the_handoff_is_one_or_the_other(
    agent: Caster, teammate: Caster, clock: Any
) -> None:
    for number in range(ROUNDS):
        name = f"r{number}"
        accept_by = clock.now() + timedelta(seconds=30)
        _, handoff_id = offered(agent, teammate, name, accept_by=iso(accept_by))
        clock.set(clock.offset + (accept_by - clock.now()) - timedelta(milliseconds=number % 20))
        accepted, _ = race(partial(resolve, teammate, handoff_id), services.expire_due)
        clock.move(seconds=1)
        services.expire_due()
        found = journal(name)
        assert found["handoff.accepted"] == found["lease.transferred"] == int(accepted.status_code == 200)
        assert found["handoff.accepted"] + found["handoff.expired"] == 1


def test_accept_against_the_leases_expiry_moves_it_or_tells_that_it_is_lost(
    agent: Caster, teammate: Caster, operator: Caster, clock: Any
) -> None:
    for number in range(ROUNDS):
        name = f"r{number}"
        lease, handoff_id = offered(agent, teammate, name)
        # The acceptance comes to lie around the very expiry.
        at_the_expiry(lease, clock, before=number % 20)
        accepted, reaped = race(
            partial(resolve, teammate, handoff_id),
            partial(operator.post, "leases/reap", {"resource_type": "deploy", "resource_id": name}),
        )
        answer = accepted.json()["data"]
        assert len(answer["leases"]) + len(answer["lost"]) == 1
        found = journal(name)
        assert found["lease.transferred"] == len(answer["leases"])
        assert found["lease.reaped"] == int(reaped.status_code == 200)
        assert found["lease.transferred"] + found["lease.reaped"] <= 1
        assert found["handoff.accepted"] == 1


def at_the_expiry(lease: dict[str, Any], clock: Any, *, before: int) -> None:
    """Moves the clock to a few milliseconds before the lease runs out."""
    left = datetime.fromisoformat(lease["expires_at"]) - clock.now()
    clock.set(clock.offset + left - timedelta(milliseconds=before))


def test_accept_against_a_force_release_ends_the_lease_once(agent: Caster, teammate: Caster, operator: Caster) -> None:
    for number in range(ROUNDS):
        name = f"r{number}"
        lease, handoff_id = offered(agent, teammate, name)
        body = {"reason": "stuck", "fencing_token": lease["fencing_token"]}
        accepted, forced = race(
            partial(resolve, teammate, handoff_id),
            partial(operator.post, f"leases/{lease['lease_id']}/force-release", body),
        )
        answer = accepted.json()["data"]
        found = journal(name)
        moved = len(answer["leases"])
        assert moved + len(answer["lost"]) == 1
        assert (forced.status_code == 200) == (moved == 0)
        assert (found["lease.transferred"], found["lease.force_released"]) == (moved, 1 - moved)


def test_no_waiter_slips_between_giver_and_acceptor(agent: Caster, teammate: Caster, operator: Caster) -> None:
    for number in range(ROUNDS):
        name = f"r{number}"
        lease, handoff_id = offered(agent, teammate, name)
        accepted, *acquired = race(
            partial(resolve, teammate, handoff_id), *[partial(operator.acquire, name) for _ in range(3)]
        )
        assert [response.status_code for response in acquired] == [409, 409, 409]
        assert accepted.json()["data"]["leases"][0]["fencing_token"] > lease["fencing_token"]


def test_accept_against_a_competing_acquire_at_the_expiry_gives_the_resource_to_one(
    agent: Caster, teammate: Caster, operator: Caster, clock: Any
) -> None:
    for number in range(ROUNDS):
        name = f"r{number}"
        lease, handoff_id = offered(agent, teammate, name)
        at_the_expiry(lease, clock, before=number % 20)
        accepted, acquired = race(partial(resolve, teammate, handoff_id), partial(operator.acquire, name))
        moved = accepted.json()["data"]["leases"]
        assert len(moved) + int(acquired.status_code == 201) <= 1
        found = journal(name)
        assert (found["lease.transferred"], found["lease.taken_over"]) == (len(moved), int(acquired.status_code == 201))


def test_of_two_savers_with_one_expected_version_one_writes(agent: Caster) -> None:
    for number in range(ROUNDS):
        path = f"checkpoints/{number}/task_state"
        for version in range(2):
            answers = statuses(
                *[partial(agent.put, path, {"state": number, "expected_version": version}) for _ in range(3)]
            )
            assert sorted(answers) == [200 if version else 201, 409, 409]
        assert agent.get(path).json()["data"]["versions"] == [1, 2]


def test_a_stale_save_against_the_transfer_never_follows_it(agent: Caster, teammate: Caster) -> None:
    for number in range(ROUNDS):
        name = f"r{number}"
        lease, handoff_id = offered(agent, teammate, name)
        fence = {"resource_type": "deploy", "resource_id": name, "fencing_token": lease["fencing_token"]}
        saved, accepted = statuses(
            partial(agent.put, f"checkpoints/{name}/s", {"state": 1, "fence": fence}),
            partial(resolve, teammate, handoff_id),
        )
        assert accepted == 200
        assert saved in (201, 409)
        order = list(Event.objects.filter(resource_id=name).order_by("pk").values_list("type", flat=True))
        if saved == 201:
            assert order.index("checkpoint.saved") < order.index("lease.transferred")


def test_the_scan_passes_over_what_somebody_is_deciding(agent: Caster, teammate: Caster, clock: Any) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one writer: the scan waits for its turn")
    handoff_id = sent(agent, teammate, accept_by=iso(clock.now() + timedelta(seconds=30)))
    clock.move(seconds=31)
    with transaction.atomic():
        lock_rows(Handoff.objects.filter(public_id=parse_handoff_id(handoff_id))).get()
        assert race(services.expire_due) == [0]
    assert services.expire_due() == 1
