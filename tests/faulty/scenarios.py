"""What must hold of the lease, each as a short scenario that a faulty version of the code is caught by."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import connection, transaction

from leasehub.errors import DomainError, NotFound, Unauthenticated
from leasehub.events import feed, queries
from leasehub.events.models import Event, Feed
from leasehub.identity import services as identity
from leasehub.identity.authentication import Caller, authenticate
from leasehub.identity.models import ApiKey
from leases import services
from leases.errors import Conflict, LeaseLost, StaleToken
from leases.granting import Grant
from leases.models import Resource
from tests.concurrency.fixtures import Acme
from tests.concurrency.frozen import FrozenClock
from tests.concurrency.waiting import Aside, Uncommitted, after_waiting, elsewhere
from tests.replay import assert_the_journal_gives_the_state

TTL = 60


class Rollback(Exception):
    """Ends a transaction without its effects."""


@dataclass
class World:
    acme: Acme
    clock: FrozenClock

    @property
    def alice(self) -> Caller:
        return self.acme.alice.caller

    @property
    def bob(self) -> Caller:
        return self.acme.bob.caller

    @property
    def operator(self) -> services.Actor:
        return services.Actor.of(self.acme.operator.caller)

    def take(self, caller: Caller, **more: Any) -> Grant:
        asked = {"resource_type": "deploy", "resource_id": "checkout", "ttl_seconds": TTL, **more}
        return services.acquire(caller=caller, **asked)

    def beat(self, lease: Grant, caller: Caller | None = None, **more: Any) -> Grant:
        asked = {"lease_id": lease.lease_id, "fencing_token": lease.fencing_token, **more}
        return services.heartbeat(caller=caller or self.alice, **asked)

    def release(self, lease: Grant, caller: Caller | None = None, **more: Any) -> services.Ended:
        return services.release(caller=caller or self.alice, lease_id=lease.lease_id, **more)

    def force(self, lease: Grant) -> services.Ended:
        return services.force_release(
            actor=self.operator, lease_id=lease.lease_id, fencing_token=lease.fencing_token, reason="stuck"
        )

    def reap(self) -> Any:
        return services.reap(actor=self.operator, resource_type="deploy", resource_id="checkout")


Scenario = Callable[[World], None]
SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__] = function
    return function


def refused(call: Callable[[], Any], *refusals: type[DomainError]) -> DomainError:
    try:
        given = call()
    except DomainError as refusal:
        assert isinstance(refusal, refusals), f"refused as {refusal!r}"
        return refusal
    raise AssertionError(f"granted: {given}")


def row() -> Resource:
    return Resource.objects.get(resource_id="checkout")


@scenario
def a_heartbeat_with_another_token_is_refused(world: World) -> None:
    lease = world.take(world.alice)
    for wrong in (lease.fencing_token - 1, lease.fencing_token + 1):
        refused(lambda wrong=wrong: world.beat(lease, fencing_token=wrong, ttl_seconds=90), StaleToken)  # type: ignore[misc]
    assert row().expires_at == lease.expires_at


@scenario
def a_release_with_another_token_is_refused(world: World) -> None:
    lease = world.take(world.alice)
    refused(lambda: world.release(lease, fencing_token=lease.fencing_token - 1), StaleToken)
    assert row().lease_id == lease.lease_id


@scenario
def a_force_release_with_another_token_is_refused(world: World) -> None:
    lease = world.take(world.alice)
    other = Grant(lease.lease_id, lease.fencing_token + 1, lease.expires_at, lease.at)
    refused(lambda: world.force(other), StaleToken)
    assert row().lease_id == lease.lease_id


@scenario
def nobody_else_can_heartbeat_or_release_a_lease(world: World) -> None:
    lease = world.take(world.alice)
    refused(lambda: world.beat(lease, world.bob), NotFound)
    refused(lambda: world.release(lease, world.bob), NotFound)
    assert row().expires_at == lease.expires_at


@scenario
def two_holders_of_one_principal_are_two(world: World) -> None:
    world.take(world.alice, holder="alice-1")
    refusal = refused(lambda: world.take(world.alice, holder="alice-2"), Conflict)
    assert refusal.fields["held_by_self"] is False


@scenario
def a_heartbeat_that_waited_past_the_expiry_is_refused(world: World) -> None:
    lease, caller = world.take(world.alice), world.alice
    world.clock.move(seconds=TTL - 1)
    answer = after_waiting(lambda: world.beat(lease, caller), meanwhile=lambda: world.clock.move(seconds=1))
    assert isinstance(answer, LeaseLost), answer
    assert row().expires_at == lease.expires_at


@scenario
def each_heartbeat_of_a_batch_that_waited_past_the_expiry_is_refused(world: World) -> None:
    lease, caller = world.take(world.alice), world.alice
    answers = after_waiting(
        lambda: services.heartbeats(caller=caller, pairs=[(lease.lease_id, lease.fencing_token)]),
        meanwhile=lambda: world.clock.move(seconds=TTL),
    )
    assert isinstance(answers[0], LeaseLost), answers


@scenario
def a_heartbeat_that_waited_to_the_last_millisecond_counts_from_then(world: World) -> None:
    lease, caller = world.take(world.alice), world.alice
    almost = timedelta(seconds=TTL) - timedelta(milliseconds=1)
    granted = after_waiting(lambda: world.beat(lease, caller), meanwhile=lambda: world.clock.set(lease.at + almost))
    assert granted.expires_at == lease.expires_at + almost


@scenario
def an_acquire_that_waited_past_the_expiry_takes_over(world: World) -> None:
    """It was let in as a reacquire; after the wait the lease that it would have renewed has run out."""
    lease, caller = world.take(world.alice), world.alice
    granted = after_waiting(lambda: world.take(caller, ttl_seconds=20), meanwhile=lambda: world.clock.move(seconds=TTL))
    assert granted.took_over_expired
    assert granted.expires_at == lease.expires_at + timedelta(seconds=20)


@scenario
def a_first_acquire_that_waited_for_one_that_was_taken_back_counts_from_then(world: World) -> None:
    """Both insert the resource's row: the second waits, and has its whole time once the first is undone."""
    caller, other = world.alice, world.bob
    try:
        with transaction.atomic():
            undone = world.take(other)
            waiting = Aside(lambda: world.take(caller))
            waiting.await_end_or_lock()
            world.clock.move(seconds=TTL + 1)
            raise Rollback
    except Rollback:
        granted = waiting.answer()
    assert granted.expires_at == undone.expires_at + timedelta(seconds=TTL + 1)
    assert granted.fencing_token == undone.fencing_token + (TTL + 1) * 1000
    assert (row().last_token, row().expires_at) == (granted.fencing_token, granted.expires_at)
    assert row().check_at == granted.expires_at


