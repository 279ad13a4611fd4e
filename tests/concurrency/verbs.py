"""Every verb of the lease as an operation of the stage, and the scenes that they are played in."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import ModuleType
from typing import Any

import pytest
from django.db import connection, transaction

from leasehub.errors import DomainError
from leasehub.events.models import Event
from leasehub.identity.authentication import Caller
from leases import services
from leases.engines import plpgsql, portable
from leases.granting import Grant
from leases.models import Resource
from tests.concurrency.fixtures import Acme
from tests.concurrency.frozen import FrozenClock
from tests.replay import assert_the_journal_gives_the_state

ENGINES: dict[str, ModuleType] = {"plpgsql": plpgsql, "portable": portable}
KEPT = ("leases_resource", "events_event", "events_feed")
KIND, NAME, OTHER = "deploy", "checkout", "search"


@contextmanager
def using(engine: str, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """The services on this engine, whatever database they run on."""
    with patch.context() as patched:
        patched.setattr(services, "engine", lambda: ENGINES[engine])
        yield


@dataclass
class Scene:
    """A resource in some state, and alice's lease on it, living or ended."""

    acme: Acme
    clock: FrozenClock
    at: datetime
    callers: dict[str, Caller]
    lease: Grant
    other: Grant
    #: The newest event that was there before.
    last_event: int

    def restore(self) -> None:
        """Puts the rows back as they were kept."""
        put_back = [
            statement
            for table in KEPT
            for statement in (f"DELETE FROM {table}", f"INSERT INTO {table} SELECT * FROM kept_{table}")
        ]
        with connection.cursor() as cursor:
            # One round trip where the database takes it.
            for text in [";".join(put_back)] if connection.vendor == "postgresql" else put_back:
                cursor.execute(text)
        if self.clock.at != self.at:
            self.clock.set(self.at)

    def actor(self, name: str) -> services.Actor:
        return services.Actor.of(self.callers[name])


def make_scene(acme: Acme, clock: FrozenClock, state: str) -> Scene:
    """``state`` of deploy/checkout: held (and due to be looked at), expired (this millisecond), free, missing."""
    callers = {name: getattr(acme, name).caller for name in ("alice", "bob", "operator", "sweeper")}
    at = clock.at
    if state in ("free", "missing"):
        clock.set(at - timedelta(days=2))
    else:
        clock.set(at - timedelta(seconds=60))
    lease = services.acquire(caller=callers["alice"], resource_type=KIND, resource_id=NAME, ttl_seconds=60)
    if state in ("free", "missing"):
        services.release(caller=callers["alice"], lease_id=lease.lease_id)
        if state == "missing":
            Resource.objects.all().delete()
    if state == "held":
        clock.set(at - timedelta(seconds=30))
        services.heartbeat(caller=callers["alice"], lease_id=lease.lease_id, fencing_token=lease.fencing_token)
    clock.set(at - timedelta(seconds=10))
    other = services.acquire(caller=callers["alice"], resource_type=KIND, resource_id=OTHER, ttl_seconds=60)
    clock.set(at)
    keep_rows()
    return Scene(
        acme,
        clock,
        at,
        callers,
        lease,
        other,
        Event.objects.latest("pk").pk,
    )


def keep_rows() -> None:
    with connection.cursor() as cursor:
        for table in KEPT:
            cursor.execute(f"DROP TABLE IF EXISTS kept_{table}")
            cursor.execute(f"CREATE TEMPORARY TABLE kept_{table} AS SELECT * FROM {table}")


def acquire(scene: Scene) -> Any:
    return services.acquire(caller=scene.callers["bob"], resource_type=KIND, resource_id=NAME, ttl_seconds=20)


def reacquire(scene: Scene) -> Any:
    return services.acquire(caller=scene.callers["alice"], resource_type=KIND, resource_id=NAME, ttl_seconds=25)


def heartbeat(scene: Scene) -> Any:
    lease = scene.lease
    return services.heartbeat(
        caller=scene.callers["alice"], lease_id=lease.lease_id, fencing_token=lease.fencing_token, ttl_seconds=15
    )


def heartbeats(scene: Scene) -> Any:
    pairs = [(lease.lease_id, lease.fencing_token) for lease in (scene.lease, scene.other)]
    return services.heartbeats(caller=scene.callers["alice"], pairs=pairs)


