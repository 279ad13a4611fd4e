"""Pools: a table of interchangeable slots, the queue for them, and the commands that clean them.

A grant is a lease on a slot (``leases.models.Resource`` of type ``slot``): the lease alone entitles. What stands
here of it (``Slot.lease_id``) is a copy for finding free slots, kept in the transactions that start and end leases.
Everything of a pool changes under the lock of its row.
"""

import uuid
from typing import ClassVar

from django.db import models
from django.db.models import Q

from leasehub.identity.models import ApiKey, Organization, Principal

RESOURCE_TYPE = "slot"


class Pool(models.Model):
    """What an operator declared, and where its queue stands. The row is the lock of all that belongs to it."""

    organization = models.ForeignKey(
        Organization, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="+"
    )
    name = models.CharField(max_length=128)
    #: The pool file as it was declared, without its slots.
    declaration = models.JSONField()
    #: The Celery queue whose workers run the commands.
    worker = models.CharField(max_length=128)
    waiter_stale_ms = models.BigIntegerField()
    claim_window_ms = models.BigIntegerField()
    #: The number of the newest request: it only grows, and grants follow it.
    last_ticket = models.BigIntegerField(default=0)
    #: How long the last leases took, the newest last.
    durations_ms = models.JSONField(default=list)
    declared_at = models.DateTimeField()

    class Meta:
        default_permissions = ("view",)
        permissions: ClassVar = [("operate_pool", "Can declare and operate pools, with commands that workers run")]
        constraints: ClassVar = [
            # Two pools of one name would hand out the same slots.
            models.UniqueConstraint(fields=["organization", "name"], name="pool_name_is_unique"),
        ]
        indexes: ClassVar = [
            # A worker looking for the pools that it serves.
            models.Index(fields=["worker"], name="pool_by_worker"),
        ]

    def __str__(self) -> str:
        return self.name