@scenario
def a_takeover_that_waited_while_another_took_over_is_refused(world: World) -> None:
    world.take(world.alice)
    caller, winner = world.bob, world.acme.operator.caller
    world.clock.move(seconds=TTL)
    answer = after_waiting(lambda: world.take(caller), meanwhile=lambda: world.take(winner))
    assert isinstance(answer, Conflict), answer


@scenario
def the_token_after_a_wait_is_above_the_one_given_meanwhile(world: World) -> None:
    caller = world.alice
    between: list[Grant] = []
    first = world.take(caller)
    answer = after_waiting(lambda: world.take(caller), meanwhile=lambda: between.append(world.take(caller)))
    assert isinstance(answer, Grant), answer
    assert first.fencing_token < between[0].fencing_token < answer.fencing_token


@scenario
def a_release_that_waited_past_the_expiry_says_so(world: World) -> None:
    lease, caller = world.take(world.alice), world.alice
    ended = after_waiting(lambda: world.release(lease, caller), meanwhile=lambda: world.clock.move(seconds=TTL))
    assert ended.was_expired


@scenario
def an_expired_lease_is_not_revived(world: World) -> None:
    """Exactly at the expiry it is expired, though nobody took or reaped it."""
    lease = world.take(world.alice)
    world.clock.set(lease.expires_at - timedelta(milliseconds=1))
    lease = world.beat(lease)
    world.clock.set(lease.expires_at)
    refused(lambda: world.beat(lease), LeaseLost)
    answers = services.heartbeats(caller=world.alice, pairs=[(lease.lease_id, lease.fencing_token)])
    assert isinstance(answers[0], LeaseLost)
    assert row().expires_at == lease.expires_at


