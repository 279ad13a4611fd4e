"""What a worker does to the rows: takes an endpoint's next message, and writes down how sending it went.

The message is sent between the two, outside of any transaction. An endpoint has one claim, so one message is under
way at a time, and in the feed's order: the cursor moves on when the message was taken. A worker that is killed
leaves a claim that runs out; the next one sends the same message again, with the same webhook-id.
"""

import json
import random
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from cryptography.fernet import InvalidToken
from django.db import transaction

from leasehub.db import clock
from leasehub.db.locks import lock_rows
from leasehub.events import feed
from leasehub.events.models import Event
from leasehub.events.rendering import event_view
from leasehub.events.webhooks import queries, services, signing
from leasehub.events.webhooks.models import WebhookDelivery, WebhookEndpoint
from leasehub.events.webhooks.sending import ATTEMPT_SECONDS, Outcome
from leasehub.identity import sealing

State = WebhookEndpoint.State
Purpose = WebhookDelivery.Purpose

#: Longer than any attempt: whoever has not reported by then was killed.
CLAIM = timedelta(seconds=3 * ATTEMPT_SECONDS)
#: The pauses after the first, second, … failure in a row, in seconds; then the last one, up to 20 % longer each.
PAUSES = (5, 30, 120, 300, 900, 1800, 3600, 7200, 18_000, 36_000)
JITTER = 0.2
DISABLED_AFTER = timedelta(days=3)
REPLAY_TRIES = 5
GONE = 410
NOT_KEPT = "the event is not kept any more"
#: So many events of other types, or for so long, are passed over before the cursor says so.
SKIPPED_UNWRITTEN = 1000
SKIPPED_UNWRITTEN_FOR = timedelta(seconds=10)
MOST_DUE = 2000


@dataclass(frozen=True, slots=True)
class Attempt:
    """One message that this worker, and nobody else, is to send now."""

    endpoint: int
    claim: uuid.UUID
    delivery: int
    url: str
    headers: Mapping[str, str]
    body: bytes
    #: Why it cannot be sent at all.
    obstacle: str = ""


@dataclass(frozen=True, slots=True)
class Due:
    endpoint: int
    organization: int
    #: It failed, or was slow, when it was tried last.
    is_hindering: bool


def due() -> list[Due]:
    """The endpoints that have something to send. What is new in their organizations' feeds is numbered first."""
    at = clock.now()
    served = WebhookEndpoint.objects.filter(deleted_at=None, state=State.ACTIVE)
    for organization in feed.with_news(among=list(served.values_list("organization", flat=True).distinct())):
        feed.stamp(organization=organization)
    found = queries.due(at).values_list("pk", "organization_id", "failures")
    return [Due(pk, organization, failures > 0) for pk, organization, failures in found[:MOST_DUE]]


def take(*, endpoint: int) -> Attempt | None:
    """Claims the endpoint and its next message; None when there is none, or another worker has it."""
    row = WebhookEndpoint.objects.filter(pk=endpoint, deleted_at=None).select_related("principal").first()
    if row is None:
        return None
    at = clock.now()
    if row.state == State.ACTIVE and (reason := queries.orphaned(row, at)):
        _disable_orphan(endpoint, reason)
        return None
    event: Event | None = None
    asked = _asked_for(row, at)
    if asked is None or asked.purpose == Purpose.REPLAY and asked.attempts:
        # A replay that failed lets the feed go first, which one message must not stop.
        event = _next_event(row, at)
        asked = asked if event is None else None
        if asked is None and event is None:
            return None
    with transaction.atomic():
        claimed = _claimed(row, asked, event)
    if claimed is None:
        return None
    delivery, claim, at = claimed
    return _attempt(row, delivery, claim, event or _event_of(row, delivery), at)


@transaction.atomic
def _disable_orphan(endpoint: int, reason: str) -> None:
    row = lock_rows(WebhookEndpoint.objects.filter(pk=endpoint, state=State.ACTIVE, deleted_at=None)).first()
    if row is not None:
        services.disable(row, at=clock.now(), reason=reason)


def _asked_for(row: WebhookEndpoint, at: datetime) -> WebhookDelivery | None:
    """The oldest test, or replay when the endpoint is due; of one that is not active tests alone."""
    waiting = WebhookDelivery.objects.filter(endpoint=row, state="pending")
    purposes = [Purpose.TEST, Purpose.REPLAY] if _is_due(row, at) else [Purpose.TEST]
    return waiting.filter(purpose__in=purposes).order_by("pk").first()


def _is_due(row: WebhookEndpoint, at: datetime) -> bool:
    return row.state == State.ACTIVE and row.next_attempt_at <= at


