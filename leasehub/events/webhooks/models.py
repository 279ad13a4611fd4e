"""Who is told of events by HTTP, and what was told."""

import uuid
from datetime import datetime
from typing import ClassVar

from django.db import models
from django.db.models import Q

from leasehub.identity.models import ApiKey, Organization, Principal


class WebhookEndpoint(models.Model):
    """An address that an organization's events are posted to, in the feed's order, one at a time.

    States: active; paused (by an operator); disabled (by the server, with a reason, after days of failure, a 410, or
    when its principal is retired or its key has ended). ``resume`` makes it active from both. A deleted one is
    gone for everybody, and waits for the sweep to delete its log.

    ``cursor`` is the position of the last event that was delivered or did not concern it, so pausing loses nothing.
    Whoever delivers has the claim: without it nobody changes the cursor. A claim whose deadline is past, because its
    worker was killed, is free to be taken, and its delivery is made again.
    """

    class State(models.TextChoices):
        ACTIVE = "active"
        PAUSED = "paused"
        DISABLED = "disabled"

    public_id = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="+")
    #: Who made it, and with which key. When it is retired, or the key and all that it was rotated to have ended,
    #: nothing more is sent.
    principal = models.ForeignKey(Principal, on_delete=models.PROTECT, db_index=False, related_name="+")
    key = models.ForeignKey(ApiKey, on_delete=models.PROTECT, db_index=False, related_name="+")
    url = models.CharField(max_length=2000)
    description = models.CharField(max_length=200, blank=True)
    #: Event types; empty: all.
    types = models.JSONField(default=list)
    #: Encrypted (leasehub.identity.sealing).
    sealed_secret = models.BinaryField()
    sealed_old_secret = models.BinaryField(null=True)
    old_secret_until = models.DateTimeField(null=True)
    state = models.CharField(max_length=8, choices=State, default=State.ACTIVE)
    #: Why it was disabled.
    reason = models.CharField(max_length=200, blank=True)
    disabled_at = models.DateTimeField(null=True)
    cursor = models.BigIntegerField(default=0)
    #: Attempts in a row that failed, of the event after the cursor or of replays, and since when.
    failures = models.PositiveIntegerField(default=0)
    failing_since = models.DateTimeField(null=True)
    next_attempt_at = models.DateTimeField()
    claim = models.UUIDField(null=True, editable=False)
    claimed_until = models.DateTimeField(null=True, editable=False)
    #: Of the last attempt; null: there was no answer.
    last_status = models.PositiveSmallIntegerField(null=True)
    last_delivered_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField()
    deleted_at = models.DateTimeField(null=True)

    class Meta:
        default_permissions = ("view",)
        permissions: ClassVar = [("operate_webhookendpoint", "Can pause, resume, test and delete webhook endpoints")]
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(state__in=["active", "paused", "disabled"]), name="webhook_state_is_known"
            ),
            # A claim without a deadline would stop its endpoint for ever when its worker is killed.
            models.CheckConstraint(
                condition=Q(claim__isnull=True, claimed_until__isnull=True)
                | Q(claim__isnull=False, claimed_until__isnull=False),
                name="webhook_claim_has_a_deadline",
            ),
        ]

    def __str__(self) -> str:
        return self.webhook_id

    @property
    def webhook_id(self) -> str:
        return f"whk_{self.public_id.hex}"

    def is_claimed(self, at: datetime) -> bool:
        return self.claimed_until is not None and self.claimed_until > at


class WebhookDelivery(models.Model):
    """One message to one endpoint, made when it is first tried, or when a replay or a test is asked for.

    States: pending (being tried, or waiting for the next try); delivered; failed (will not be tried again). Only the
    endpoint's claim changes them.
    """

    class Purpose(models.TextChoices):
        FEED = "feed"
        REPLAY = "replay"
        TEST = "test"

    class State(models.TextChoices):
        PENDING = "pending"
        DELIVERED = "delivered"
        FAILED = "failed"

    public_id = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    endpoint = models.ForeignKey(WebhookEndpoint, on_delete=models.PROTECT, db_index=False, related_name="deliveries")
    purpose = models.CharField(max_length=6, choices=Purpose)
    #: The webhook-id, the same for every try and every replay of an event.
    event_id = models.UUIDField()
    #: The event's place in the feed; a test has none.
    position = models.BigIntegerField(null=True)
    type = models.CharField(max_length=40)
    state = models.CharField(max_length=9, choices=State, default=State.PENDING)
    attempts = models.PositiveIntegerField(default=0)
    response_status = models.PositiveSmallIntegerField(null=True)
    #: Why the last try failed, in the server's own words: nothing of the receiver's answer.
    error = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField()
    attempted_at = models.DateTimeField(null=True)
    #: Of a test; what the feed brings, and replays, are due when their endpoint is.
    next_attempt_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    took_ms = models.PositiveIntegerField(null=True)

    class Meta:
        verbose_name_plural = "webhook deliveries"
        default_permissions = ("view",)
        permissions: ClassVar = [("replay_webhookdelivery", "Can replay webhook deliveries")]
        constraints: ClassVar = [
            # Two rows for one event would be two messages where the receiver is promised one.
            models.UniqueConstraint(
                fields=["endpoint", "position"], condition=Q(purpose="feed"), name="webhook_delivers_an_event_once"
            ),
            models.CheckConstraint(
                condition=Q(state="pending", ended_at__isnull=True) | Q(~Q(state="pending"), ended_at__isnull=False),
                name="webhook_delivery_ends_when_it_is_over",
            ),
        ]
        indexes: ClassVar = [
            # The log of an endpoint, newest first.
            models.Index(fields=["endpoint", "-id"], name="webhook_log"),
            # What an endpoint is to be sent. Not for pending rows alone: SQLite would not see that it serves.
            models.Index(fields=["endpoint", "state", "id"], name="webhook_to_send"),
            # The admin's filter by state.
            models.Index(fields=["state", "-id"], name="webhook_delivery_by_state"),
            # Retention.
            models.Index(fields=["created_at"], name="webhook_delivery_by_age"),
        ]

    def __str__(self) -> str:
        return self.delivery_id

    @property
    def delivery_id(self) -> str:
        return f"dlv_{self.public_id.hex}"

    @property
    def message_id(self) -> str:
        return f"evt_{self.event_id.hex}"