@scenario
def an_expired_lease_blocks_nobody(world: World) -> None:
    """Not a millisecond, and without the reaper; but it is taken over loudly."""
    lease = world.take(world.alice)
    world.clock.set(lease.expires_at - timedelta(milliseconds=1))
    refused(lambda: world.take(world.bob), Conflict)
    world.clock.set(lease.expires_at)
    granted = world.take(world.bob)
    assert granted.took_over_expired
    assert granted.previous is not None and granted.previous["holder"] == "alice"
    assert Event.objects.filter(type="lease.taken_over", previous_lease_id=lease.lease_id).count() == 1


@scenario
def a_live_lease_is_not_given_to_another(world: World) -> None:
    lease = world.take(world.alice)
    refused(lambda: world.take(world.bob), Conflict)
    refusal = refused(lambda: world.take(world.alice, reacquire=False), Conflict)
    assert refusal.fields["held_by_self"] is True
    assert row().lease_id == lease.lease_id


@scenario
def the_reaper_spares_the_living(world: World) -> None:
    lease = world.take(world.alice)
    world.clock.move(seconds=30)
    world.beat(lease)
    world.clock.move(seconds=30)
    assert services.reap_due() == 0
    assert row().lease_id == lease.lease_id
    assert row().check_at == row().expires_at
    world.clock.move(seconds=30)
    assert services.reap_due() == 1
    assert services.reap_due() == 0
    assert row().lease_id is None


@scenario
def a_live_lease_cannot_be_reaped_by_name(world: World) -> None:
    lease = world.take(world.alice)
    world.clock.set(lease.expires_at - timedelta(milliseconds=1))
    refused(world.reap, Conflict)
    world.clock.set(lease.expires_at)
    world.reap()
    assert row().lease_id is None


@scenario
def a_heartbeat_that_shortens_the_lease_is_seen_by_the_reaper(world: World) -> None:
    world.beat(world.take(world.alice), ttl_seconds=10)
    world.clock.move(seconds=10)
    assert services.reap_due() == 1


@scenario
def reconcile_ends_the_dead_inside_the_fence_alone(world: World) -> None:
    mine = world.take(world.alice)
    world.take(world.bob, resource_id="search")
    world.clock.move(seconds=30)
    living = world.take(world.alice, resource_id="billing")
    world.clock.move(seconds=30)
    report = services.reconcile(caller=world.acme.sweeper.caller)
    assert [row.lease_id for row in report.reaped] == [mine.lease_id]
    assert [row.lease_id for row in report.held] == [living.lease_id]
    assert [row.resource_id for row in report.foreign] == ["search"]
    assert Resource.objects.filter(lease_id__isnull=False).count() == 2


@scenario
def a_late_release_does_not_touch_the_next_holder(world: World) -> None:
    late = world.take(world.alice)
    world.clock.move(seconds=TTL)
    taken = world.take(world.bob)
    refused(lambda: world.release(late), NotFound)
    refused(lambda: world.beat(late), LeaseLost)
    again = world.take(world.alice, resource_id="search")
    world.take(world.alice, resource_id="search")
    refused(lambda: world.release(again), NotFound)
    assert row().lease_id == taken.lease_id
    assert Resource.objects.filter(lease_id__isnull=False).count() == 2


@scenario
def tokens_only_grow(world: World) -> None:
    """Across every way to end, with the clock standing still, going back, and after the row was pruned."""
    tokens = []
    for end in (world.release, world.force, None, lambda lease: world.clock.move(minutes=-5) or world.release(lease)):
        lease = world.take(world.alice)
        tokens.append(lease.fencing_token)
        if end is not None:
            end(lease)
    world.clock.move(minutes=10)
    world.reap() if row().lease_id else None
    tokens.append(world.take(world.bob).fencing_token)
    world.clock.move(days=2)
    services.reap_due()
    assert services.prune() == 1
    tokens.append(world.take(world.bob).fencing_token)
    assert tokens == sorted(set(tokens)), tokens