def _next_event(row: WebhookEndpoint, at: datetime) -> Event | None:
    """The first event after the cursor that concerns it, if it is due; the cursor passes over what does not."""
    if not _is_due(row, at) or row.is_claimed(at):
        return None
    last = queries.last_position(row.organization_id)
    end = min(last, row.cursor + queries.WINDOW)
    ahead = queries.concerning(row).filter(position__gt=row.cursor, position__lte=end)
    event = ahead.order_by("position").first()
    # After the event was looked for: what is moved out in between is not passed over in silence.
    if row.cursor < (gone := queries.moved_out_through(row.organization_id)):
        if not _miss(row, gone):
            return None
        row.cursor = gone
        return _next_event(row, at)
    # Where most events are of other types, not a write for each look.
    if event is None and (end - row.cursor >= SKIPPED_UNWRITTEN or at - row.next_attempt_at >= SKIPPED_UNWRITTEN_FOR):
        unchanged = WebhookEndpoint.objects.filter(pk=row.pk, cursor=row.cursor, claim=row.claim)
        unchanged.update(cursor=end, next_attempt_at=at)
    return event


def _claimed(
    row: WebhookEndpoint, asked: WebhookDelivery | None, event: Event | None
) -> tuple[WebhookDelivery, uuid.UUID, datetime] | None:
    """The claim, if all that was seen without the lock is still so."""
    unchanged = WebhookEndpoint.objects.filter(
        pk=row.pk, deleted_at=None, state=row.state, cursor=row.cursor, claim=row.claim
    )
    locked = lock_rows(unchanged, skip_locked=True).first()
    at = clock.now()
    if locked is None or locked.is_claimed(at):
        return None
    if (asked is None or asked.purpose == Purpose.REPLAY) and not _is_due(locked, at):
        return None
    if asked is None:
        assert event is not None
        delivery = _of_feed(row, event, at)
    else:
        found = WebhookDelivery.objects.filter(pk=asked.pk, state="pending").first()
        if found is None:
            return None
        delivery = found
    delivery.attempts += 1
    delivery.attempted_at = at
    delivery.save(update_fields=["attempts", "attempted_at"])
    locked.claim, locked.claimed_until = uuid.uuid4(), at + CLAIM
    locked.save(update_fields=["claim", "claimed_until"])
    return delivery, locked.claim, at


@transaction.atomic
def _miss(row: WebhookEndpoint, through: int) -> bool:
    """Moves the cursor over events that are not on file any more, and says so in the log; False: it has changed."""
    unchanged = WebhookEndpoint.objects.filter(
        pk=row.pk, deleted_at=None, state=row.state, cursor=row.cursor, claim=row.claim
    )
    locked = lock_rows(unchanged, skip_locked=True).first()
    at = clock.now()
    if locked is None or locked.is_claimed(at):
        return False
    begun = WebhookDelivery.objects.filter(endpoint=row, state="pending", purpose=Purpose.FEED)
    begun.filter(position__lte=through).update(state=WebhookDelivery.State.FAILED, ended_at=at, error=NOT_KEPT)
    WebhookDelivery.objects.create(
        endpoint=row,
        purpose=Purpose.FEED,
        event_id=uuid.uuid4(),
        type=services.MISSED_TYPE,
        state=WebhookDelivery.State.FAILED,
        error=f"events {row.cursor + 1} to {through} were moved out before they were sent",
        created_at=at,
        ended_at=at,
    )
    locked.cursor = through
    locked.save(update_fields=["cursor"])
    return True


def _of_feed(row: WebhookEndpoint, event: Event, at: datetime) -> WebhookDelivery:
    # The row of the event after the cursor, when there is one, is pending: no look into the whole log.
    begun = WebhookDelivery.objects.filter(endpoint=row, state="pending", purpose=Purpose.FEED).first()
    if begun is not None and begun.position == event.position:
        return begun
    if begun is not None:
        # Retention has moved its event out, so it will not be tried again.
        begun.state, begun.ended_at, begun.error = WebhookDelivery.State.FAILED, at, NOT_KEPT
        begun.save(update_fields=["state", "ended_at", "error"])
    return WebhookDelivery.objects.create(
        endpoint=row,
        purpose=Purpose.FEED,
        event_id=event.event_id,
        position=event.position,
        type=event.type,
        created_at=at,
    )


def _event_of(row: WebhookEndpoint, delivery: WebhookDelivery) -> Event | None:
    if delivery.position is None:
        return None
    return queries.concerning(row).filter(position=delivery.position).first()


def _attempt(
    row: WebhookEndpoint, delivery: WebhookDelivery, claim: uuid.UUID, event: Event | None, at: datetime
) -> Attempt:
    obstacle, headers, body = "", {}, b""
    if event is None and delivery.purpose != Purpose.TEST:
        obstacle = NOT_KEPT
    else:
        body = _body(row, delivery, event)
        try:
            headers = _headers(row, delivery.message_id, body, at)
        except InvalidToken:
            obstacle = "LEASEHUB_SECRET_KEY is another one than the endpoint's secret was stored with: rotate it"
    return Attempt(row.pk, claim, delivery.pk, row.url, headers, body, obstacle)


