"""Writes of webhook endpoints, for operators. What delivers has its own (leasehub.events.webhooks.delivery)."""

import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction

from leasehub.db import clock
from leasehub.db.locks import lock_rows
from leasehub.errors import NotFound, QuotaExceeded, ValidationError
from leasehub.events import journal
from leasehub.events.errors import CursorExpired
from leasehub.events.queries import extent
from leasehub.events.types import TYPES
from leasehub.events.webhooks import addresses, queries, signing
from leasehub.events.webhooks.models import WebhookDelivery, WebhookEndpoint
from leasehub.identity import sealing
from leasehub.identity.authentication import Caller
from leasehub.identity.models import Organization
from leasehub.identity.rings import OBSERVE

State = WebhookEndpoint.State
Purpose = WebhookDelivery.Purpose

MOST_ENDPOINTS = 50
MOST_REPLAYS = 1000
ROTATION_OVERLAP_SECONDS = 24 * 3600
LONGEST_OVERLAP_SECONDS = 7 * 24 * 3600
#: The type of a test's message: no event of the feed has it.
TEST_TYPE = "webhook.test"
#: The type of the log's entry for events that were moved out before they were sent: no message has it.
MISSED_TYPE = "webhook.missed"
FORGET_BATCH = 1000


@transaction.atomic
def create(
    *, caller: Caller, url: str, types: Sequence[str] = (), description: str = ""
) -> tuple[WebhookEndpoint, str]:
    """An endpoint that is told of what happens from now on; with its secret, which is shown this once.

    Raises MissingRing without RING-1, since it is told of what RING-1 sees; ValidationError for a URL or types that
    cannot be, QuotaExceeded.
    """
    caller.require(OBSERVE)
    addresses.target(url)
    if unknown := sorted(set(types) - set(TYPES)):
        raise ValidationError(f"Unknown event types: {', '.join(unknown)}.", types=f"unknown: {', '.join(unknown)}")
    lock_rows(Organization.objects.filter(pk=caller.organization)).get()
    if queries.endpoints(organization=caller.organization).count() >= MOST_ENDPOINTS:
        raise QuotaExceeded(f"An organization has at most {MOST_ENDPOINTS} webhook endpoints.")
    now, secret = clock.now(), signing.make_secret()
    made = WebhookEndpoint.objects.create(
        organization_id=caller.organization,
        principal_id=caller.principal,
        key_id=caller.key,
        url=url,
        types=[type for type in TYPES if type in types],
        description=description,
        sealed_secret=sealing.seal(secret.encode()),
        # What has happened but has no number yet is numbered first: it is not told of.
        cursor=extent(organization=caller.organization).tail,
        next_attempt_at=now,
        created_at=now,
    )
    return made, secret


@transaction.atomic
def delete(*, organization: int, webhook_id: str) -> WebhookEndpoint:
    """From now on nothing is sent, but for what is under way. Raises NotFound, the second time as well."""
    row = _locked(organization, webhook_id)
    row.deleted_at = clock.now()
    row.sealed_secret, row.sealed_old_secret = b"", None
    row.save(update_fields=["deleted_at", "sealed_secret", "sealed_old_secret"])
    return row


@transaction.atomic
def pause(*, organization: int, webhook_id: str) -> WebhookEndpoint:
    """Nothing is sent until it is resumed, and nothing lost. A disabled one stays so. Raises NotFound."""
    row = _locked(organization, webhook_id)
    if row.state == State.ACTIVE:
        row.state = State.PAUSED
        row.save(update_fields=["state"])
    return row


@transaction.atomic
def resume(*, organization: int, webhook_id: str) -> WebhookEndpoint:
    """Goes on from where it was, at once, also after it was disabled. Raises NotFound, ValidationError."""
    row = _locked(organization, webhook_id)
    if wrong := queries.orphaned(row, clock.now()):
        raise ValidationError(f"This endpoint cannot be resumed: {wrong}.", webhook_id=wrong)
    row.state, row.reason, row.disabled_at = State.ACTIVE, "", None
    row.failures, row.failing_since, row.next_attempt_at = 0, None, clock.now()
    row.save(update_fields=["state", "reason", "disabled_at", "failures", "failing_since", "next_attempt_at"])
    return row


@transaction.atomic
def rotate(
    *, organization: int, webhook_id: str, overlap_seconds: int = ROTATION_OVERLAP_SECONDS
) -> tuple[WebhookEndpoint, str]:
    """A new secret, shown this once; until the overlap is over messages are signed with the old one too.

    Raises NotFound.
    """
    row = _locked(organization, webhook_id)
    secret = signing.make_secret()
    row.sealed_old_secret = row.sealed_secret if overlap_seconds else None
    row.old_secret_until = clock.now() + timedelta(seconds=overlap_seconds) if overlap_seconds else None
    row.sealed_secret = sealing.seal(secret.encode())
    row.save(update_fields=["sealed_secret", "sealed_old_secret", "old_secret_until"])
    return row, secret


@transaction.atomic
def test(*, organization: int, webhook_id: str) -> WebhookDelivery:
    """Has one message sent that tells of nothing, tried once, whatever the endpoint's state. Raises NotFound."""
    row = _locked(organization, webhook_id)
    _check_quota(row, 1)
    now = clock.now()
    return WebhookDelivery.objects.create(
        endpoint=row,
        purpose=Purpose.TEST,
        event_id=uuid.uuid4(),
        type=TEST_TYPE,
        created_at=now,
        next_attempt_at=now,
    )


