"""Events move out after a while, and everything goes on: the feed, the proofs, what is live."""

import json
import os
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, transaction

from leasehub.events import feed
from leasehub.events.models import Event, Feed, Snapshot
from leasehub.management import retention
from leasehub.management.invariants.check import check
from leases import services as leases
from leases.models import Resource
from tests.conftest import Caster, error_of
from tests.operations.history import History
from tests.rounds import rounds

LONG_AGO = {"days": 91}


def findings() -> list[str]:
    return [str(finding) for finding in check().findings]


def prune(**limits: Any) -> int:
    feed.stamp_all()
    return retention.prune_events(**limits)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "BATCHES", {"sqlite": 7, "postgresql": 7})


@pytest.mark.parametrize("seed", range(rounds(3, full=40)))
def test_the_state_can_be_proved_from_what_is_kept(
    seed: int, agent: Caster, teammate: Caster, operator: Caster, clock: Any, small_batches: None
) -> None:
    """A history goes on, while everything older than the last few steps moves out again and again."""
    history = History(seed, [agent, teammate, operator], clock)
    for round in range(4):
        history.go(40)
        # What was so far is old now; leases and waiters have run out, which the verbs have to cope with.
        clock.move(**LONG_AGO)
        if round % 2:
            history.go(5)
        assert prune(batches=[1, 3, 200][round % 3]) >= 0
        assert findings() == []
    feed.stamp_all()
    assert prune() > 0
    assert findings() == []
    kept = Feed.objects.get(organization=agent.principal.organization)
    assert kept.pruned_through > 50
    positions = list(Event.objects.filter(organization=kept.pk).order_by("position").values_list("position", flat=True))
    assert positions == list(range(kept.pruned_through + 1, kept.last_position + 1))


def test_what_is_young_stays_and_the_newest_event_too(agent: Caster, clock: Any) -> None:
    agent.acquire("old")
    assert prune() == 0
    clock.move(**LONG_AGO)
    assert prune() == 0, "the newest event is what the clock is held against"
    agent.acquire("young")
    assert prune() == 1
    assert [event.resource_id for event in Event.objects.all()] == ["young"]
    assert prune() == 0


def test_what_has_no_position_yet_stays(agent: Caster, clock: Any) -> None:
    for name in "abc":
        agent.acquire(name)
    clock.move(**LONG_AGO)
    assert retention.prune_events() == 0 and Event.objects.count() == 3


def test_a_lease_that_lives_longer_than_the_journal_is_proved_by_its_snapshot(agent: Caster, clock: Any) -> None:
    held = agent.acquire("held").json()["data"]
    until = clock.now() + timedelta(days=200)
    Resource.objects.update(expires_at=until, check_at=until, ttl_ms=201 * 86_400_000)
    clock.move(**LONG_AGO)
    agent.acquire("other")
    assert prune() == 1
    assert findings() == []
    Snapshot.objects.update(state={"lease": "0" * 32, "token": 1, "principal": 1, "holder": "x"})
    assert {finding.code for finding in check().findings} == {"row_differs", "token_differs"}
    Snapshot.objects.all().delete()
    assert {finding.code for finding in check().findings} == {"row_differs", "token_differs"}
    assert agent.get(f"leases/{held['lease_id']}").status_code == 200


def test_of_what_is_over_nothing_is_kept(agent: Caster, teammate: Caster, clock: Any) -> None:
    held = agent.acquire("held").json()["data"]
    agent.delete(f"leases/{held['lease_id']}")
    agent.post("queues/q/tasks", {})
    claimed = agent.post("leases/hot-claim", {"queue": "q"}).json()
    agent.post(f"tasks/{claimed['task_id']}/complete", {"fencing_token": claimed["fencing_token"]})
    sent = agent.post("handoffs", {"to_principal": "teammate", "subject_id": "s"}).json()["data"]
    teammate.post(f"handoffs/{sent['handoff_id']}/resolve", {"status": "rejected", "reason": "no"})
    clock.move(**LONG_AGO)
    agent.acquire("other")
    assert prune() == 7
    assert Snapshot.objects.count() == 0
    assert findings() == []


