"""What is delivered, when, in which order; and what becomes of an endpoint that fails. With a movable clock."""

import json
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from leasehub.events.models import Event, Feed
from leasehub.events.webhooks import courier, delivery, queries, services
from leasehub.events.webhooks.models import WebhookDelivery, WebhookEndpoint
from leasehub.events.webhooks.sending import Outcome
from leasehub.identity import services as identity
from tests.conftest import Caster, cast, error_of
from tests.handoffs.conftest import sent
from tests.webhooks.conftest import Subscribe, log, pending, row, send_all, send_until_done, shown
from tests.webhooks.receiver import Receiver, status

REFUSED = status(500)


def test_an_event_is_posted_as_the_feed_shows_it_and_signed(
    agent: Caster, operator: Caster, subscribe: Subscribe, receiver: Receiver
) -> None:
    endpoint = subscribe()
    agent.acquire("checkout")
    assert [outcome.is_success for outcome in send_all()] == [True]
    (message,) = receiver.got
    (event,) = operator.get("events").json()["data"]["events"]
    assert message.line == "POST /hook?tenant=a HTTP/1.1"
    assert message.headers["content-type"] == "application/json"
    assert message.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert message.id == event["event_id"]
    assert message.document == {"type": "lease.acquired", "timestamp": event["at"], "data": event}
    # By somebody else's code.
    assert Webhook(endpoint["secret"]).verify(message.body, message.headers) == message.document
    with pytest.raises(WebhookVerificationError):
        Webhook(endpoint["secret"]).verify(message.body + b" ", message.headers)
    (entry,) = log(operator, endpoint)
    assert (entry["state"], entry["attempts"], entry["response_status"], entry["error"]) == ("delivered", 1, 200, None)
    assert (entry["event_id"], entry["position"], entry["purpose"]) == (message.id, event["position"], "feed")
    assert shown(operator, endpoint)["cursor"] == event["position"]
    assert send_all() == []


def test_an_endpoint_is_told_of_what_happens_after_it_was_made(
    agent: Caster, operator: Caster, subscribe: Subscribe, receiver: Receiver
) -> None:
    agent.acquire("numbered")
    operator.get("events")
    agent.acquire("not numbered yet")
    subscribe()
    agent.acquire("after")
    send_until_done()
    assert [message.document["data"]["resource_id"] for message in receiver.got] == ["after"]


def test_only_its_types_are_delivered(agent: Caster, subscribe: Subscribe, receiver: Receiver) -> None:
    subscribe(types=["lease.released", "handoff.created"])
    lease = agent.acquire().json()["data"]
    agent.delete(f"leases/{lease['lease_id']}")
    agent.acquire()
    send_until_done()
    assert [message.document["type"] for message in receiver.got] == ["lease.released"]


def test_the_cursor_passes_over_other_types_without_a_write_for_each_look(
    agent: Caster, subscribe: Subscribe, clock: Any
) -> None:
    endpoint = subscribe(types=["handoff.created"])
    for number in range(5):
        agent.acquire(f"r{number}")
    send_all()
    assert row(endpoint).cursor == 0
    clock.move(seconds=11)
    send_all()
    assert row(endpoint).cursor == 5
    assert delivery.due() == []


def test_events_come_one_at_a_time_in_the_order_of_the_feed(
    agent: Caster, subscribe: Subscribe, receiver: Receiver, clock: Any
) -> None:
    subscribe()
    for number in range(4):
        agent.acquire(f"r{number}")
    receiver.behave = REFUSED
    send_all()
    assert receiver.positions == [1]
    clock.move(seconds=7)
    send_all()
    assert receiver.positions == [1, 1]
    receiver.behave = status(200)
    clock.move(seconds=60)
    send_until_done()
    assert receiver.positions == [1, 1, 1, 2, 3, 4]
    assert len({message.id for message in receiver.got}) == 4