@scenario
def only_old_free_rows_are_pruned(world: World) -> None:
    held = world.take(world.alice, resource_id="held", ttl_seconds=86400)
    world.release(world.take(world.alice, resource_id="old"))
    world.clock.move(hours=12)
    world.release(world.take(world.alice, resource_id="young"))
    world.clock.move(hours=12, milliseconds=-1)
    assert services.prune() == 0
    world.clock.move(milliseconds=2)
    assert services.prune() == 1
    assert set(Resource.objects.values_list("resource_id", flat=True)) == {"held", "young"}
    assert Resource.objects.get(resource_id="held").lease_id == held.lease_id


@scenario
def a_heartbeat_does_not_outlive_the_lifetime(world: World) -> None:
    lease = world.take(world.alice, max_lifetime_seconds=90)
    world.clock.move(seconds=50)
    assert world.beat(lease).expires_at == lease.at + timedelta(seconds=90)
    world.clock.move(seconds=40)
    refusal = refused(lambda: world.beat(lease), LeaseLost)
    assert refusal.fields["ended_by"] == "max_lifetime"


@scenario
def every_transition_has_one_event(world: World) -> None:
    lease = world.take(world.alice)
    world.beat(lease)
    refused(lambda: world.take(world.bob), Conflict)
    lease = world.take(world.alice)
    world.release(lease)
    refused(lambda: world.release(lease), NotFound)
    world.force(world.take(world.bob))
    world.take(world.alice)
    world.clock.move(seconds=TTL)
    world.take(world.bob)
    world.clock.move(seconds=TTL)
    services.reap_due()
    world.take(world.bob)
    world.clock.move(seconds=TTL)
    world.reap()
    assert list(Event.objects.order_by("pk").values_list("type", flat=True)) == [
        "lease.acquired", "lease.acquired", "lease.released", "lease.acquired", "lease.force_released",
        "lease.acquired", "lease.taken_over", "lease.reaped", "lease.acquired", "lease.reaped",
    ]  # fmt: skip
    assert_the_journal_gives_the_state()


@scenario
def an_event_is_in_the_transaction_of_its_transition(world: World) -> None:
    """Seen as soon as it happens, and gone when it is undone."""
    lease = world.take(world.bob, resource_id="search")
    doings: tuple[Callable[[], Any], ...] = (
        lambda: world.take(world.alice),
        lambda: world.release(lease, world.bob),
        lambda: world.force(lease),
    )
    for doing in doings:
        before = Event.objects.count()
        try:
            with transaction.atomic():
                doing()
                assert Event.objects.count() == before + 1, "the event comes later than its transition"
                raise Rollback
        except Rollback:
            pass
        assert Event.objects.count() == before, "the event outlives its transition"
    assert_the_journal_gives_the_state()


@scenario
def a_key_that_works_no_more_is_refused(world: World) -> None:
    """By the database, at the next call, though the process remembers the key."""
    caller, lease = world.alice, world.take(world.alice)
    keys = ApiKey.objects.filter(pk=caller.key)

    def assert_refused() -> None:
        refused(lambda: world.take(caller, resource_id="search"), Unauthenticated)
        refused(lambda: world.beat(lease, caller), Unauthenticated)
        refused(lambda: world.release(lease, caller), Unauthenticated)
        pairs = [(lease.lease_id, lease.fencing_token)]
        refused(lambda: services.heartbeats(caller=caller, pairs=pairs), Unauthenticated)

    keys.update(revoked_at=world.clock.at)
    assert_refused()
    keys.update(revoked_at=None, expires_at=world.clock.at)
    assert_refused()
    keys.update(expires_at=world.clock.at + timedelta(milliseconds=1))
    world.beat(lease, caller)
    keys.update(expires_at=None)
    identity.retire_principal(organization=caller.organization, handle=caller.handle)
    assert_refused()
    assert row().lease_id == lease.lease_id


def read_all(caller: Caller, after: int) -> tuple[list[int], int]:
    """The ids of the events after a cursor, and the next cursor."""
    reading = queries.read(view=queries.View.of(caller), after=after, limit=100)
    return [event.pk for event in reading.events], reading.cursor


