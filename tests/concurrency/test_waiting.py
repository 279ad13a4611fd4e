"""What a verb decides after it has waited for a lock: with the time after the wait, never with that before it."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from leases import services
from leases.errors import Conflict, LeaseLost
from leases.granting import Grant
from leases.models import Resource
from tests.concurrency.fixtures import Acme
from tests.concurrency.frozen import FrozenClock
from tests.concurrency.test_interleavings import engines
from tests.concurrency.verbs import using
from tests.concurrency.waiting import after_waiting

TTL = 60


@pytest.fixture(params=engines(), autouse=True)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with using(request.param, monkeypatch):
        yield request.param


def take(acme: Acme, **more: Any) -> Grant:
    return services.acquire(
        caller=acme.alice.caller, resource_type="deploy", resource_id="checkout", ttl_seconds=TTL, **more
    )


def test_a_heartbeat_that_waited_past_the_expiry_is_refused(acme: Acme, frozen: FrozenClock) -> None:
    lease, caller = take(acme), acme.alice.caller
    frozen.move(seconds=TTL - 1)
    refused = after_waiting(
        lambda: services.heartbeat(caller=caller, lease_id=lease.lease_id, fencing_token=lease.fencing_token),
        meanwhile=lambda: frozen.move(seconds=1),
    )
    assert isinstance(refused, LeaseLost), refused
    assert Resource.objects.get().expires_at == lease.expires_at


def test_a_heartbeat_that_waited_to_the_last_millisecond_is_granted(acme: Acme, frozen: FrozenClock) -> None:
    lease, caller = take(acme), acme.alice.caller
    granted = after_waiting(
        lambda: services.heartbeat(caller=caller, lease_id=lease.lease_id, fencing_token=lease.fencing_token),
        meanwhile=lambda: frozen.move(milliseconds=TTL * 1000 - 1),
    )
    assert granted.expires_at == lease.expires_at + timedelta(milliseconds=TTL * 1000 - 1)


def test_each_heartbeat_of_a_batch_that_waited_past_the_expiry_is_refused(acme: Acme, frozen: FrozenClock) -> None:
    lease, caller = take(acme), acme.alice.caller
    answers = after_waiting(
        lambda: services.heartbeats(caller=caller, pairs=[(lease.lease_id, lease.fencing_token)]),
        meanwhile=lambda: frozen.move(seconds=TTL),
    )
    assert isinstance(answers[0], LeaseLost), answers


def test_an_acquire_that_waited_past_the_expiry_takes_over(acme: Acme, frozen: FrozenClock) -> None:
    """It was let in as a reacquire; after the wait the lease that it would renew has run out."""
    lease, caller = take(acme), acme.alice.caller
    granted = after_waiting(
        lambda: services.acquire(caller=caller, resource_type="deploy", resource_id="checkout", ttl_seconds=20),
        meanwhile=lambda: frozen.move(seconds=TTL),
    )
    assert granted.took_over_expired
    assert granted.expires_at == lease.expires_at + timedelta(seconds=20)


def test_a_takeover_that_waited_while_another_took_over_is_refused(acme: Acme, frozen: FrozenClock) -> None:
    take(acme)
    caller, winner = acme.bob.caller, acme.operator.caller
    frozen.move(seconds=TTL)
    refused = after_waiting(
        lambda: services.acquire(caller=caller, resource_type="deploy", resource_id="checkout", ttl_seconds=20),
        meanwhile=lambda: services.acquire(
            caller=winner, resource_type="deploy", resource_id="checkout", ttl_seconds=20
        ),
    )
    assert isinstance(refused, Conflict), refused


def test_the_token_of_an_acquire_that_waited_is_above_that_of_the_one_before(acme: Acme, frozen: FrozenClock) -> None:
    first = take(acme)
    between: list[Grant] = []
    granted = after_waiting(lambda: take(acme), meanwhile=lambda: between.append(take(acme)))
    assert first.fencing_token < between[0].fencing_token < granted.fencing_token


def test_a_release_that_waited_past_the_expiry_says_so(acme: Acme, frozen: FrozenClock) -> None:
    lease, caller = take(acme), acme.alice.caller
    ended = after_waiting(
        lambda: services.release(caller=caller, lease_id=lease.lease_id), meanwhile=lambda: frozen.move(seconds=TTL)
    )
    assert ended.was_expired


def test_a_reap_that_waited_past_the_expiry_ends_the_lease(acme: Acme, frozen: FrozenClock) -> None:
    take(acme)
    actor = services.Actor.of(acme.bob.caller)
    after_waiting(
        lambda: services.reap(actor=actor, resource_type="deploy", resource_id="checkout"),
        meanwhile=lambda: frozen.move(seconds=TTL),
    )
    assert Resource.objects.get().lease_id is None