class Request(models.Model):
    """Somebody waits for slots of a pool, or got them.

    ======================= ===================================== ==============================================
    state                   what it means                         leaves it by
    ======================= ===================================== ==============================================
    queued                  waits, or is short of its count again promote (provisioning, ready), cancel, drop,
                            after a failed provision               a lost lease (lease_lost_during_reset)
    provisioning            its slots are leased, commands run    the last command's end (ready; queued again or
                                                                  reset_failed, health_failed when one failed),
                                                                  cancel, a lost lease
    ready                   its grants can be fetched             the end of its last lease (lease_lost), cancel,
                                                                  the claim window (dropped)
    reset_failed,           a command failed once too often       final
    health_failed
    lease_lost              no grant of it lives any more         final
    lease_lost_during_reset a lease ended before it was clean     final
    dropped                 silent, unclaimed, unsatisfiable, or  final
                            dropped by an operator (``reason``)
    cancelled               by its principal                      final
    ======================= ===================================== ==============================================

    Every transition happens under the lock of the pool's row.
    """

    class State(models.TextChoices):
        QUEUED = "queued"
        PROVISIONING = "provisioning"
        READY = "ready"
        RESET_FAILED = "reset_failed"
        HEALTH_FAILED = "health_failed"
        LEASE_LOST = "lease_lost"
        LEASE_LOST_DURING_RESET = "lease_lost_during_reset"
        DROPPED = "dropped"
        CANCELLED = "cancelled"

    UNCLEAN: ClassVar = (State.QUEUED, State.PROVISIONING)
    OPEN: ClassVar = (State.QUEUED, State.PROVISIONING, State.READY)

    class Mode(models.TextChoices):
        BLOCKING = "blocking"
        ASYNC = "async"

    request_id = models.UUIDField(default=uuid.uuid4, editable=False, unique=True)
    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="requests", db_index=False)
    ticket = models.BigIntegerField()
    principal = models.ForeignKey(
        Principal, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="+"
    )
    key = models.ForeignKey(
        ApiKey, on_delete=models.PROTECT, null=True, db_constraint=False, db_index=False, related_name="+"
    )
    holder = models.CharField(max_length=128)
    #: Whom a nudge is for.
    session = models.CharField(max_length=128)
    mode = models.CharField(max_length=8, choices=Mode)
    no_wait = models.BooleanField(default=False)
    ttl_seconds = models.BigIntegerField()
    count = models.PositiveIntegerField(default=1)
    selector = models.JSONField(default=dict)
    #: Requests with equal selectors have equal keys.
    selector_key = models.CharField(max_length=64, default="")
    state = models.CharField(max_length=24, choices=State, default=State.QUEUED)
    #: Failed commands so far.
    failures = models.PositiveSmallIntegerField(default=0)
    #: Why it was dropped, or how its last lease ended.
    reason = models.CharField(max_length=40, default="", blank=True)
    #: What failed, and on which slot.
    error = models.CharField(max_length=4000, default="", blank=True)
    failed_slot = models.JSONField(null=True, blank=True)
    created_at = models.DateTimeField()
    #: The waiter's last sign of life.
    seen_at = models.DateTimeField()
    ready_at = models.DateTimeField(null=True, blank=True)
    #: When the grants were first shown to whom they are for.
    fetched_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        default_permissions = ("view",)
        constraints: ClassVar = [
            # Two requests of one ticket: neither would be before the other.
            models.UniqueConstraint(fields=["pool", "ticket"], name="request_has_its_own_ticket"),
            models.CheckConstraint(condition=Q(count__gte=1), name="request_asks_for_a_slot"),
        ]
        indexes: ClassVar = [
            # promote: who is next.
            models.Index(fields=["pool", "ticket"], name="request_waiting", condition=Q(state="queued")),
            # promote at an arrival: does anybody with this selector wait, or for several slots?
            models.Index(
                fields=["pool", "selector_key", "count"], name="request_waiting_for", condition=Q(state="queued")
            ),
            # The sweep of grants that nobody fetches.
            models.Index(
                fields=["pool", "ready_at"],
                name="request_unfetched",
                condition=Q(state="ready", fetched_at__isnull=True),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.pool} #{self.ticket}"


class Slot(models.Model):
    """One of a pool's interchangeable things.

    It can be granted when it is declared, neither draining nor broken, without a lease and without a live run.
    """

    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="slots", db_index=False)
    #: The id as text; ``id_value`` keeps a number a number.
    slot_id = models.CharField(max_length=200)
    id_value = models.JSONField()
    kind = models.CharField(max_length=128)
    #: Its place in the pool file.
    place = models.PositiveIntegerField()
    attributes = models.JSONField(default=dict)
    #: False: the pool file names it no more; it goes when its lease ends.
    is_declared = models.BooleanField(default=True)
    is_draining = models.BooleanField(default=False)
    is_broken = models.BooleanField(default=False)
    #: A command runs or is about to: nothing is granted meanwhile.
    is_busy = models.BooleanField(default=False)
    #: Failed commands in a row.
    failures = models.PositiveSmallIntegerField(default=0)
    error = models.CharField(max_length=4000, default="", blank=True)
    #: When a broken slot's health was last asked for.
    checked_at = models.DateTimeField(null=True, blank=True)
    #: The lease on it, as its resource row says.
    lease_id = models.UUIDField(null=True, blank=True)
    granted_at = models.DateTimeField(null=True, blank=True)
    #: Whom it is leased for; null for an operator's and for a lease that was handed on.
    request = models.ForeignKey(
        Request, on_delete=models.SET_NULL, null=True, blank=True, related_name="slots", db_index=False
    )
    #: Its commands have passed for the current lease.
    is_clean = models.BooleanField(default=False)

    class Meta:
        default_permissions = ("view",)
        constraints: ClassVar = [
            # A slot in two rows could be granted twice.
            models.UniqueConstraint(fields=["pool", "slot_id"], name="slot_is_in_its_pool_once"),
            # A slot that is kept for a request without a lease could be granted to another.
            models.CheckConstraint(
                condition=Q(request__isnull=True) | Q(lease_id__isnull=False), name="slot_of_a_request_is_leased"
            ),
        ]
        indexes: ClassVar = [
            # promote: the next free slot; one that failed comes last.
            models.Index(
                fields=["pool", "failures", "place"],
                name="slot_grantable",
                condition=Q(is_declared=True, is_draining=False, is_broken=False, is_busy=False, lease_id__isnull=True),
            ),
            # The slots of a request.
            models.Index(fields=["request"], name="slot_by_request", condition=Q(request__isnull=False)),
            # The estimate: which lease is likely to end next.
            models.Index(fields=["pool", "granted_at"], name="slot_leased", condition=Q(lease_id__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.pool.name}/{self.slot_id}"


class SlotLabel(models.Model):
    """One attribute of a slot by its path, to find the slots that a selector means."""

    slot = models.ForeignKey(Slot, on_delete=models.CASCADE, related_name="labels", db_index=False)
    path = models.CharField(max_length=200)
    #: The value as JSON; its SHA-256 when it is long.
    value = models.CharField(max_length=200)

    class Meta:
        default_permissions = ("view",)
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["slot", "path"], name="slot_label_has_one_value"),
        ]
        indexes: ClassVar = [models.Index(fields=["path", "value", "slot"], name="slot_by_label")]

    def __str__(self) -> str:
        return f"{self.path}={self.value}"