def release(scene: Scene) -> Any:
    lease = scene.lease
    return services.release(caller=scene.callers["alice"], lease_id=lease.lease_id, fencing_token=lease.fencing_token)


def force_release(scene: Scene) -> Any:
    return services.force_release(
        actor=scene.actor("operator"),
        lease_id=scene.lease.lease_id,
        fencing_token=scene.lease.fencing_token,
        reason="stuck",
    )


def reap(scene: Scene) -> Any:
    return services.reap(actor=scene.actor("bob"), resource_type=KIND, resource_id=NAME)[0].lease_id


def reap_due(scene: Scene) -> Any:
    return services.reap_due()


def prune(scene: Scene) -> Any:
    return services.prune()


def reconcile(scene: Scene) -> Any:
    report = services.reconcile(caller=scene.callers["sweeper"])
    caller = scene.callers["sweeper"]
    for row in report.held + report.reaped:
        assert caller.may_hold_as(row.holder or ""), f"reported {row} of {row.holder} as inside the fence"
    return [
        sorted((row.resource_id, row.holder) for row in rows) for rows in (report.held, report.reaped, report.foreign)
    ]


VERBS: dict[str, Callable[[Scene], Any]] = {
    verb.__name__: verb
    for verb in (
        acquire, reacquire, heartbeat, heartbeats, release, force_release, reap, reap_due, prune, reconcile,
    )
}  # fmt: skip
# One statement each on PostgreSQL, in autocommit: a transaction of ours lets the stage stop before the commit.
IN_AUTOCOMMIT = {"acquire", "reacquire", "heartbeat", "heartbeats", "release", "reap_due"}
# These pass over a row that somebody else has locked, and come back later.
SKIPPING = {"reap_due", "prune"}


def operation(verb: str, scene: Scene, engine: str) -> Callable[[], Any]:
    def run() -> Any:
        if engine == "plpgsql" and verb in IN_AUTOCOMMIT:
            with transaction.atomic():
                return VERBS[verb](scene)
        return VERBS[verb](scene)

    # Their first yield point is a reading of the clock already: the start would be the same place again.
    run.starts_with_the_clock = verb in SKIPPING  # type: ignore[attr-defined]
    return run


def observed(scene: Scene, results: list[Any]) -> tuple[Any, ...]:
    """What the callers were told, the rows and the new events, with the random lease ids named by their tokens."""
    names = {scene.lease.lease_id: "first", scene.other.lease_id: "other"}
    journal, rows = list(Event.objects.order_by("pk")), list(Resource.objects.order_by("resource_id"))
    assert_the_journal_gives_the_state(journal, rows)
    events = [event for event in journal if event.pk > scene.last_event]
    for event in events:
        if event.lease_id not in names:
            names[event.lease_id] = f"token {event.fencing_token}"

    def told(result: Any) -> Any:
        if isinstance(result, DomainError):
            return (type(result).__name__, tuple(sorted((name, str(value)) for name, value in result.fields.items())))
        if isinstance(result, Grant):
            previous = None if result.previous is None else result.previous["lease_id"]
            return (
                "granted",
                names[result.lease_id],
                result.fencing_token,
                result.expires_at,
                result.took_over_expired,
                None if previous is None else names[_uuid(previous)],
            )
        if isinstance(result, services.Ended):
            return ("ended", names[result.lease_id], result.at, result.was_expired)
        if isinstance(result, list):
            return tuple(told(item) for item in result)
        assert not isinstance(result, Exception), repr(result)
        return names.get(result, result)

    state = [
        (
            row.resource_id, row.last_token, names.get(row.lease_id), row.holder, row.acquired_at, row.heartbeat_at,
            row.expires_at, row.check_at, row.ttl_ms,
        )
        for row in rows
    ]  # fmt: skip
    changes = [
        (
            event.type, event.resource_id, names[event.lease_id], names.get(event.previous_lease_id),
            event.fencing_token, event.holder, event.at,
        )
        for event in events
    ]  # fmt: skip
    return tuple(told(result) for result in results), tuple(state), tuple(changes)


def _uuid(public: str) -> uuid.UUID:
    return uuid.UUID(hex=public.removeprefix("lease_"))