def test_how_a_lease_ended_is_forgotten_with_its_event(agent: Caster, clock: Any) -> None:
    held = agent.acquire("held").json()["data"]
    agent.delete(f"leases/{held['lease_id']}")
    assert agent.get(f"leases/{held['lease_id']}").json()["data"]["ended_by"] == "released"
    clock.move(**LONG_AGO)
    agent.acquire("other")
    assert prune() == 2
    gone, never = (agent.get(f"leases/{name}") for name in (held["lease_id"], "lease_" + "0" * 32))
    assert error_of(gone)["code"] == "NOT_FOUND" and gone.content == never.content


def test_a_lost_lease_whose_beginning_is_forgotten_is_nobody_s(agent: Caster, teammate: Caster, clock: Any) -> None:
    """Whose it was stands in the event that began it: without it nobody is told, least of all the successor."""
    held = agent.acquire("held").json()["data"]
    until = clock.now() + timedelta(days=100)
    Resource.objects.update(expires_at=until, check_at=until)
    clock.move(**LONG_AGO)
    agent.acquire("other")
    assert prune() == 1
    clock.move(days=10)
    assert teammate.acquire("held").json()["data"]["took_over_expired"]
    for caster in (agent, teammate):
        beat = caster.post(f"leases/{held['lease_id']}/heartbeat", {"fencing_token": held["fencing_token"]})
        assert beat.status_code == 404


def test_a_token_is_never_given_again(agent: Caster, clock: Any) -> None:
    first = agent.acquire("held").json()["data"]
    agent.delete(f"leases/{first['lease_id']}")
    clock.move(**LONG_AGO)
    agent.acquire("other")
    prune()
    assert leases.prune() >= 1
    assert not Resource.objects.filter(resource_id="held").exists()
    assert agent.acquire("held").json()["data"]["fencing_token"] > first["fencing_token"]
    assert findings() == []


def test_positions_go_on_and_an_answer_is_still_repeated(agent: Caster, clock: Any, settings: Any) -> None:
    settings.LEASEHUB_IDEMPOTENCY_HOURS = 24 * 366
    body = {"resource_type": "deploy", "resource_id": "once", "ttl_seconds": 60}
    once = agent.post("leases", body, **{"Idempotency-Key": "k"}).json()["data"]
    clock.move(**LONG_AGO)
    agent.acquire("other")
    prune()
    assert agent.post("leases", body, **{"Idempotency-Key": "k"}).json()["data"]["lease_id"] == once["lease_id"]
    agent.acquire("third")
    feed.stamp_all()
    assert sorted(Event.objects.values_list("position", flat=True)) == [2, 3]


def test_two_at_once_move_each_event_out_once(agent: Caster, clock: Any) -> None:
    for name in "abcd":
        agent.acquire(name)
    clock.move(**LONG_AGO)
    agent.acquire("young")
    feed.stamp_all()
    organization = agent.principal.organization_id
    assert retention._prune_batch(organization, after=0, through=3) == 3
    # As another one decided before: it has nothing to say any more.
    assert retention._prune_batch(organization, after=0, through=3) == 0
    assert retention._prune_batch(organization, after=0, through=4) == 0
    assert retention._prune_batch(organization, after=3, through=4) == 1
    assert findings() == []


