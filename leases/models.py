"""The lease: one row per resource, updated in place."""

import uuid
from typing import ClassVar

from django.db import models
from django.db.models import Q

from leasehub.db.constraints import AllOrNone
from leasehub.identity.models import Organization, Principal
from leases.queues.models import Lane, Queue, Task, TaskContent

__all__ = ["Lane", "Queue", "Resource", "Task", "TaskContent", "public_lease_id"]

# The largest integer that a JSON client keeps exact.
LARGEST_TOKEN = 2**53 - 1

HELD_COLUMNS = ("lease_id", "principal", "holder", "acquired_at", "heartbeat_at", "expires_at", "check_at", "ttl_ms")


class Resource(models.Model):
    """Something that is leased, and the lease on it.

    ======== ============================================== =====================================
    state    what the row says                              leaves it by
    ======== ============================================== =====================================
    free     lease_id is null                               acquire
    held     expires_at is after database time              heartbeat (stays), acquire by the same
                                                            holder, release, force-release
    unknown  expires_at is at or before database time:      acquire (takeover), reap, release,
             it ran out, nobody reaped or took it over yet  force-release
    ======== ============================================== =====================================

    Every transition locks the row, then reads the clock, then decides (leases.engines). A heartbeat changes
    heartbeat_at, expires_at and ttl_ms alone, none of which is in an index, so that it stays a HOT update; what is
    due is found by check_at, which heartbeats do not touch unless they shorten the lease.

    No foreign key is enforced: the checks would lock the organization's and the principal's row at every acquire.
    """

    organization = models.ForeignKey(
        Organization, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="+"
    )
    resource_type = models.CharField(max_length=200)
    resource_id = models.CharField(max_length=200)
    #: Of a task: its queue, for good.
    queue = models.ForeignKey(
        Queue, on_delete=models.PROTECT, null=True, db_constraint=False, db_index=False, related_name="+"
    )
    #: The token of the current lease, or of the last one: it only grows.
    last_token = models.BigIntegerField(default=0)
    lease_id = models.UUIDField(null=True)
    principal = models.ForeignKey(
        Principal, on_delete=models.PROTECT, null=True, db_constraint=False, db_index=False, related_name="+"
    )
    holder = models.CharField(max_length=128, null=True)
    purpose = models.CharField(max_length=4000, null=True)
    payload = models.JSONField(null=True)
    acquired_at = models.DateTimeField(null=True)
    heartbeat_at = models.DateTimeField(null=True)
    expires_at = models.DateTimeField(null=True)
    check_at = models.DateTimeField(null=True)
    ttl_ms = models.BigIntegerField(null=True)
    #: No heartbeat moves the expiry beyond this.
    lifetime_ends_at = models.DateTimeField(null=True)

    class Meta:
        default_permissions = ("view",)
        constraints: ClassVar = [
            # Two rows for one resource would be two leases on it.
            models.UniqueConstraint(
                fields=["organization", "resource_type", "resource_id"], name="resource_has_one_row"
            ),
            # One acquisition named by two rows.
            models.UniqueConstraint(
                fields=["lease_id"], name="lease_is_on_one_resource", condition=Q(lease_id__isnull=False)
            ),
            # A lease without a holder or an expiry could neither be kept nor end.
            models.CheckConstraint(condition=AllOrNone(*HELD_COLUMNS), name="resource_is_held_or_free"),
            # Beyond 2^53 a JSON client rounds, and a stale token could equal a live one.
            models.CheckConstraint(
                condition=Q(last_token__gte=0, last_token__lte=LARGEST_TOKEN), name="token_is_exact_in_json"
            ),
            # Born dead: the holder would be told of a lease that never was.
            models.CheckConstraint(
                condition=Q(expires_at__isnull=True) | Q(expires_at__gt=models.F("heartbeat_at")),
                name="lease_lives_when_granted",
            ),
        ]
        indexes: ClassVar = [
            # The reaper.
            models.Index(fields=["check_at"], name="lease_due", condition=Q(lease_id__isnull=False)),
            # GET /v1/leases.
            models.Index(fields=["organization", "id"], name="lease_list", condition=Q(lease_id__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.resource_type}/{self.resource_id}"


def public_lease_id(lease_id: uuid.UUID) -> str:
    return f"lease_{lease_id.hex}"


class LeaseManager(models.Manager["Lease"]):
    def get_queryset(self) -> models.QuerySet["Lease"]:
        return super().get_queryset().filter(lease_id__isnull=False)


class Lease(Resource):
    """A resource whose lease lives, or ran out and was neither reaped nor taken over yet."""

    objects: ClassVar[LeaseManager] = LeaseManager()

    class Meta:
        proxy = True
        default_permissions = ("view",)
        permissions: ClassVar = [
            ("force_release_lease", "Can force-release lease"),
            ("reap_lease", "Can reap lease"),
        ]

    def __str__(self) -> str:
        return "free" if self.lease_id is None else public_lease_id(self.lease_id)