@scenario
def a_reader_sees_the_event_of_a_transaction_that_commits_late(world: World) -> None:
    """The second of two transactions commits first. SQLite has one writer, so there it only takes its turn."""
    caller, reader = world.alice, world.acme.operator.caller
    if connection.vendor == "sqlite":
        world.take(caller, resource_id="first")
        world.take(caller, resource_id="second")
        assert len(read_all(reader, 0)[0]) == 2
        return
    with transaction.atomic():
        world.take(caller, resource_id="first")
        elsewhere(lambda: world.take(caller, resource_id="second"))
        seen, cursor = elsewhere(lambda: read_all(reader, 0))
    late, cursor = read_all(reader, cursor)
    assert len(seen) == len(late) == 1
    assert late[0] < seen[0], "the commits did not cross"
    assert read_all(reader, cursor)[0] == []
    assert list(Event.objects.order_by("position").values_list("position", flat=True)) == [1, 2]


@scenario
def a_stamper_goes_away_while_another_is_at_it(world: World) -> None:
    """Or the two would number the same events, each as it sees them: here the second sees one more, with a lower id."""
    organization = world.acme.organization
    caller = world.alice
    world.take(caller, resource_id="first")
    feed.stamp(organization=organization)
    if connection.vendor == "sqlite":
        return
    late = Uncommitted(lambda: world.take(caller, resource_id="late"))
    world.take(caller, resource_id="early")
    with transaction.atomic():
        assert feed.stamp(organization=organization) == 1
        late.commit()
        other = Aside(lambda: feed.stamp(organization=organization))
        other.await_end_or_lock()
    assert other.answer() == 0
    assert feed.stamp(organization=organization) == 1
    ordered = list(Event.objects.order_by("position").values_list("resource_id", "position"))
    assert ordered == [("first", 1), ("early", 2), ("late", 3)]


@scenario
def stampers_in_parallel_number_everything_once(world: World) -> None:
    caller, organization = world.alice, world.acme.organization

    def take_and_stamp(name: str) -> None:
        for number in range(5):
            world.take(caller, resource_id=f"{name}-{number}")
            feed.stamp(organization=organization)

    for aside in [Aside(lambda name=name: take_and_stamp(name)) for name in "abcd"]:  # type: ignore[misc]
        aside.answer()
    feed.stamp(organization=organization)
    positions = sorted(Event.objects.values_list("position", flat=True))
    assert positions == list(range(1, 21)), positions


@scenario
def low_water_waits_for_a_long_transaction(world: World) -> None:
    """However often is stamped meanwhile, and though its event has the lowest id."""
    caller, organization = world.alice, world.acme.organization
    if connection.vendor == "sqlite":
        return

    def stamp_on() -> None:
        for number in range(4):
            world.take(caller, resource_id=f"short-{number}")
            feed.stamp(organization=organization)

    with transaction.atomic():
        world.take(caller, resource_id="long")
        elsewhere(stamp_on)
    assert feed.has_news(organization=organization)
    assert feed.stamp(organization=organization) == 1
    assert not Event.objects.filter(position=None).exists()


@scenario
def low_water_waits_for_the_one_that_began_last(world: World) -> None:
    """Its number is the next after that of the last transaction that has ended: on a server with nothing else to do,
    or another transaction's comes between."""
    organization = world.acme.organization
    if connection.vendor == "sqlite":
        return
    began, go = threading.Event(), threading.Event()

    def first() -> None:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_current_xact_id()")
            began.set()
            go.wait(20)
            world.take(world.alice, resource_id="first")
        for _ in range(4):
            feed.stamp(organization=organization)

    thread = threading.Thread(target=elsewhere, args=(first,))
    thread.start()
    began.wait(20)
    with transaction.atomic():
        world.take(world.alice, resource_id="last")
        go.set()
        thread.join(30)
    assert feed.stamp(organization=organization) == 1
    assert not Event.objects.filter(position=None).exists()


@scenario
def the_beat_numbers_the_events_of_every_organization(world: World) -> None:
    """Also of one that has never been numbered, and whose events are older than what others have numbered."""
    newcomer = identity.create_organization(name="newcomer")
    principal = identity.create_principal(organization=newcomer.pk, handle="carol")
    _, secret = identity.issue_key(principal=principal)
    world.take(authenticate(f"Bearer {secret}"))
    world.take(world.alice)
    feed.stamp(organization=world.acme.organization)
    # Where the stamper will move it once no older transaction runs on the PostgreSQL server.
    Feed.objects.update(low_water=Event.objects.exclude(position=None).get().pk)
    feed.stamp_all()
    assert not Event.objects.filter(position=None).exists()