def test_a_batch_is_whole_or_not_at_all(agent: Caster, clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    agent.acquire("held")
    clock.move(**LONG_AGO)
    agent.acquire("young")
    feed.stamp_all()

    def broken(*args: Any) -> None:
        raise RuntimeError("the worker dies here")

    with monkeypatch.context() as patched, pytest.raises(RuntimeError), transaction.atomic():
        patched.setattr(retention, "_fold", broken)
        retention.prune_events()
    assert Event.objects.count() == 2 and Feed.objects.get().pruned_through == 0
    assert prune() == 1 and findings() == []


# --- out -----------------------------------------------------------------------------------------------------------


def exported(**given: Any) -> list[dict[str, Any]]:
    out = StringIO()
    call_command("export_events", stdout=out, **given)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_events_are_exported_in_order_with_their_organization(agent: Caster, stranger: Caster) -> None:
    for caster, name in ((agent, "a"), (stranger, "s"), (agent, "b"), (agent, "ü")):
        caster.acquire(name)
    told = exported()
    assert [(line["organization"], line["position"], line["resource_id"]) for line in told] == [
        ("acme", 1, "a"), ("acme", 2, "b"), ("acme", 3, "ü"), ("other", 1, "s"),
    ]  # fmt: skip
    assert [line["resource_id"] for line in exported(organization="acme", after=1, before=3)] == ["b"]
    assert told[0]["actor"]["principal"] == "agent" and told[0]["data"]["ttl_seconds"] == 60


def test_what_moves_out_is_in_the_archive_before_it_is_gone(
    agent: Caster, clock: Any, settings: Any, tmp_path: Path, small_batches: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "ARCHIVED_AT_ONCE", 20)
    settings.LEASEHUB_EVENT_ARCHIVE = str(tmp_path / "archive")
    for number in range(50):
        agent.acquire(f"r{number}")
    told = exported()
    clock.move(**LONG_AGO)
    agent.acquire("young")
    assert prune() == 50
    files = sorted((tmp_path / "archive").glob("organization-*/*.ndjson"))
    assert [json.loads(line) for file in files for line in file.read_text().splitlines()] == told
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert len(files) == 3 and not list((tmp_path / "archive").glob("*/.*"))


def test_a_worker_that_comes_late_replaces_no_file_of_the_archive(
    agent: Caster, clock: Any, settings: Any, tmp_path: Path
) -> None:
    """It decided what to write before another one wrote and deleted."""
    settings.LEASEHUB_EVENT_ARCHIVE = str(tmp_path)
    for name in "abcdef":
        agent.acquire(name)
    told = exported()
    clock.move(**LONG_AGO)
    agent.acquire("young")
    feed.stamp_all()
    organization = agent.principal.organization
    assert retention.archive(organization, after=0, through=6) is not None
    # One that began earlier, when fewer were old.
    assert retention.archive(organization, after=0, through=4) is not None
    assert retention._prune_batch(organization.pk, after=0, through=3) == 3
    assert retention.archive(organization, after=0, through=6) is None
    assert retention._prune_batch(organization.pk, after=3, through=6) == 3
    kept = {line for file in tmp_path.glob("*/*.ndjson") for line in file.read_text().splitlines()}
    assert sorted((json.loads(line) for line in kept), key=lambda line: line["position"]) == told
    assert not list(tmp_path.glob("*/.*"))


def test_without_its_folder_nothing_is_deleted(agent: Caster, clock: Any, settings: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    settings.LEASEHUB_EVENT_ARCHIVE = str(tmp_path / "file")
    agent.acquire("old")
    clock.move(**LONG_AGO)
    agent.acquire("young")
    feed.stamp_all()
    with pytest.raises(OSError):
        retention.prune_events()
    assert Event.objects.count() == 2


@pytest.mark.skipif("connection.vendor != 'postgresql'")
def test_a_batch_waits_for_nobody_s_feed(agent: Caster, clock: Any) -> None:
    """Everything is done but one column when the feed's row is touched, and that is the last statement."""
    from django.test.utils import CaptureQueriesContext

    agent.acquire("held")
    clock.move(**LONG_AGO)
    agent.acquire("young")
    feed.stamp_all()
    with CaptureQueriesContext(connection) as asked:
        retention.prune_events()
    writes = [query["sql"] for query in asked if query["sql"].startswith(("UPDATE", "DELETE", "INSERT"))]
    assert writes[-1].startswith('UPDATE "events_feed" SET "pruned_through"')
    assert not any("events_feed" in sql and "FOR UPDATE" in sql for sql in (query["sql"] for query in asked))


def test_what_a_killed_worker_was_writing_is_removed(agent: Caster, tmp_path: Path, settings: Any) -> None:
    settings.LEASEHUB_EVENT_ARCHIVE = str(tmp_path)
    agent.acquire("a")
    feed.stamp_all()
    organization = agent.principal.organization
    folder = tmp_path / f"organization-{organization.pk}"
    folder.mkdir()
    left, written = folder / ".left.part", folder / ".written.part"
    left.touch()
    written.touch()
    long_ago = left.stat().st_mtime - 2 * retention.LEFT_BEHIND_SECONDS
    os.utime(left, (long_ago, long_ago))
    assert retention.archive(organization, after=0, through=1) is not None
    # Another host may be at it.
    assert list(folder.glob(".*")) == [written]
