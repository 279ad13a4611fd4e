"""check_invariants: it finds nothing after any history of the verbs, and each thing that a bug could leave behind."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from io import StringIO
from threading import Thread
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection

from handoffs.models import Checkpoint, CheckpointVersion, Handoff, OfferedLease
from leasehub.db import clock as database_clock
from leasehub.db.reading import consistent
from leasehub.events import feed
from leasehub.events.models import Event, Feed, WebhookEndpoint
from leasehub.identity import services as identity
from leasehub.identity.models import ApiKey, Principal, RememberedAnswer
from leasehub.management.invariants.check import check
from leases.models import Resource
from leases.queues.models import Queue, Task
from pools.models import CommandRun, Pool, Request, Slot
from tests.conftest import Caster, cast
from tests.operations.history import History
from tests.rounds import rounds


# In the history of 45 a reconcile meets two dead leases of one request.
@pytest.mark.parametrize("seed", [*range(rounds(4, full=45)), *range(45, rounds(46, full=60))])
def test_nothing_is_found_after_a_random_history(
    seed: int, agent: Caster, teammate: Caster, operator: Caster, clock: Any
) -> None:
    history = History(seed, [agent, teammate, operator], clock)
    for _ in range(3):
        history.go(60)
        assert [str(finding) for finding in check().findings] == []
    assert history.done > 60


# --- what it finds -----------------------------------------------------------------------------------------------


@pytest.fixture
def world(agent: Caster, teammate: Caster, operator: Caster) -> None:
    """Something of everything, in order."""
    agent.acquire("held")
    agent.acquire("moved", holder="x-1")
    free = agent.acquire("free").json()["data"]
    agent.delete(f"leases/{free['lease_id']}")
    agent.acquire("twice")
    agent.acquire("twice")
    for _ in range(3):
        agent.post("queues/builds/tasks", {"max_attempts": 1})
    done = agent.post("leases/hot-claim", {"queue": "builds"}).json()
    agent.post(f"tasks/{done['task_id']}/complete", {"fencing_token": done["fencing_token"]})
    agent.post("leases/hot-claim", {"queue": "builds"})
    operator.put("pools/gpus", {"slots": [{"id": "a"}, {"id": "b"}, {"id": "c"}]})
    operator.post("pools/gpus/slots/c/drain", {})
    agent.post("pools/gpus/requests", {"mode": "async", "holder": "first"})
    agent.post("pools/gpus/requests", {"mode": "async", "holder": "second"})
    agent.post("pools/gpus/requests", {"mode": "async", "holder": "waits"})
    moved = Resource.objects.get(resource_id="moved")
    for leases in ([f"lease_{moved.lease_id.hex}"], []):
        sent = agent.post("handoffs", {"to_principal": "teammate", "subject_id": "s", "lease_ids": leases}).json()[
            "data"
        ]
        if leases:
            teammate.post(f"handoffs/{sent['handoff_id']}/resolve", {"status": "accepted"})
    for version in (0, 1):
        # Numbers that PostgreSQL writes otherwise than they were hashed.
        agent.put("checkpoints/s/k", {"state": {"n": [1e22, -0.0]}, "expected_version": version})
        agent.put("checkpoints/s/l", {"state": {"n": [version, 1e-7, 0.5]}, "expected_version": version})
    agent.post(
        "leases", {"resource_type": "deploy", "resource_id": "once", "ttl_seconds": 60}, **{"Idempotency-Key": "k"}
    )
    operator.post("webhooks", {"url": "https://hooks.example.org/all"})
    feed.stamp_all()
    assert [str(finding) for finding in check().findings] == []


@pytest.fixture
def without_checks(world: None) -> Iterator[None]:
    """As if constraints had been lost."""
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("PRAGMA ignore_check_constraints = ON")
            cursor.execute("DROP INDEX lease_is_on_one_resource")
            cursor.execute("DROP INDEX slot_has_one_live_run")
            yield
            cursor.execute("PRAGMA ignore_check_constraints = OFF")
            return
        # What is deferred would be in the way.
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute(
            "SELECT conrelid::regclass, conname FROM pg_constraint WHERE contype = 'c'"
            " AND conrelid::regclass::text ~ '^(leases|pools|handoffs|events|identity)_'"
        )
        for table, name in cursor.fetchall():
            cursor.execute(f'ALTER TABLE {table} DROP CONSTRAINT "{name}"')
        for index in ("lease_is_on_one_resource", "slot_has_one_live_run"):
            cursor.execute(f"DROP INDEX {index}")
    yield


def held(name: str = "held") -> Any:
    return Resource.objects.filter(resource_id=name)


def event_of(name: str, type: str) -> Any:
    return Event.objects.filter(resource_id=name, type=type)


def freed_without_event() -> None:
    held().update(**dict.fromkeys(
        ("lease_id", "principal", "holder", "acquired_at", "heartbeat_at", "expires_at", "check_at", "ttl_ms")
    ))  # fmt: skip


def event_twice() -> None:
    event = event_of("free", "lease.released").get()
    event.pk, event.position = None, None
    event.save(force_insert=True)


def positions_exchanged() -> None:
    first, second = event_of("free", "lease.acquired").get(), event_of("free", "lease.released").get()
    Event.objects.filter(pk=first.pk).update(position=None)
    Event.objects.filter(pk=second.pk).update(position=first.position)
    Event.objects.filter(pk=first.pk).update(position=second.position)


def grown_backwards() -> None:
    event = event_of("twice", "lease.acquired").order_by("pk").last()
    Event.objects.filter(pk=event.pk).update(fencing_token=1)
    held("twice").update(last_token=1)


def live_lease_taken() -> None:
    event = event_of("twice", "lease.acquired").order_by("pk").last()
    Event.objects.filter(pk=event.pk).update(type="lease.taken_over")


def done_and_ready_again() -> None:
    Task.objects.filter(state="done").update(state="ready", finished_at=None)


def task_without_lease() -> None:
    Task.objects.filter(state="ready").update(state="leased", out_of_turn=True)


def task_forgotten() -> None:
    Task.objects.filter(state="ready").delete()


def task_loops() -> None:
    Task.objects.filter(state="leased").update(attempts=7)


def two_requests_on_one_slot() -> None:
    first, second = Slot.objects.filter(request__isnull=False).order_by("pk")
    Slot.objects.filter(pk=second.pk).update(lease_id=first.lease_id)


def command_still_runs() -> None:
    slot = Slot.objects.filter(request__isnull=False).first()
    assert slot is not None
    at = database_clock.now()
    CommandRun.objects.create(
        pool=slot.pool, slot=slot, purpose="grant", lease_id=slot.lease_id, worker="default", steps=[],
        step_timeout_ms=1, created_at=at,
    )  # fmt: skip


def free_slot_beside_a_waiter() -> None:
    Slot.objects.filter(slot_id="c").update(is_draining=False)


def accepted_twice() -> None:
    Handoff.objects.filter(status="pending").update(status="accepted", resolved_at=database_clock.now())


def lease_kept_though_accepted() -> None:
    OfferedLease.objects.update(outcome="kept", moved_to=None, fencing_token=None)


def answer_without_effect() -> None:
    RememberedAnswer.objects.update(status=None)


def held_from_outside() -> None:
    other = identity.create_organization(name="elsewhere")
    made = identity.create_principal(organization=other.pk, handle="outsider")
    held().update(principal=made)


def reaper_comes_late() -> None:
    row = held().get()
    held().update(check_at=row.expires_at + timedelta(hours=1))


def outsider() -> Principal:
    other = identity.create_organization(name="elsewhere")
    return identity.create_principal(organization=other.pk, handle="outsider")


def immortal() -> None:
    row = held().get()
    held().update(expires_at=row.expires_at + timedelta(days=30_000))


def acquired_earlier() -> None:
    row = held().get()
    held().update(acquired_at=row.acquired_at - timedelta(days=3))


def exchanged(events: Any) -> None:
    first, second = events.order_by("pk")[:2]
    Event.objects.filter(pk=first.pk).update(position=None)
    Event.objects.filter(pk=second.pk).update(position=first.position)
    Event.objects.filter(pk=first.pk).update(position=second.position)


def handoff_events_exchanged() -> None:
    accepted = Event.objects.get(type="handoff.accepted")
    exchanged(Event.objects.filter(data__handoff_id=accepted.data["handoff_id"], type__startswith="handoff."))


def checkpoint_events_exchanged() -> None:
    exchanged(Event.objects.filter(type="checkpoint.saved", data__kind="k"))


def another_party(status: str, party: str) -> Callable[[], object]:
    return lambda: Handoff.objects.filter(status=status).update(**{party: Principal.objects.get(handle="operator")})


def event_names(**who: Callable[[], object]) -> Callable[[], object]:
    return lambda: event_of("free", "lease.acquired").update(**{name: find() for name, find in who.items()})


def key_from_outside() -> ApiKey:
    return ApiKey.objects.create(
        principal=outsider(), secret_sha256="0" * 64, prefix="x", created_at=database_clock.now()
    )


def one_event_id() -> None:
    event_of("free", "lease.released").update(event_id=event_of("free", "lease.acquired").get().event_id)


def another_queue() -> None:
    first = Queue.objects.get(name="builds")
    queue = Queue.objects.create(organization=first.organization, name="deploys", created_at=first.created_at)
    Task.objects.filter(state="ready").update(queue=queue)


PLANTED: dict[str, tuple[Callable[[], object], set[str]]] = {
    "a lease ended without an event": (freed_without_event, {"row_differs"}),
    "a row is gone": (lambda: held().delete(), {"row_is_gone"}),
    "another holder": (lambda: held().update(holder="y"), {"row_differs"}),
    "another principal": (lambda: held().update(principal=Principal.objects.get(handle="teammate")), {"row_differs"}),
    "a token set back": (lambda: held().update(last_token=5), {"token_differs"}),
    "a token of a free row set back": (lambda: held("free").update(last_token=5), {"token_differs"}),
    "tokens that do not grow": (grown_backwards, {"token_did_not_grow"}),
    "one lease on two resources": (
        lambda: held("twice").update(lease_id=held().get().lease_id), {"one_lease_on_two_resources", "row_differs"}
    ),
    "half a lease": (lambda: held().update(holder=None), {"half_a_lease"}),
    "a lease held from another organization": (held_from_outside, {"held_from_outside", "row_differs"}),
    "a lease that the reaper finds late": (reaper_comes_late, {"reaper_comes_late"}),
    "a live lease taken over": (live_lease_taken, {"live_lease_taken"}),
    "an event lost": (lambda: event_of("free", "lease.released").delete(), {"feed_has_a_gap", "row_differs"}),
    "an event twice": (event_twice, {"end_of_another_lease"}),
    "an event without its transition": (
        lambda: event_of("held", "lease.acquired").update(resource_id="no"), {"row_differs", "row_is_gone"}
    ),
    "positions exchanged": (positions_exchanged, {"feed_out_of_order"}),
    "done and ready again": (done_and_ready_again, {"task_differs"}),
    "leased to nobody": (task_without_lease, {"task_is_nowhere", "task_differs"}),
    "a task forgotten": (task_forgotten, {"task_is_nowhere"}),
    "more attempts than allowed": (task_loops, {"task_loops", "task_differs"}),
    "a state that nobody knows": (lambda: Task.objects.filter(state="ready").update(state="lost"), {"task_is_nowhere"}),
    "a slot granted twice": (two_requests_on_one_slot, {"one_lease_on_two_resources"}),
    "a slot whose lease nobody knows": (
        lambda: Slot.objects.filter(slot_id="a").update(lease_id=None, request=None),
        {"slot_says_another_lease", "slot_differs"},
    ),
    "a slot granted unclean": (lambda: Slot.objects.update(is_clean=False), {"unclean_slot_granted"}),
    "a slot granted while a command runs": (command_still_runs, {"unclean_slot_granted", "busy_slot_looks_idle"}),
    "a slot that is busy for ever": (lambda: Slot.objects.filter(slot_id="c").update(is_busy=True), {"slot_is_stuck"}),
    "a slot broken without an event": (
        lambda: Slot.objects.filter(slot_id="c").update(is_broken=True), {"slot_differs"}
    ),
    "a waiter beside a free slot": (free_slot_beside_a_waiter, {"waits_beside_a_free_slot", "slot_differs"}),
    "a pool changed behind its back": (
        lambda: Slot.objects.filter(slot_id="c").update(attributes={"x": 1}), {"declaration_differs"}
    ),
    "a ticket to be given again": (lambda: Pool.objects.update(last_ticket=0), {"ticket_given_twice"}),
    "a request that ended by itself": (
        lambda: Request.objects.filter(state="queued").update(state="cancelled"), {"request_differs"}
    ),
    "a request ready with nothing": (
        lambda: Request.objects.filter(state="queued").update(state="ready"),
        {"request_has_wrong_slots", "request_differs"},
    ),
    "a handoff accepted without an event": (accepted_twice, {"handoff_differs"}),
    "a lease kept though it was handed on": (lease_kept_though_accepted, {"lease_moved_otherwise"}),
    "a handoff forgotten": (lambda: Handoff.objects.filter(status="pending").delete(), {"handoff_differs"}),
    "a checkpoint without its version": (
        lambda: connection.cursor().execute("UPDATE handoffs_checkpoint SET version = 7"),
        {"checkpoint_without_version", "checkpoint_differs"},
    ),
    "a lease that never ends": (immortal, {"lease_outlives_its_ttl"}),
    "a lease acquired at another time": (acquired_earlier, {"row_differs"}),
    "a pending handoff to another": (another_party("pending", "addressee"), {"handoff_differs"}),
    "a pending handoff of another": (another_party("pending", "giver"), {"handoff_differs"}),
    "an accepted handoff to another": (another_party("accepted", "addressee"), {"handoff_differs"}),
    "a handoff to another organization": (
        lambda: Handoff.objects.filter(status="pending").update(addressee=outsider()),
        {"handoff_differs", "owned_from_outside"},
    ),
    "a handoff of another organization": (
        lambda: Handoff.objects.update(organization=outsider().organization), {"handoff_differs"}
    ),
    "a handoff's event to another": (
        lambda: Event.objects.filter(type="handoff.accepted").update(addressee=None), {"handoff_differs"}
    ),
    "positions of a handoff exchanged": (handoff_events_exchanged, {"feed_out_of_order"}),
    "positions of a checkpoint exchanged": (checkpoint_events_exchanged, {"feed_out_of_order"}),
    "an event by somebody from outside": (event_names(actor=outsider), {"event_from_outside"}),
    "an event by nobody": (event_names(actor_id=lambda: 987_654), {"event_from_outside"}),
    "an event about somebody from outside": (event_names(principal=outsider), {"event_from_outside"}),
    "an event to somebody from outside": (event_names(addressee=outsider), {"event_from_outside"}),
    "an event by a key from outside": (event_names(key=key_from_outside), {"event_from_outside"}),
    "a checkpoint by somebody from outside": (
        lambda: Event.objects.filter(type="checkpoint.saved").update(actor=outsider()), {"event_from_outside"}
    ),
    "two events of one id": (one_event_id, {"event_id_twice"}),
    "another state of a checkpoint": (
        lambda: CheckpointVersion.objects.filter(checkpoint__kind="l", version=1).update(state={"n": [0, 1e-7, 0.25]}),
        {"checkpoint_has_another_hash"},
    ),
    "another hash of a checkpoint's head": (
        lambda: Checkpoint.objects.update(state_hash="0" * 64), {"checkpoint_differs", "checkpoint_has_another_hash"}
    ),
    "a task in another queue": (another_queue, {"task_differs"}),
    "a webhook beyond the feed": (lambda: WebhookEndpoint.objects.update(cursor=10**6), {"webhook_beyond_the_feed"}),
    "a webhook of somebody from outside": (
        lambda: WebhookEndpoint.objects.update(principal=outsider()), {"owned_from_outside"}
    ),
    "a request of somebody from outside": (
        lambda: Request.objects.update(principal=outsider()), {"owned_from_outside"}
    ),
    "a task of somebody from outside": (lambda: Task.objects.update(principal=outsider()), {"owned_from_outside"}),
    "a key that another's was rotated to": (
        lambda: ApiKey.objects.filter(principal__handle="agent").update(
            rotated_from=ApiKey.objects.filter(principal__handle="teammate").first()
        ),
        {"owned_from_outside"},
    ),
    "a key moved to another organization": (
        lambda: ApiKey.objects.filter(principal__handle="agent").update(principal=outsider()), {"event_from_outside"}
    ),
    "a low water above every event": (lambda: Feed.objects.update(low_water=10**9), {"feed_is_deaf"}),
    "a candidate above every event": (lambda: Feed.objects.update(candidate=10**9), {"feed_is_deaf"}),
    "a key used without an effect": (answer_without_effect, {"answer_without_effect"}),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_what_a_bug_could_leave_behind_is_found(name: str, without_checks: None) -> None:
    plant, codes = PLANTED[name]
    plant()
    report = check()
    assert codes <= set(report.by_code), [str(finding) for finding in report.findings]
    assert not report.ok and report.document()["found"] == report.found


def test_two_rows_of_one_resource_are_found(world: None) -> None:
    if connection.vendor == "sqlite":
        # A unique constraint of a table there goes with the table alone.
        pytest.skip("SQLite cannot lose this constraint")
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("ALTER TABLE leases_resource DROP CONSTRAINT resource_has_one_row")
    row = held().get()
    Resource.objects.create(
        organization=row.organization, resource_type=row.resource_type, resource_id=row.resource_id, last_token=1
    )
    assert "two_rows" in check().by_code


@pytest.mark.django_db(transaction=True)
def test_a_check_sees_one_moment_and_keeps_no_writer_waiting() -> None:
    acme = cast(identity.create_organization(name="acme"), "agent")
    acme.acquire("before")
    with consistent():
        assert Resource.objects.count() == 1
        written = Thread(target=lambda: (acme.acquire("meanwhile"), connection.close()))
        written.start()
        written.join(30)
        assert not written.is_alive()
        assert Resource.objects.count() == 1
    assert Resource.objects.count() == 2
    # The connection is as it was: it writes.
    assert acme.acquire("after").status_code == 201
    assert check().ok


# --- how it is asked ---------------------------------------------------------------------------------------------


def test_the_command_says_what_it_looked_at(world: None) -> None:
    out, progress = StringIO(), StringIO()
    call_command("check_invariants", "--json", stdout=out, stderr=progress)
    told = json.loads(out.getvalue())
    assert told["ok"] and told["findings"] == [] and told["checked"]["tasks"] == 3
    assert "acme: resources" in progress.getvalue()


def test_the_command_fails_when_something_is_wrong(world: None) -> None:
    held().update(last_token=5)
    out = StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("check_invariants", stdout=out, stderr=StringIO())
    assert ended.value.code == 1
    assert "token_differs: acme: deploy/held: token 5" in out.getvalue()


def test_the_command_says_that_it_could_not_look(world: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> None:
        raise OperationalError("connection refused\n\tIs the server running?")

    monkeypatch.setattr("leasehub.management.invariants.check.clock.now", away)
    with pytest.raises(CommandError, match=r"nothing is known: connection refused Is the server running\?$") as ended:
        call_command("check_invariants", stdout=StringIO(), stderr=StringIO())
    assert ended.value.returncode == 3


def test_one_organization_is_looked_at_alone(world: None, stranger: Caster) -> None:
    held().update(last_token=5)
    call_command("check_invariants", "--organization", "other", stdout=StringIO(), stderr=StringIO())
    with pytest.raises(CommandError, match="nowhere"):
        call_command("check_invariants", "--organization", "nowhere", stdout=StringIO(), stderr=StringIO())