@transaction.atomic
def replay_delivery(*, organization: int, webhook_id: str, delivery_id: str) -> WebhookDelivery:
    """Has a message sent again, with the same webhook-id; one that is still pending is tried at once.

    Raises NotFound, QuotaExceeded, ValidationError for a test and for what was moved out.
    """
    row = _locked(organization, webhook_id)
    meant = queries.delivery(endpoint=row, delivery_id=delivery_id)
    now = clock.now()
    if meant.purpose == Purpose.TEST:
        raise ValidationError("A test is not replayed: send another one.", delivery_id="is a test")
    if meant.type == MISSED_TYPE:
        raise ValidationError("What was moved out is not replayed: it is not kept.", delivery_id="is of no event")
    if meant.state == WebhookDelivery.State.PENDING:
        row.next_attempt_at = now
        row.save(update_fields=["next_attempt_at"])
        return meant
    _check_quota(row, 1)
    return WebhookDelivery.objects.create(
        endpoint=row,
        purpose=Purpose.REPLAY,
        event_id=meant.event_id,
        position=meant.position,
        type=meant.type,
        created_at=now,
        next_attempt_at=now,
    )


def replay(
    *, organization: int, webhook_id: str, after: int, before: int | None = None
) -> tuple[WebhookEndpoint, int, int | None]:
    """Has the events between two positions sent again that it was told of, or would have been, in order.

    Answers how many, and the position to go on after when there were more than may wait at once, or more positions
    than one call looks at. What the feed is still to bring is not among them.

    Raises NotFound, QuotaExceeded, CursorExpired when some of them are moved out.
    """
    # Before any lock: where few events are of its types the look is long.
    row = queries.endpoint(organization=organization, webhook_id=webhook_id)
    last = row.cursor if before is None else min(before - 1, row.cursor)
    end = min(last, after + queries.WINDOW)
    span = queries.concerning(row).filter(position__gt=after, position__lte=end).order_by("position")
    found = list(span.values_list("event_id", "position", "type")[: MOST_REPLAYS + 1])
    # After they were read: what is moved out in between is told as well.
    if after < (known := extent(organization=organization)).start:
        raise CursorExpired(known)
    with transaction.atomic():
        row = _locked(organization, webhook_id)
        room = _check_quota(row, 1)
        now = clock.now()
        WebhookDelivery.objects.bulk_create(
            WebhookDelivery(
                endpoint=row,
                purpose=Purpose.REPLAY,
                event_id=event_id,
                position=position,
                type=type,
                created_at=now,
                next_attempt_at=now,
            )
            for event_id, position, type in found[:room]
        )
    if len(found) > room:
        return row, room, found[room - 1][1]
    return row, len(found), end if end < last else None


def disable(row: WebhookEndpoint, *, at: datetime, reason: str) -> None:
    """Stops an endpoint that does not work, in the caller's transaction, under its lock; the feed tells of it."""
    row.state, row.reason, row.disabled_at = State.DISABLED, reason, at
    row.save(update_fields=["state", "reason", "disabled_at"])
    journal.record(
        "webhook.disabled",
        at=at,
        organization=row.organization_id,
        data={
            "webhook_id": row.webhook_id,
            "reason": reason,
            "failing_since": None if row.failing_since is None else clock.iso(row.failing_since),
            "cursor": row.cursor,
        },
    )


def forget(*, batches: int = 50) -> int:
    """Deletes deliveries that were over LEASEHUB_DELIVERY_DAYS ago, and deleted endpoints with theirs. How many."""
    old = clock.now() - timedelta(days=settings.LEASEHUB_DELIVERY_DAYS)
    logged = WebhookDelivery.objects.filter(created_at__lt=old).exclude(state="pending").order_by("created_at")
    total = 0
    gone = WebhookEndpoint.objects.filter(deleted_at__isnull=False)
    for rows in (logged, *(WebhookDelivery.objects.filter(endpoint=row).order_by("pk") for row in gone)):
        for _ in range(batches):
            batch = list(rows.values_list("pk", flat=True)[:FORGET_BATCH])
            total += WebhookDelivery.objects.filter(pk__in=batch).delete()[0]
            if len(batch) < FORGET_BATCH:
                break
    # What is under way will find nothing to write its end to.
    gone.filter(deliveries__isnull=True).delete()
    return total


def _locked(organization: int, webhook_id: str) -> WebhookEndpoint:
    meant = queries.endpoint(organization=organization, webhook_id=webhook_id)
    rows = WebhookEndpoint.objects.filter(pk=meant.pk, deleted_at=None).select_related("principal")
    row = lock_rows(rows).first()
    if row is None:
        raise NotFound
    return row


def _check_quota(row: WebhookEndpoint, wanted: int) -> int:
    """How many more messages may wait beside the feed. Raises QuotaExceeded."""
    waiting = WebhookDelivery.objects.filter(endpoint=row, state="pending").exclude(purpose=Purpose.FEED).count()
    if waiting + wanted > MOST_REPLAYS:
        raise QuotaExceeded(f"At most {MOST_REPLAYS} replays of an endpoint wait at once: wait for those.")
    return MOST_REPLAYS - waiting