def _body(row: WebhookEndpoint, delivery: WebhookDelivery, event: Event | None) -> bytes:
    data: dict[str, Any]
    if event is None:
        timestamp = clock.iso(delivery.created_at)
        data = {"event_id": delivery.message_id, "position": None, "at": timestamp, "webhook_id": row.webhook_id}
    else:
        data, timestamp = event_view(event), clock.iso(event.at)
    message = {"type": delivery.type, "timestamp": timestamp, "data": data}
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()


def _headers(row: WebhookEndpoint, message_id: str, body: bytes, at: datetime) -> dict[str, str]:
    sealed = [row.sealed_secret]
    if row.sealed_old_secret is not None and row.old_secret_until is not None and row.old_secret_until > at:
        sealed.append(row.sealed_old_secret)
    timestamp = int(at.timestamp())
    secrets = [sealing.unseal(bytes(secret)).decode() for secret in sealed]
    return {
        "Content-Type": "application/json",
        "User-Agent": "LeaseHub",
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(
            signing.signature(secret, message_id=message_id, timestamp=timestamp, body=body) for secret in secrets
        ),
    }


@transaction.atomic
def finish(attempt: Attempt, outcome: Outcome) -> bool:
    """Writes down how the attempt went; whether its worker still had the say, and the endpoint is to go on."""
    claimed = WebhookEndpoint.objects.filter(pk=attempt.endpoint, claim=attempt.claim, deleted_at=None)
    row = lock_rows(claimed).first()
    if row is None:
        return False
    delivery = WebhookDelivery.objects.get(pk=attempt.delivery)
    at = clock.now()
    row.claim = row.claimed_until = None
    delivery.response_status, delivery.error, delivery.took_ms = outcome.status, outcome.error[:200], outcome.took_ms
    row.last_status = outcome.status
    if outcome.is_success:
        _succeeded(row, delivery, at)
    else:
        _failed(row, delivery, outcome, at, is_hopeless=bool(attempt.obstacle))
    row.save()
    delivery.save()
    if not outcome.is_success:
        _give_up(row, outcome, at)
    return row.state == State.ACTIVE


def _succeeded(row: WebhookEndpoint, delivery: WebhookDelivery, at: datetime) -> None:
    delivery.state, delivery.ended_at, delivery.next_attempt_at = WebhookDelivery.State.DELIVERED, at, None
    # The receiver is well: whatever waits need wait no longer.
    row.next_attempt_at, row.last_delivered_at = at, at
    if delivery.purpose == Purpose.TEST:
        return
    row.failures, row.failing_since = 0, None
    if delivery.purpose == Purpose.FEED:
        assert delivery.position is not None
        row.cursor = delivery.position


def _failed(
    row: WebhookEndpoint, delivery: WebhookDelivery, outcome: Outcome, at: datetime, *, is_hopeless: bool
) -> None:
    if delivery.purpose == Purpose.FEED or delivery.purpose == Purpose.REPLAY and not is_hopeless:
        # Replays are told to the same receiver: whatever waits for it waits as long.
        row.failures += 1
        row.failing_since = row.failing_since or at
        # The last try comes when the time is up, not hours later.
        row.next_attempt_at = min(at + pause(row.failures, outcome), max(at, row.failing_since + DISABLED_AFTER))
    tries = 1 if delivery.purpose == Purpose.TEST or is_hopeless else REPLAY_TRIES
    if delivery.purpose != Purpose.FEED and delivery.attempts >= tries:
        delivery.state, delivery.ended_at, delivery.next_attempt_at = WebhookDelivery.State.FAILED, at, None


def _give_up(row: WebhookEndpoint, outcome: Outcome, at: datetime) -> None:
    if row.state != State.ACTIVE:
        return
    if outcome.status == GONE:
        services.disable(row, at=at, reason="the receiver answered 410 Gone")
    elif row.failing_since is not None and at - row.failing_since >= DISABLED_AFTER:
        services.disable(row, at=at, reason=f"it failed for {DISABLED_AFTER.days} days, last: {outcome.error}"[:200])


def pause(failures: int, outcome: Outcome) -> timedelta:
    """How long to wait after so many failures in a row: no less than the receiver asks for, up to ten hours of that."""
    later = 1 + JITTER * random.random()
    seconds = PAUSES[min(failures, len(PAUSES)) - 1] * later
    asked = min(outcome.retry_after_seconds or 0.0, PAUSES[-1]) * later
    return timedelta(milliseconds=round(1000 * max(seconds, asked)))
