"""Handoffs, the leases that they offer, and checkpoints."""

import uuid
from datetime import datetime
from typing import ClassVar

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Coalesce

from leasehub.identity.models import Organization, Principal

MAX_HOPS = 5
#: When the status was set.
LAST_UPDATE = Coalesce("completed_at", "resolved_at", "created_at")


class Handoff(models.Model):
    """An offer of unfinished work to another principal.

    ========= ==================================== ====================================================
    status    what it says                         leaves it by
    ========= ==================================== ====================================================
    pending   waits for its addressee; past        accept, reject (addressee), withdraw (giver, admin),
              ``accept_by`` it is expired already  expire (the scan, once ``accept_by`` has passed)
    accepted  the addressee has the work           complete (addressee)
    rejected  back to the giver, with a reason     nothing
    withdrawn taken back                           nothing
    expired   back to the giver                    nothing
    completed done, with a result                  nothing
    ========= ==================================== ====================================================

    Every transition locks the row, then reads the clock, then decides (handoffs.services). The offered leases stay
    the giver's until they move with the acceptance.
    """

    class Status(models.TextChoices):
        PENDING = "pending"
        ACCEPTED = "accepted"
        REJECTED = "rejected"
        WITHDRAWN = "withdrawn"
        EXPIRED = "expired"
        COMPLETED = "completed"

    public_id = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    organization = models.ForeignKey(
        Organization, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="+"
    )
    giver = models.ForeignKey(Principal, on_delete=models.PROTECT, db_index=False, related_name="+")
    addressee = models.ForeignKey(Principal, on_delete=models.PROTECT, db_index=False, related_name="+")
    subject_id = models.CharField(max_length=200)
    context_id = models.CharField(max_length=200, default="")
    checkpoint = models.ForeignKey(
        "Checkpoint", on_delete=models.SET_NULL, null=True, db_index=False, related_name="handoffs"
    )
    #: The version that the giver meant.
    checkpoint_version = models.BigIntegerField(null=True)
    message = models.CharField(max_length=4000, default="")
    next_action = models.CharField(max_length=4000, default="")
    #: What else it carries: done, decisions, failed_approaches, blockers, artifacts, state. Inert: never fetched.
    content = models.JSONField(default=dict)
    state_hash = models.CharField(max_length=64, default="")
    parent = models.ForeignKey("self", on_delete=models.PROTECT, null=True, db_index=False, related_name="+")
    hop = models.PositiveSmallIntegerField(default=0)
    accept_by = models.DateTimeField(null=True)
    status = models.CharField(max_length=9, choices=Status, default=Status.PENDING)
    created_at = models.DateTimeField()
    resolved_at = models.DateTimeField(null=True)
    #: Why it was rejected or withdrawn.
    reason = models.CharField(max_length=4000, default="")
    #: The holder that it was accepted as.
    holder = models.CharField(max_length=128, default="")
    observed_commit = models.CharField(max_length=64, default="")
    completed_at = models.DateTimeField(null=True)
    result = models.JSONField(null=True)

    class Meta:
        default_permissions = ("view",)
        permissions: ClassVar = [("withdraw_handoff", "Can withdraw handoff")]
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(status__in=["pending", "accepted", "rejected", "withdrawn", "expired", "completed"]),
                name="handoff_status_is_known",
            ),
            # Resolved and still pending: a second one could accept it.
            models.CheckConstraint(
                condition=Q(status="pending", resolved_at__isnull=True)
                | (~Q(status="pending") & Q(resolved_at__isnull=False)),
                name="handoff_is_pending_or_resolved",
            ),
            # A giver that is refused must learn why.
            models.CheckConstraint(condition=~Q(status="rejected", reason=""), name="handoff_is_rejected_with_reason"),
            models.CheckConstraint(
                condition=Q(status="completed", completed_at__isnull=False, completed_at__gte=F("resolved_at"))
                | (~Q(status="completed") & Q(completed_at__isnull=True)),
                name="handoff_is_completed_once",
            ),
            # Work that is passed on for ever is done by nobody.
            models.CheckConstraint(condition=Q(hop__lte=MAX_HOPS), name="handoff_hops_are_few"),
        ]
        indexes: ClassVar = [
            # The inbox.
            models.Index(fields=["addressee", "status", "id"], name="handoff_inbox"),
            # The sent box.
            models.Index(fields=["giver", "id"], name="handoff_sent"),
            # The sent box of A2A: what was updated last comes first.
            models.Index(F("giver"), LAST_UPDATE.desc(), F("id").desc(), name="handoff_by_update"),
            # The scan for what is past accept_by.
            models.Index(
                fields=["accept_by"],
                name="handoff_due",
                condition=Q(status="pending", accept_by__isnull=False),
            ),
            # /metrics: how many wait, and for how long.
            models.Index(fields=["id"], name="handoff_pending", condition=Q(status="pending")),
            # Who may read a checkpoint because a handoff names it.
            models.Index(
                fields=["checkpoint", "addressee"],
                name="handoff_by_checkpoint",
                condition=Q(checkpoint__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return self.handoff_id

    @property
    def handoff_id(self) -> str:
        return f"hoff_{self.public_id.hex}"

    def status_at(self, at: datetime) -> str:
        """The status at a time: past ``accept_by`` it is expired, whether the scan has been there or not."""
        if self.status == self.Status.PENDING and self.accept_by is not None and self.accept_by <= at:
            return self.Status.EXPIRED
        return self.status

    @property
    def state_drifted(self) -> bool | None:
        """Whether the addressee saw another commit than the giver; None when either did not say."""
        given = (self.content.get("state") or {}).get("commit")
        if not given or not self.observed_commit:
            return None
        # Either may be abbreviated.
        length = min(len(given), len(self.observed_commit))
        return bool(given[:length].lower() != self.observed_commit[:length].lower())


class OfferedLease(models.Model):
    """A lease that moves when its handoff is accepted, and what became of it."""

    class Outcome(models.TextChoices):
        OFFERED = "offered"
        MOVED = "moved"
        LOST = "lost"
        KEPT = "kept"

    handoff = models.ForeignKey(Handoff, on_delete=models.CASCADE, db_index=False, related_name="leases")
    lease_id = models.UUIDField()
    resource_type = models.CharField(max_length=200)
    resource_id = models.CharField(max_length=200)
    outcome = models.CharField(max_length=7, choices=Outcome, default=Outcome.OFFERED)
    #: The acceptor's acquisition.
    moved_to = models.UUIDField(null=True)
    fencing_token = models.BigIntegerField(null=True)

    class Meta:
        default_permissions = ()
        #: As they were offered.
        ordering: ClassVar = ["pk"]
        constraints: ClassVar = [
            # Offered twice by one handoff, it would be moved twice.
            models.UniqueConstraint(fields=["handoff", "lease_id"], name="handoff_offers_a_lease_once"),
            models.CheckConstraint(
                condition=Q(outcome="moved", moved_to__isnull=False, fencing_token__isnull=False)
                | Q(outcome__in=["offered", "lost", "kept"], moved_to__isnull=True, fencing_token__isnull=True),
                name="moved_lease_has_a_token",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.resource_type}/{self.resource_id}"


class Checkpoint(models.Model):
    """Resumable state of a subject: the head of its versions, written by compare-and-swap.

    It belongs to its principal; one that was written with a fence belongs to that resource, and whoever holds the
    resource's current token reads and writes it.
    """

    public_id = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    organization = models.ForeignKey(
        Organization, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="+"
    )
    #: The owner; of a resource's checkpoint the last writer.
    principal = models.ForeignKey(Principal, on_delete=models.PROTECT, db_index=False, related_name="+")
    subject_id = models.CharField(max_length=200)
    kind = models.CharField(max_length=200)
    resource_type = models.CharField(max_length=200, default="")
    resource_id = models.CharField(max_length=200, default="")
    run_id = models.CharField(max_length=200, default="")
    #: 0 only inside the transaction that makes the row.
    version = models.BigIntegerField(default=0)
    state_hash = models.CharField(max_length=64, default="")
    ttl_seconds = models.PositiveIntegerField(null=True)
    expires_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()

    class Meta:
        default_permissions = ("view",)
        constraints: ClassVar = [
            # Two heads: each of two writers would swap its own.
            models.UniqueConstraint(
                fields=["principal", "subject_id", "kind"],
                name="principal_has_one_checkpoint",
                condition=Q(resource_type=""),
            ),
            models.UniqueConstraint(
                fields=["organization", "subject_id", "kind", "resource_type", "resource_id"],
                name="resource_has_one_checkpoint",
                condition=~Q(resource_type=""),
            ),
            models.CheckConstraint(
                condition=Q(resource_type="", resource_id="") | ~Q(Q(resource_type="") | Q(resource_id="")),
                name="checkpoint_resource_is_whole",
            ),
        ]
        indexes: ClassVar = [
            # The scan that deletes what ran out.
            models.Index(fields=["expires_at"], name="checkpoint_due", condition=Q(expires_at__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.subject_id}/{self.kind}"

    @property
    def checkpoint_id(self) -> str:
        return f"ckpt_{self.public_id.hex}"


class CheckpointVersion(models.Model):
    """One of the last versions of a checkpoint; never changed."""

    checkpoint = models.ForeignKey(Checkpoint, on_delete=models.CASCADE, db_index=False, related_name="versions")
    version = models.BigIntegerField()
    state = models.JSONField()
    state_hash = models.CharField(max_length=64)
    written_by = models.ForeignKey(Principal, on_delete=models.PROTECT, db_index=False, related_name="+")
    fencing_token = models.BigIntegerField(null=True)
    created_at = models.DateTimeField()

    class Meta:
        default_permissions = ()
        constraints: ClassVar = [
            # Two states of one version: a swap could be lost.
            models.UniqueConstraint(fields=["checkpoint", "version"], name="checkpoint_version_is_unique"),
            models.CheckConstraint(condition=Q(version__gte=1), name="checkpoint_versions_start_at_1"),
        ]

    def __str__(self) -> str:
        return f"{self.checkpoint} version {self.version}"