def test_while_one_message_is_under_way_nobody_takes_another(agent: Caster, subscribe: Subscribe, clock: Any) -> None:
    endpoint = subscribe()
    agent.acquire("one")
    agent.acquire("two")
    (due,) = delivery.due()
    first = delivery.take(endpoint=due.endpoint)
    assert first is not None
    assert delivery.due() == [] and delivery.take(endpoint=due.endpoint) is None
    # The worker was killed: when its claim has run out, the next takes the same message.
    clock.move(seconds=delivery.CLAIM.total_seconds() - 1)
    assert delivery.due() == [] and delivery.take(endpoint=due.endpoint) is None
    clock.move(seconds=1)
    (due,) = delivery.due()
    second = delivery.take(endpoint=due.endpoint)
    assert second is not None and second.headers["webhook-id"] == first.headers["webhook-id"]
    assert (second.delivery, second.claim == first.claim) == (first.delivery, False)
    # What the first one says now, counts no more.
    assert not delivery.finish(first, Outcome(200))
    assert row(endpoint).cursor == 0
    assert delivery.finish(second, Outcome(200))
    assert row(endpoint).cursor == 1
    assert WebhookDelivery.objects.get().attempts == 2


def test_a_test_waits_for_the_message_that_is_under_way(
    agent: Caster, operator: Caster, subscribe: Subscribe, receiver: Receiver
) -> None:
    endpoint = subscribe()
    agent.acquire()
    (due,) = delivery.due()
    attempt = delivery.take(endpoint=due.endpoint)
    assert attempt is not None
    operator.post(f"webhooks/{endpoint['webhook_id']}/test")
    assert delivery.due() == [] and delivery.take(endpoint=due.endpoint) is None
    delivery.finish(attempt, courier.tried(attempt))
    send_until_done()
    assert receiver.positions == [1, None]


