"""Queues and their tasks. The lease on a claimed task is a row of ``leases.models.Resource``, like any other."""

import uuid
from typing import ClassVar

from django.db import models
from django.db.models import Q

from leasehub.identity.models import Organization, Principal

#: The type of the resource whose lease is the claim; its id is the task's public id.
TASK = "task"
PRIORITIES = range(-1000, 1001)
MAX_ATTEMPTS = 1000
LONGEST_PAUSE_SECONDS = 366 * 86400
MOST_KEEP_DAYS = 36_600
LIVE = ("ready", "leased")


class Queue(models.Model):
    """Where tasks wait. Made by the first task that is put into it, with these settings."""

    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, db_index=False, related_name="+")
    name = models.CharField(max_length=200)
    #: Of a task that does not say.
    max_attempts = models.PositiveSmallIntegerField(default=5)
    #: The pause after the first failure; it doubles with every attempt, with jitter, up to the longest.
    backoff_base_seconds = models.PositiveIntegerField(default=5)
    backoff_max_seconds = models.PositiveIntegerField(default=3600)
    #: How long a finished task is kept. Dead ones stay until an operator retries or purges them.
    keep_days = models.PositiveIntegerField(default=7)
    created_at = models.DateTimeField()
    #: On SQLite the place of the task that was put last; PostgreSQL has a sequence.
    last_place = models.BigIntegerField(default=0, editable=False)
    #: Until then somebody may be waiting for a task: putting one rings (leases.queues.waiting).
    awaited_until = models.DateTimeField(null=True, editable=False)

    class Meta:
        default_permissions = ("view", "change")
        constraints: ClassVar = [
            # Two queues of one name would split its tasks between claimers.
            models.UniqueConstraint(fields=["organization", "name"], name="queue_name_is_unique"),
            # Its tasks would be born dead.
            models.CheckConstraint(
                condition=Q(max_attempts__gte=1, max_attempts__lte=MAX_ATTEMPTS),
                name="queue_allows_an_attempt",
                violation_error_message=f"Max attempts must be from 1 to {MAX_ATTEMPTS}.",
            ),
            # The exponential back-off would shrink to nothing.
            models.CheckConstraint(
                condition=Q(
                    backoff_max_seconds__gte=models.F("backoff_base_seconds"),
                    backoff_max_seconds__lte=LONGEST_PAUSE_SECONDS,
                ),
                name="queue_backoff_grows_to_its_longest",
                violation_error_message="The longest back-off must be at least the first, and at most a year.",
            ),
            # Beyond the calendar nothing could be counted back.
            models.CheckConstraint(
                condition=Q(keep_days__lte=MOST_KEEP_DAYS),
                name="queue_keeps_for_a_countable_time",
                violation_error_message=f"Keep days must be at most {MOST_KEEP_DAYS}.",
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Lane(models.Model):
    """The tasks of one priority in a queue, and where a claim on PostgreSQL starts to look for them.

    A claimed task leaves a dead entry at the head of the index, and while any old snapshot is held in the database
    none of these goes away: every claim would walk over all of them. So the lane remembers ``low_water``: no task
    that waits in its turn has a lower place, or ever will. It only rises, and how it may is told in
    docs/adr/0006-low-water-of-a-lane.md and in lane_advance().
    """

    queue = models.ForeignKey(Queue, on_delete=models.CASCADE, db_constraint=False, db_index=False, related_name="+")
    priority = models.SmallIntegerField()
    low_water = models.BigIntegerField(default=0)
    #: The next low water, safe once every transaction before ``candidate_xid`` has ended.
    candidate = models.BigIntegerField(default=0)
    candidate_xid = models.BigIntegerField(default=0)

    class Meta:
        default_permissions = ()
        constraints: ClassVar = [
            # With two low waters the lower one would be forgotten.
            models.UniqueConstraint(fields=["queue", "priority"], name="lane_is_one_per_priority"),
        ]


USED_UP = "Its attempts are used up: the last claim was given back, ran out or was ended, without a word of why."


class Task(models.Model):
    """A unit of work: narrow, because it is rewritten at every step. What it is about stands in TaskContent.

    ======== =============================================== =============================================
    state    what the row says                               leaves it by
    ======== =============================================== =============================================
    ready    waits; ready_at is set while it waits for that  claim (leased)
    leased   its resource (task, t_…) has a lease, which     complete (done); fail, give back, reap,
             may have run out                                force-release (ready, or dead when the
                                                             attempts are used up or it failed for good)
    done     finished; stays so whatever comes late          pruned after the queue's keep_days
    dead     gave up                                         retry (ready), purge, both by an operator
    ======== =============================================== =============================================

    Every transition locks the task, then its resource row, then reads the clock. Who holds a leased task, with
    which token and until when, stands in the resource row alone.

    No foreign key is enforced, for the same reason as in Resource.
    """

    #: Shown as t_ and 32 hexadecimal digits. Grows with time, so that new ones meet at one end of the indexes.
    id = models.UUIDField(primary_key=True, editable=False)
    #: The order within a priority: the number at which the task was put. In no index but the claim's, so that no
    #: planner can take another way to this order.
    place = models.BigIntegerField(editable=False)
    queue = models.ForeignKey(Queue, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="+")
    #: Who put it.
    principal = models.ForeignKey(
        Principal, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="+"
    )
    state = models.CharField(max_length=6, default="ready")
    priority = models.SmallIntegerField(default=0)
    #: Claimable from then on; null when it is claimable now.
    ready_at = models.DateTimeField(null=True)
    #: It became claimable later than it was put: delayed, given back, failed, reaped, retried.
    out_of_turn = models.BooleanField(default=False)
    #: How often it was claimed.
    attempts = models.SmallIntegerField(default=0)
    max_attempts = models.SmallIntegerField()
    dedupe_key = models.CharField(max_length=200, null=True)
    created_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)

    class Meta:
        default_permissions = ("view",)
        permissions: ClassVar = [("retry_task", "Can retry task"), ("purge_task", "Can purge task")]
        constraints: ClassVar = [
            # The work that the key stands for would be done twice.
            models.UniqueConstraint(
                fields=["queue", "dedupe_key"],
                name="task_dedupe_key_is_live_once",
                condition=Q(state__in=LIVE, dedupe_key__isnull=False),
            ),
            # Few and short: each is read anew at every claim.
            #
            # A state that nobody knows, or a finished task that could be claimed.
            models.CheckConstraint(
                condition=Q(state__in=LIVE, finished_at__isnull=True)
                | Q(state__in=["done", "dead"], finished_at__isnull=False),
                name="task_is_finished_or_live",
            ),
            # More attempts than allowed is a loop.
            models.CheckConstraint(
                condition=Q(attempts__gte=0, attempts__lte=models.F("max_attempts")), name="task_attempts_have_an_end"
            ),
            # In turn again, below the low water of its lane, it would not be found.
            models.CheckConstraint(
                condition=Q(out_of_turn=True) | Q(attempts=0, ready_at__isnull=True) | Q(state="leased"),
                name="task_ready_again_is_out_of_turn",
            ),
            # A task that waits for a time and is not ready would never be looked for.
            models.CheckConstraint(
                condition=Q(ready_at__isnull=True) | Q(state="ready"), name="task_waits_only_when_ready"
            ),
            # A lane for every number there is would be looked at in every claim.
            models.CheckConstraint(
                condition=Q(priority__gte=PRIORITIES[0], priority__lte=PRIORITIES[-1]), name="task_priority_has_bounds"
            ),
        ]
        indexes: ClassVar = [
            # The claim: a lane in turn from its low water on, and beside it what is out of turn.
            models.Index(
                fields=["queue", "out_of_turn", "-priority", "place"],
                name="task_claim",
                condition=Q(state="ready", ready_at__isnull=True),
            ),
            # What has to be made claimable next.
            models.Index(
                fields=["queue", "ready_at"], name="task_delayed", condition=Q(state="ready", ready_at__isnull=False)
            ),
            # The prune of finished tasks.
            models.Index(fields=["queue", "finished_at"], name="task_finished", condition=Q(state="done")),
            # Operators: count, retry, purge.
            models.Index(fields=["queue", "finished_at"], name="task_dead", condition=Q(state="dead")),
        ]

    def __str__(self) -> str:
        return self.task_id

    @property
    def task_id(self) -> str:
        return public_task_id(self.id)

    @property
    def last_error(self) -> str | None:
        """What the last failure said; of a dead task that never failed, why it is dead all the same."""
        content: TaskContent | None = getattr(self, "content", None)
        if content is not None and content.error is not None:
            return content.error
        return USED_UP if self.state == "dead" else None


class TaskContent(models.Model):
    """What a task is about and what came of it; no row while there is nothing to say."""

    task = models.OneToOneField(
        Task, on_delete=models.CASCADE, primary_key=True, db_constraint=False, related_name="content"
    )
    payload = models.JSONField(null=True)
    result = models.JSONField(null=True)
    #: Of the last failure.
    error = models.CharField(max_length=4000, null=True)

    class Meta:
        default_permissions = ()


def public_task_id(task: uuid.UUID) -> str:
    return f"t_{task.hex}"
