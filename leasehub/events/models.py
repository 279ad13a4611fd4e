"""The journal: one row per state change, and where each organization's feed stands."""

import uuid
from typing import ClassVar

from django.db import models

from leasehub.events.types import COMMON_TYPES
from leasehub.events.webhooks.models import WebhookDelivery, WebhookEndpoint
from leasehub.identity.models import ApiKey, Organization, Principal

__all__ = ["Event", "Feed", "WebhookDelivery", "WebhookEndpoint"]


class Event(models.Model):
    """One transition, written in its transaction by whoever makes it; never changed, but for its position.

    The id is allotted while the resource row is locked, so ids of one resource agree with the order of its
    changes. ``position`` is stamped later, on rows that are already visible (leasehub.events.feed).

    No foreign key is enforced: the checks would lock the organization's, the principal's and the key's row at
    every acquire, and none of these is ever deleted.
    """

    event_id = models.UUIDField(default=uuid.uuid4, editable=False)
    organization = models.ForeignKey(
        Organization, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="+"
    )
    position = models.BigIntegerField(null=True)
    type = models.CharField(max_length=40)
    at = models.DateTimeField()
    #: Who did it; null: the server itself (the reaper).
    actor = models.ForeignKey(
        Principal, on_delete=models.PROTECT, null=True, db_constraint=False, db_index=False, related_name="+"
    )
    key = models.ForeignKey(
        ApiKey, on_delete=models.PROTECT, null=True, db_constraint=False, db_index=False, related_name="+"
    )
    resource_type = models.CharField(max_length=200, default="")
    resource_id = models.CharField(max_length=200, default="")
    lease_id = models.UUIDField(null=True)
    #: The acquisition that this transition ended by starting another one.
    previous_lease_id = models.UUIDField(null=True)
    fencing_token = models.BigIntegerField(null=True)
    #: The (late) holder: a principal and its label.
    principal = models.ForeignKey(
        Principal, on_delete=models.PROTECT, null=True, db_constraint=False, db_index=False, related_name="+"
    )
    holder = models.CharField(max_length=128, default="")
    #: To whom what happened is addressed: the receiving party of a handoff.
    addressee = models.ForeignKey(
        Principal, on_delete=models.PROTECT, null=True, db_constraint=False, db_index=False, related_name="+"
    )
    data = models.JSONField(default=dict)

    class Meta:
        default_permissions = ("view",)
        constraints: ClassVar = [
            # Two events at one position: a reader that follows the cursor would miss one.
            models.UniqueConstraint(
                fields=["organization", "position"],
                name="event_position_is_unique",
                condition=models.Q(position__isnull=False),
            ),
        ]
        indexes: ClassVar = [
            # The stamper: what has no position yet.
            models.Index(
                fields=["organization", "id"], name="event_unstamped", condition=models.Q(position__isnull=True)
            ),
            # How did this lease end?
            models.Index(fields=["lease_id"], name="event_by_lease", condition=models.Q(lease_id__isnull=False)),
            models.Index(
                fields=["previous_lease_id"],
                name="event_by_previous_lease",
                condition=models.Q(previous_lease_id__isnull=False),
            ),
            # The timeline of a resource.
            models.Index(fields=["organization", "resource_type", "resource_id", "id"], name="event_by_resource"),
            # GET /v1/leases/reaped.
            models.Index(
                fields=["organization", "-id"],
                name="event_reaped",
                condition=models.Q(type__in=["lease.reaped", "task.dead"]),
            ),
            # The admin's filter by type; costs the hot path nothing.
            models.Index(fields=["type", "id"], name="event_by_rare_type", condition=~models.Q(type__in=COMMON_TYPES)),
        ]

    def __str__(self) -> str:
        return f"{self.type} {self.resource_type}/{self.resource_id}"


class Feed(models.Model):
    """How far an organization's events are numbered. The row is the lock of the stamper and outlives events."""

    organization = models.OneToOneField(
        Organization, on_delete=models.PROTECT, primary_key=True, related_name="feed", db_constraint=False
    )
    last_position = models.BigIntegerField(default=0)
    #: Every event with an id up to this one is numbered, and none with such an id can still appear.
    low_water = models.BigIntegerField(default=0)
    #: The next low water, safe once every transaction below ``candidate_xid`` has ended; 0: not known yet.
    candidate = models.BigIntegerField(default=0)
    candidate_xid = models.BigIntegerField(default=0)
    #: The highest position that retention has moved out; a cursor below it has lost events.
    pruned_through = models.BigIntegerField(default=0)

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.organization} at {self.last_position}"


class Snapshot(models.Model):
    """What the events of a subject came to that retention moved out: from here on the journal can be replayed.

    Kept in the transaction that deletes the events, and only for what is not over: a live lease, a task that may
    still be claimed, a slot, an open request, a pending or accepted handoff.
    """

    organization = models.ForeignKey(
        Organization, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="+"
    )
    #: resource, request or handoff (leasehub.management.invariants.replay).
    kind = models.CharField(max_length=10)
    subject_type = models.CharField(max_length=200)
    subject_id = models.CharField(max_length=200)
    state = models.JSONField()

    class Meta:
        default_permissions = ()
        constraints: ClassVar = [
            # Of two states of one subject one would be wrong.
            models.UniqueConstraint(
                fields=["organization", "kind", "subject_type", "subject_id"], name="snapshot_is_one_per_subject"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.subject_type}/{self.subject_id}"


class Inspection(models.Model):
    """What a check of the invariants found that was asked for in the admin; the last few are kept."""

    at = models.DateTimeField()
    by = models.CharField(max_length=150)
    report = models.JSONField()

    class Meta:
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M:%S}"