@pytest.mark.parametrize("stale", ["paused", "deleted", "claimed", "delivered", "failed"])
def test_what_changed_after_the_look_is_seen_under_the_lock(
    stale: str, agent: Caster, operator: Caster, subscribe: Subscribe, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = subscribe()
    agent.acquire()
    (due,) = delivery.due()
    look = delivery._next_event

    def interrupted(seen: WebhookEndpoint, at: Any) -> Event | None:
        event = look(seen, at)
        monkeypatch.setattr(delivery, "_next_event", look)
        if stale == "paused":
            operator.post(f"webhooks/{endpoint['webhook_id']}/pause")
        elif stale == "deleted":
            operator.delete(f"webhooks/{endpoint['webhook_id']}")
        else:
            other = delivery.take(endpoint=due.endpoint)
            assert other is not None
            if stale != "claimed":
                delivery.finish(other, Outcome(200) if stale == "delivered" else Outcome(500, "answered 500"))
        return event

    monkeypatch.setattr(delivery, "_next_event", interrupted)
    assert delivery.take(endpoint=due.endpoint) is None


def test_the_pauses_grow_from_five_seconds_to_ten_hours(
    agent: Caster, operator: Caster, subscribe: Subscribe, receiver: Receiver, clock: Any
) -> None:
    endpoint = subscribe()
    receiver.behave = REFUSED
    agent.acquire()
    pauses = []
    for attempt in range(1, 13):
        clock.freeze(row(endpoint).next_attempt_at)
        assert len(send_all()) == 1, attempt
        pauses.append((row(endpoint).next_attempt_at - clock.now()).total_seconds())
        assert send_all() == []
    for pause, least in zip(pauses, [*delivery.PAUSES, 36_000, 36_000], strict=True):
        assert least <= pause <= least * 1.2
    assert len({round(pause / least, 4) for pause, least in zip(pauses, delivery.PAUSES, strict=False)}) > 5
    view = shown(operator, endpoint)
    assert (view["failures"], view["last_status"], view["state"]) == (12, 500, "active")


@pytest.mark.parametrize(("header", "least", "most"), [("120", 120, 144), ("1", 5, 6.1), ("9999999", 36_000, 43_200)])
def test_retry_after_is_honoured_within_bounds(
    header: str, least: float, most: float, agent: Caster, subscribe: Subscribe, receiver: Receiver, clock: Any
) -> None:
    endpoint = subscribe()
    receiver.behave = status(429, f"Retry-After: {header}")
    agent.acquire()
    clock.freeze(clock.now())
    send_all()
    assert least <= (row(endpoint).next_attempt_at - clock.now()).total_seconds() <= most


def test_those_who_were_told_the_same_do_not_come_back_together() -> None:
    for seconds in (120.0, 9_999_999.0):
        assert len({delivery.pause(1, Outcome(503, "answered 503", seconds)) for _ in range(10)}) > 5


def test_success_begins_the_pauses_anew(agent: Caster, subscribe: Subscribe, receiver: Receiver, clock: Any) -> None:
    endpoint = subscribe()
    receiver.behave = REFUSED
    agent.acquire("one")
    for _ in range(4):
        send_all()
        clock.move(hours=1)
    receiver.behave = status(200)
    send_all()
    assert (row(endpoint).failures, row(endpoint).failing_since) == (0, None)
    receiver.behave = REFUSED
    agent.acquire("two")
    send_all()
    clock.move(seconds=7)
    assert len(send_all()) == 1


def disabled_events(caster: Caster) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = caster.get("events?types=webhook.disabled").json()["data"]["events"]
    return found


def test_three_days_of_failure_disable_it_and_resuming_goes_on_from_where_it_was(
    agent: Caster, operator: Caster, subscribe: Subscribe, receiver: Receiver, clock: Any
) -> None:
    endpoint = subscribe()
    receiver.behave = REFUSED
    agent.acquire("one")
    agent.acquire("two")
    began = row(endpoint).next_attempt_at
    while row(endpoint).state == "active":
        clock.freeze(row(endpoint).next_attempt_at)
        assert send_all()
        assert clock.now() - began <= timedelta(days=3, seconds=5)
    assert clock.now() - began >= timedelta(days=3)
    (event,) = disabled_events(operator)
    assert event["data"]["webhook_id"] == endpoint["webhook_id"]
    assert event["data"]["reason"] == "it failed for 3 days, last: answered 500"
    view = shown(operator, endpoint)
    assert (view["state"], view["reason"], view["cursor"]) == ("disabled", event["data"]["reason"], 0)
    clock.move(days=30)
    assert send_all() == []
    # Pausing does not hide it.
    assert operator.post(f"webhooks/{endpoint['webhook_id']}/pause").json()["data"]["state"] == "disabled"
    receiver.behave = status(200)
    receiver.got.clear()
    resumed = operator.post(f"webhooks/{endpoint['webhook_id']}/resume").json()["data"]
    assert (resumed["state"], resumed["reason"], resumed["failures"]) == ("active", None, 0)
    send_until_done()
    assert receiver.positions == [1, 2, 3]


def test_410_disables_at_once(agent: Caster, operator: Caster, subscribe: Subscribe, receiver: Receiver) -> None:
    endpoint = subscribe()
    receiver.behave = status(410)
    agent.acquire()
    send_all()
    assert shown(operator, endpoint)["reason"] == "the receiver answered 410 Gone"
    assert len(disabled_events(operator)) == 1
    assert pending() == 1


def test_an_endpoint_whose_maker_is_retired_is_disabled(
    agent: Caster, operator: Caster, organization: Any, subscribe: Subscribe, receiver: Receiver
) -> None:
    maker = cast(organization, "maker", (1, 3))
    endpoint = subscribe(by=maker)
    identity.retire_principal(organization=organization.pk, handle="maker")
    agent.acquire()
    assert send_all() == []
    assert receiver.got == []
    assert "retired" in shown(operator, endpoint)["reason"]
    refused = operator.post(f"webhooks/{endpoint['webhook_id']}/resume")
    assert refused.status_code == 400 and "retired" in refused.json()["error"]["message"]


@pytest.mark.parametrize("end", ["revoked", "expired"])
def test_an_endpoint_whose_key_has_ended_is_disabled(
    end: str, agent: Caster, operator: Caster, organization: Any, subscribe: Subscribe, receiver: Receiver, clock: Any
) -> None:
    maker = cast(organization, "maker", (1, 3), expires_at=clock.now() + timedelta(hours=1))
    endpoint = subscribe(by=maker)
    agent.acquire("one")
    send_until_done()
    if end == "revoked":
        identity.revoke_key(organization=organization.pk, key=row(endpoint).key)
    else:
        clock.move(hours=2)
    agent.acquire("two")
    assert send_all() == []
    assert receiver.positions == [1]
    assert shown(operator, endpoint)["reason"] == "the key that made it was revoked or has expired"
    assert len(disabled_events(operator)) == 1
    assert operator.post(f"webhooks/{endpoint['webhook_id']}/resume").status_code == 400


def test_the_key_that_one_was_rotated_to_keeps_its_endpoints(
    agent: Caster, operator: Caster, organization: Any, subscribe: Subscribe, receiver: Receiver
) -> None:
    endpoint = subscribe(by=cast(organization, "maker", (1, 3)))
    old = row(endpoint).key
    for overlap_seconds in (60, 0):
        made, _ = identity.rotate_key(
            organization=organization.pk, granting=(1, 2, 3), key=old, overlap_seconds=overlap_seconds
        )
        identity.revoke_key(organization=organization.pk, key=old)
        old = made
    agent.acquire("one")
    send_until_done()
    assert receiver.positions == [1]
    identity.revoke_key(organization=organization.pk, key=old)
    agent.acquire("two")
    send_until_done()
    assert receiver.positions == [1]
    assert shown(operator, endpoint)["state"] == "disabled"


def test_a_paused_endpoint_loses_nothing(
    agent: Caster, operator: Caster, subscribe: Subscribe, receiver: Receiver
) -> None:
    endpoint = subscribe()
    operator.post(f"webhooks/{endpoint['webhook_id']}/pause")
    agent.acquire("one")
    agent.acquire("two")
    assert send_all() == []
    operator.post(f"webhooks/{endpoint['webhook_id']}/resume")
    send_until_done()
    assert receiver.positions == [1, 2]


def test_a_deleted_endpoint_is_sent_nothing_more_and_what_was_under_way_does_no_harm(
    agent: Caster, operator: Caster, subscribe: Subscribe, receiver: Receiver
) -> None:
    endpoint = subscribe()
    agent.acquire()
    (due,) = delivery.due()
    attempt = delivery.take(endpoint=due.endpoint)
    assert attempt is not None
    operator.delete(f"webhooks/{endpoint['webhook_id']}")
    assert bytes(row(endpoint).sealed_secret) == b""
    services.forget()
    assert not WebhookEndpoint.objects.exists() and not WebhookDelivery.objects.exists()
    assert not delivery.finish(attempt, Outcome(200))
    assert send_all() == []


def test_a_dead_endpoint_delays_no_other(
    agent: Caster, subscribe: Subscribe, receiver: Receiver, receivers: Callable[[], Receiver]
) -> None:
    dead = receivers()
    dead.close()
    subscribe(to=dead)
    subscribe()
    agent.acquire("one")
    agent.acquire("two")
    send_until_done()
    assert receiver.positions == [1, 2]


def test_two_secrets_are_valid_until_the_overlap_is_over(
    agent: Caster, operator: Caster, subscribe: Subscribe, receiver: Receiver, clock: Any
) -> None:
    endpoint = subscribe()
    rotated = operator.post(f"webhooks/{endpoint['webhook_id']}/rotate", {"overlap_seconds": 60}).json()["data"]
    assert rotated["secret"] != endpoint["secret"] and rotated["old_secret_until"]
    agent.acquire("one")
    send_all()
    for secret in (endpoint["secret"], rotated["secret"]):
        assert Webhook(secret).verify(receiver.got[0].body, receiver.got[0].headers)
    assert len(receiver.got[0].headers["webhook-signature"].split(" ")) == 2
    clock.move(seconds=61)
    agent.acquire("two")
    send_all()
    assert Webhook(rotated["secret"]).verify(receiver.got[1].body, receiver.got[1].headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(endpoint["secret"]).verify(receiver.got[1].body, receiver.got[1].headers)


def test_without_an_overlap_the_old_secret_ends_at_once(
    agent: Caster, operator: Caster, subscribe: Subscribe, receiver: Receiver
) -> None:
    endpoint = subscribe()
    operator.post(f"webhooks/{endpoint['webhook_id']}/rotate", {"overlap_seconds": 0})
    agent.acquire()
    send_all()
    with pytest.raises(WebhookVerificationError):
        Webhook(endpoint["secret"]).verify(receiver.got[0].body, receiver.got[0].headers)


def test_a_secret_that_cannot_be_read_any_more_is_said(
    agent: Caster, operator: Caster, subscribe: Subscribe, receiver: Receiver, settings: Any, clock: Any
) -> None:
    endpoint = subscribe()
    assert endpoint["secret"].encode() not in bytes(row(endpoint).sealed_secret)
    agent.acquire()
    settings.SECRET_KEY = "another-key-for-tests-that-signs-nothing"
    send_all()
    assert receiver.got == []
    assert "LEASEHUB_SECRET_KEY" in log(operator, endpoint)[0]["error"]
    operator.post(f"webhooks/{endpoint['webhook_id']}/rotate", {"overlap_seconds": 0})
    clock.move(minutes=1)
    send_all()
    assert receiver.positions == [1]


def test_a_test_is_sent_once_whatever_the_state(operator: Caster, subscribe: Subscribe, receiver: Receiver) -> None:
    endpoint = subscribe(types=["task.dead"])
    operator.post(f"webhooks/{endpoint['webhook_id']}/pause")
    asked = operator.post(f"webhooks/{endpoint['webhook_id']}/test")
    assert asked.status_code == 202
    assert asked.json()["data"]["state"] == "pending"
    send_until_done()
    (message,) = receiver.got
    assert message.document["type"] == "webhook.test"
    assert message.document["data"]["webhook_id"] == endpoint["webhook_id"]
    assert Webhook(endpoint["secret"]).verify(message.body, message.headers)
    told = operator.get(asked.headers["Location"].removeprefix("/v1/")).json()["data"]
    assert (told["state"], told["response_status"], told["purpose"]) == ("delivered", 200, "test")
    receiver.behave = REFUSED
    operator.post(f"webhooks/{endpoint['webhook_id']}/test")
    send_until_done()
    assert log(operator, endpoint)[0]["state"] == "failed"
    assert shown(operator, endpoint)["state"] == "paused"
    again = operator.post(f"webhooks/{endpoint['webhook_id']}/deliveries/{told['delivery_id']}/replay")
    assert again.status_code == 400


def test_a_delivery_is_replayed_with_the_same_id(
    agent: Caster, operator: Caster, subscribe: Subscribe, receiver: Receiver
) -> None:
    endpoint = subscribe()
    agent.acquire("one")
    agent.acquire("two")
    send_until_done()
    first = log(operator, endpoint)[1]
    asked = operator.post(f"webhooks/{endpoint['webhook_id']}/deliveries/{first['delivery_id']}/replay")
    assert asked.status_code == 202
    assert asked.json()["data"]["purpose"] == "replay"
    send_until_done()
    assert receiver.positions == [1, 2, 1]
    assert (receiver.got[2].id, receiver.got[2].body) == (receiver.got[0].id, receiver.got[0].body)
    assert shown(operator, endpoint)["cursor"] == 2


def test_replaying_what_is_pending_tries_it_at_once(
    agent: Caster, operator: Caster, subscribe: Subscribe, receiver: Receiver
) -> None:
    endpoint = subscribe()
    receiver.behave = REFUSED
    agent.acquire()
    send_all()
    assert send_all() == []
    (entry,) = log(operator, endpoint)
    assert entry["next_attempt_at"] is not None
    asked = operator.post(f"webhooks/{endpoint['webhook_id']}/deliveries/{entry['delivery_id']}/replay")
    assert asked.json()["data"]["delivery_id"] == entry["delivery_id"]
    receiver.behave = status(200)
    send_until_done()
    assert receiver.positions == [1, 1]
    assert len(log(operator, endpoint)) == 1


def test_a_span_is_replayed_in_order_and_what_is_still_to_come_is_not_part_of_it(
    agent: Caster, operator: Caster, subscribe: Subscribe, receiver: Receiver
) -> None:
    endpoint = subscribe()
    for number in range(5):
        agent.acquire(f"r{number}")
    send_until_done()
    operator.post(f"webhooks/{endpoint['webhook_id']}/pause")
    agent.acquire("later")
    replay = f"webhooks/{endpoint['webhook_id']}/replay"
    assert operator.post(replay, {"after": 1, "before": 4}).json()["data"]["queued"] == 2
    assert operator.post(replay, {"after": 3}).json()["data"] == {
        "webhook_id": endpoint["webhook_id"],
        "queued": 2,
        "next": None,
    }
    receiver.got.clear()
    assert send_all() == []
    operator.post(f"webhooks/{endpoint['webhook_id']}/resume")
    send_until_done()
    assert receiver.positions == [2, 3, 4, 5, 6]


def test_a_replay_of_more_than_may_wait_says_where_to_go_on(
    agent: Caster, operator: Caster, subscribe: Subscribe, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "MOST_REPLAYS", 3)
    endpoint = subscribe()
    for number in range(5):
        agent.acquire(f"r{number}")
    send_until_done()
    replay = f"webhooks/{endpoint['webhook_id']}/replay"
    assert operator.post(replay, {"after": 0}).json()["data"]["next"] == 3
    full = operator.post(replay, {"after": 3})
    assert (full.status_code, full.json()["error"]["code"]) == (429, "QUOTA_EXCEEDED")
    assert operator.post(f"webhooks/{endpoint['webhook_id']}/test").status_code == 429
    receiver.got.clear()
    send_until_done()
    assert operator.post(replay, {"after": 3}).json()["data"]["queued"] == 2
    send_until_done()
    assert receiver.positions == [1, 2, 3, 4, 5]


def test_a_replay_looks_at_so_many_positions_and_says_where_to_go_on(
    agent: Caster, operator: Caster, subscribe: Subscribe, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = subscribe(types=["lease.released"])
    held = agent.acquire("one").json()["data"]
    for number in range(5):
        agent.acquire(f"r{number}")
    agent.delete(f"leases/{held['lease_id']}")
    send_until_done()
    monkeypatch.setattr(queries, "WINDOW", 4)
    replay = f"webhooks/{endpoint['webhook_id']}/replay"
    first = operator.post(replay, {"after": 0}).json()["data"]
    assert (first["queued"], first["next"]) == (0, 4)
    second = operator.post(replay, {"after": 4}).json()["data"]
    assert (second["queued"], second["next"]) == (1, None)


def test_a_delivery_whose_event_retention_has_moved_out_is_over(
    agent: Caster, operator: Caster, subscribe: Subscribe, receiver: Receiver, clock: Any
) -> None:
    endpoint = subscribe()
    receiver.behave = REFUSED
    agent.acquire("one")
    send_all()
    Event.objects.filter(position=1).delete()
    agent.acquire("two")
    receiver.behave = status(200)
    clock.move(seconds=10)
    send_until_done()
    assert [(told["state"], told["position"]) for told in log(operator, endpoint)] == [("delivered", 2), ("failed", 1)]
    assert "not kept" in log(operator, endpoint)[1]["error"]


def test_replays_keep_their_order_after_a_failure_and_share_the_pauses_of_their_endpoint(
    agent: Caster, operator: Caster, subscribe: Subscribe, receiver: Receiver, clock: Any
) -> None:
    endpoint = subscribe()
    for number in range(4):
        agent.acquire(f"r{number}")
    send_until_done()
    clock.freeze(clock.now())
    operator.post(f"webhooks/{endpoint['webhook_id']}/replay", {"after": 0})
    receiver.got.clear()
    receiver.behave = status(503, "Retry-After: 60")
    assert len(send_all()) == 1 and send_all() == []
    clock.move(seconds=59)
    assert send_all() == []
    clock.move(seconds=14)
    assert len(send_all()) == 1
    assert receiver.positions == [1, 1]
    view, entry = shown(operator, endpoint), log(operator, endpoint, "?limit=1")[0]
    assert (view["failures"], entry["next_attempt_at"]) == (2, view["next_attempt_at"])
    agent.acquire("news")
    assert send_all() == []
    receiver.behave = status(200)
    clock.move(seconds=72)
    send_until_done()
    assert receiver.positions == [1, 1, 5, 1, 2, 3, 4]
    assert shown(operator, endpoint)["failures"] == 0


def test_a_dead_receiver_is_not_hammered_by_replays(
    agent: Caster, operator: Caster, subscribe: Subscribe, receiver: Receiver, clock: Any
) -> None:
    endpoint = subscribe()
    for number in range(10):
        agent.acquire(f"r{number}")
    send_until_done()
    clock.freeze(clock.now())
    operator.post(f"webhooks/{endpoint['webhook_id']}/replay", {"after": 0})
    receiver.behave = REFUSED
    receiver.got.clear()
    for _ in range(24 * 60):
        clock.move(minutes=1)
        send_all()
    assert 9 <= len(receiver.got) <= 12


def test_a_replay_that_fails_lets_the_feed_go_first_and_ends(
    agent: Caster, operator: Caster, subscribe: Subscribe, receiver: Receiver, clock: Any
) -> None:
    endpoint = subscribe()
    agent.acquire("one")
    send_until_done()
    operator.post(f"webhooks/{endpoint['webhook_id']}/replay", {"after": 0})
    receiver.behave = REFUSED
    send_all()
    agent.acquire("two")
    receiver.behave = status(200)
    clock.move(seconds=7)
    send_all()
    assert receiver.positions == [1, 1, 2]
    receiver.behave = REFUSED
    for _ in range(10):
        clock.move(hours=1)
        send_all()
    replayed = next(entry for entry in log(operator, endpoint) if entry["purpose"] == "replay")
    assert (replayed["state"], replayed["attempts"]) == ("failed", delivery.REPLAY_TRIES)
    assert shown(operator, endpoint)["state"] == "active"


def test_events_that_were_moved_out_before_they_were_sent_are_not_passed_over_in_silence(
    agent: Caster, operator: Caster, subscribe: Subscribe, receiver: Receiver, organization: Any, clock: Any
) -> None:
    endpoint = subscribe()
    path = f"webhooks/{endpoint['webhook_id']}"
    receiver.behave = REFUSED
    for number in range(5):
        agent.acquire(f"r{number}")
    send_all()
    operator.post(f"{path}/pause")
    Event.objects.filter(organization=organization, position__lte=3).delete()
    Feed.objects.filter(pk=organization.pk).update(pruned_through=3)
    receiver.behave = status(200)
    receiver.got.clear()
    operator.post(f"{path}/resume")
    send_until_done()
    assert receiver.positions == [4, 5]
    newest, _, missed, begun = log(operator, endpoint)
    assert (newest["position"], shown(operator, endpoint)["cursor"]) == (5, 5)
    assert (begun["position"], begun["state"]) == (1, "failed")
    assert (missed["type"], missed["state"], missed["position"]) == ("webhook.missed", "failed", None)
    assert missed["error"] == "events 1 to 3 were moved out before they were sent"
    assert operator.post(f"{path}/deliveries/{missed['delivery_id']}/replay").status_code == 400
    refused = error_of(operator.post(f"{path}/replay", {"after": 2}))
    assert (refused["status"], refused["code"], refused["oldest"]) == (410, "CURSOR_EXPIRED", 4)
    assert operator.post(f"{path}/replay", {"after": 3}).json()["data"]["queued"] == 2


def test_a_replay_of_an_event_that_is_not_kept_says_so(
    agent: Caster, operator: Caster, subscribe: Subscribe, receiver: Receiver
) -> None:
    endpoint = subscribe()
    agent.acquire()
    send_until_done()
    operator.post(f"webhooks/{endpoint['webhook_id']}/replay", {"after": 0})
    Event.objects.all().delete()
    send_until_done()
    assert log(operator, endpoint)[0]["error"] == "the event is not kept any more"
    assert len(receiver.got) == 1


def test_when_the_receiver_is_well_again_what_waits_is_tried_at_once(
    agent: Caster, operator: Caster, subscribe: Subscribe, receiver: Receiver, clock: Any
) -> None:
    endpoint = subscribe()
    receiver.behave = REFUSED
    agent.acquire()
    for _ in range(6):
        send_all()
        clock.move(hours=1)
    receiver.behave = status(200)
    operator.post(f"webhooks/{endpoint['webhook_id']}/test")
    send_until_done()
    assert receiver.positions[-2:] == [None, 1]


def test_nothing_of_another_organization_is_delivered(
    agent: Caster, stranger: Caster, subscribe: Subscribe, receiver: Receiver, receivers: Callable[[], Receiver]
) -> None:
    theirs = receivers()
    subscribe()
    subscribe(to=theirs, by=stranger)
    agent.acquire("ours")
    stranger.acquire("theirs")
    send_until_done()
    assert [message.document["data"]["resource_id"] for message in receiver.got] == ["ours"]
    assert [message.document["data"]["resource_id"] for message in theirs.got] == ["theirs"]


def test_it_sees_what_its_maker_would_see_in_the_feed(
    agent: Caster, teammate: Caster, operator: Caster, subscribe: Subscribe, receiver: Receiver
) -> None:
    """A handoff between others is told of as the feed tells the maker."""
    subscribe()
    sent(agent, teammate, message="between the two")
    send_until_done()
    assert receiver.got
    feed = operator.get("events").json()["data"]["events"]
    assert [message.document["data"] for message in receiver.got] == feed


def test_a_url_that_is_not_allowed_any_more_is_not_called(
    agent: Caster, operator: Caster, subscribe: Subscribe, receiver: Receiver, settings: Any
) -> None:
    endpoint = subscribe()
    settings.LEASEHUB_WEBHOOK_ALLOW = (frozenset(), ())
    agent.acquire()
    send_all()
    assert receiver.connections == 0
    assert "LEASEHUB_WEBHOOK_ALLOW" in log(operator, endpoint)[0]["error"]


def test_the_backlog_counts_what_is_to_be_sent(
    agent: Caster, operator: Caster, subscribe: Subscribe, receiver: Receiver, clock: Any
) -> None:
    assert queries.webhook_backlog() == (0, 0.0)
    endpoint = subscribe()
    paused = subscribe()
    operator.post(f"webhooks/{paused['webhook_id']}/pause")
    agent.acquire("one")
    agent.acquire("two")
    operator.get("events")
    clock.move(seconds=30)
    count, age = queries.webhook_backlog()
    assert count == 2 and 29 < age < 60
    send_until_done()
    operator.post(f"webhooks/{endpoint['webhook_id']}/test")
    assert queries.webhook_backlog()[0] == 1
    send_until_done()
    assert queries.webhook_backlog() == (0, 0.0)


def test_counting_the_backlog_asks_nothing_of_endpoints_that_have_none(
    agent: Caster, subscribe: Subscribe, django_assert_num_queries: Any
) -> None:
    for _ in range(5):
        subscribe()
    with django_assert_num_queries(1):
        assert queries.webhook_backlog() == (0, 0.0)


def test_old_deliveries_are_forgotten_and_pending_ones_are_not(
    agent: Caster, operator: Caster, subscribe: Subscribe, receiver: Receiver, clock: Any
) -> None:
    subscribe()
    agent.acquire("one")
    send_until_done()
    receiver.behave = REFUSED
    agent.acquire("two")
    send_all()
    assert services.forget() == 0
    clock.move(days=31)
    assert services.forget() == 1
    assert list(WebhookDelivery.objects.values_list("state", flat=True)) == ["pending"]


def test_an_attempt_that_cannot_be_made_reaches_nobody() -> None:
    attempt = delivery.Attempt(1, uuid.uuid4(), 1, "http://127.0.0.1:1/", {}, json.dumps({}).encode(), "no secret")
    assert courier.tried(attempt).error == "no secret"