class CommandRun(models.Model):
    """Commands to be run one after another for a slot, by a worker that serves the pool's queue.

    ======== =========================================== ======================================================
    state    what it means                               leaves it by
    ======== =========================================== ======================================================
    waiting  no worker has taken it                      a worker's compare-and-swap (running), the end of the
                                                         lease that it is for, or its patience (ended)
    running  ``worker_name`` runs it until ``deadline``  its worker's report; without one, 10 s past the deadline
    ended    ``outcome`` says how                        final
    ======== =========================================== ======================================================

    Its outcome changes the slot only while the slot's lease is the one that it was started for.
    """

    class Purpose(models.TextChoices):
        GRANT = "grant"
        RESET = "reset"
        REPROVISION = "reprovision"
        HEALTH = "health"
        RECOVER = "recover"
        NUDGE = "nudge"

    class State(models.TextChoices):
        WAITING = "waiting"
        RUNNING = "running"
        ENDED = "ended"

    class Outcome(models.TextChoices):
        PASSED = "passed"
        FAILED = "failed"
        #: The worker stopped, or the lease ended: ended before it was through, nobody's fault.
        INTERRUPTED = "interrupted"
        #: Nobody reported its end.
        LOST = "lost"
        #: No worker took it.
        UNSERVED = "unserved"

    run_id = models.UUIDField(default=uuid.uuid4, editable=False, unique=True)
    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="runs", db_index=False)
    slot = models.ForeignKey(Slot, on_delete=models.CASCADE, related_name="runs", null=True, db_index=False)
    request = models.ForeignKey(
        Request, on_delete=models.SET_NULL, null=True, blank=True, related_name="+", db_index=False
    )
    purpose = models.CharField(max_length=12, choices=Purpose)
    #: The acquisition that it is for.
    lease_id = models.UUIDField(null=True, blank=True)
    actor = models.ForeignKey(
        Principal,
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        db_constraint=False,
        db_index=False,
        related_name="+",
    )
    #: The Celery queue whose workers may take it.
    worker = models.CharField(max_length=128)
    #: [{"action", "command"}], in order; the first failure ends it.
    steps = models.JSONField()
    cwd = models.CharField(max_length=4000, default="", blank=True)
    environment = models.JSONField(default=dict)
    step_timeout_ms = models.BigIntegerField()
    state = models.CharField(max_length=8, choices=State, default=State.WAITING)
    outcome = models.CharField(max_length=12, choices=Outcome, default="", blank=True)
    failed_action = models.CharField(max_length=12, default="", blank=True)
    error = models.CharField(max_length=4000, default="", blank=True)
    #: [{"action", "exit_status", "signal", "timed_out", "took_ms", "output", "omitted_bytes"}]
    results = models.JSONField(default=list)
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    deadline = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    #: Who runs it: host, boot, process and its start, so that a later worker of that host can tell that it is gone.
    worker_name = models.CharField(max_length=200, default="", blank=True)

    class Meta:
        default_permissions = ("view",)
        constraints: ClassVar = [
            # Two commands at once on one slot would undo each other's work.
            models.UniqueConstraint(
                fields=["slot"],
                name="slot_has_one_live_run",
                condition=Q(slot__isnull=False) & ~Q(state="ended") & ~Q(purpose="nudge"),
            ),
        ]
        indexes: ClassVar = [
            # A worker looking for work, and the sweep of runs that nobody reported.
            models.Index(fields=["worker", "id"], name="run_live", condition=~Q(state="ended")),
            # The runs of a pool, newest first.
            models.Index(fields=["pool", "-id"], name="run_by_pool"),
            models.Index(fields=["slot", "-id"], name="run_by_slot"),
            # Retention.
            models.Index(fields=["ended_at"], name="run_by_age", condition=Q(state="ended")),
        ]

    def __str__(self) -> str:
        return f"{self.purpose} of {self.pool_id}/{self.slot_id}"


class ServedQueue(models.Model):
    """A worker process says that it serves a Celery queue; told apart from a dead one by its age."""

    worker = models.CharField(max_length=128)
    worker_name = models.CharField(max_length=200)
    seen_at = models.DateTimeField()

    class Meta:
        default_permissions = ("view",)
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["worker", "worker_name"], name="worker_serves_a_queue_once"),
        ]

    def __str__(self) -> str:
        return f"{self.worker} by {self.worker_name}"


def resource_id(pool: str, slot_id: str) -> str:
    """What the slot's lease is on: the pool's name has no slash, so the first one parts the two."""
    return f"{pool}/{slot_id}"


def public_request_id(request_id: uuid.UUID) -> str:
    return f"req_{request_id.hex}"


def public_run_id(run_id: uuid.UUID) -> str:
    return f"run_{run_id.hex}"
