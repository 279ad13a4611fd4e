"""The one verb of the checkpoint: save, by compare-and-swap, optionally behind a fence."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import QuerySet

from handoffs import queries
from handoffs.errors import VersionConflict
from handoffs.models import Checkpoint, CheckpointVersion
from handoffs.services import hash_of
from leasehub.db import clock
from leasehub.db.locks import lock_rows
from leasehub.errors import ValidationError
from leasehub.events.journal import record
from leases.errors import StaleToken
from leases.models import Resource
from leases.services import Actor

KEPT_VERSIONS = 10
MIN_TTL_SECONDS = 60
MAX_TTL_SECONDS = 2_592_000
# Small, because a transaction keeps every other writer of SQLite waiting.
PRUNE_BATCH = 50


@dataclass(frozen=True, slots=True)
class Fence:
    """A resource and the token that its writer believes to be the current one."""

    resource_type: str
    resource_id: str
    fencing_token: int


@transaction.atomic
def save(
    *,
    actor: Actor,
    subject_id: str,
    kind: str,
    state: Any,
    expected_version: int | None,
    ttl_seconds: int | None = None,
    run_id: str = "",
    fence: Fence | None = None,
) -> Checkpoint:
    """Write the next version. ``expected_version``: the one that is there now, 0 for none, None for whichever.

    Behind a fence the checkpoint is the resource's, and the write is refused unless the actor holds the resource
    with that token: the write that a stale worker cannot make. Raises VersionConflict, StaleToken, ValidationError
    for a write without its fence to what belongs to a resource that the actor holds.
    """
    assert actor.principal is not None
    if state is None:
        raise ValidationError("The state must not be null.", state="must not be null")
    if fence is not None:
        _lock_fence(actor, fence)
    head = _lock_head(actor, subject_id, kind, fence)
    at = clock.now()
    alive = head.expires_at is None or head.expires_at > at
    current = head.version if alive else 0
    if expected_version is not None and expected_version != current:
        raise VersionConflict(current)
    head.version += 1
    head.state_hash = hash_of(state)
    head.principal_id = actor.principal
    head.run_id = run_id
    head.ttl_seconds = ttl_seconds
    head.expires_at = None if ttl_seconds is None else at + timedelta(seconds=ttl_seconds)
    head.updated_at = at
    head.save()
    CheckpointVersion.objects.create(
        checkpoint=head,
        version=head.version,
        state=state,
        state_hash=head.state_hash,
        written_by_id=actor.principal,
        fencing_token=None if fence is None else fence.fencing_token,
        created_at=at,
    )
    head.versions.filter(version__lte=head.version - KEPT_VERSIONS).delete()
    _record(head, actor=actor, at=at, fence=fence)
    return head


def prune(*, batches: int = 20) -> int:
    """The scan: deletes checkpoints that ran out. How many."""
    total = 0
    for _ in range(batches):
        ran_out = Checkpoint.objects.filter(expires_at__lte=clock.now()).order_by("expires_at")
        due = list(ran_out.values_list("pk", flat=True)[:PRUNE_BATCH])
        total += _prune(due) if due else 0
        if len(due) < PRUNE_BATCH:
            break
    return total


def _prune(due: list[int]) -> int:
    with transaction.atomic():
        at = clock.now()
        rows = lock_rows(Checkpoint.objects.filter(pk__in=due, expires_at__lte=at), skip_locked=True)
        pruned = list(rows.values_list("pk", flat=True))
        Checkpoint.objects.filter(pk__in=pruned).delete()
    return len(pruned)


def _lock_fence(actor: Actor, fence: Fence) -> None:
    """Locks the resource to the end of the transaction, so that no lease begins before the write is done.

    Raises StaleToken unless the actor holds it with this token, whatever else is the case: a stale worker learns
    nothing more.
    """
    named = Resource.objects.filter(
        organization_id=actor.organization, resource_type=fence.resource_type, resource_id=fence.resource_id
    )
    row = lock_rows(named).first()
    if row is None or row.expires_at is None or row.expires_at <= clock.now():
        raise StaleToken
    if row.last_token != fence.fencing_token or row.principal_id != actor.principal:
        raise StaleToken


def _lock_head(actor: Actor, subject_id: str, kind: str, fence: Fence | None) -> Checkpoint:
    """The head to write to, locked; made with version 0 when there is none."""
    assert actor.principal is not None
    named: QuerySet[Checkpoint] = queries.own_checkpoints(organization=actor.organization, principal=actor.principal)
    named = named.filter(subject_id=subject_id, kind=kind)
    at = clock.now()
    if fence is None:
        held = queries.held_checkpoints(organization=actor.organization, principal=actor.principal, at=at)
        if held.filter(subject_id=subject_id, kind=kind).exists():
            raise ValidationError(
                "This checkpoint belongs to a resource that you hold: save it with its fence.", fence="is required"
            )
    else:
        own = named
        named = Checkpoint.objects.filter(
            organization_id=actor.organization,
            subject_id=subject_id,
            kind=kind,
            resource_type=fence.resource_type,
            resource_id=fence.resource_id,
        )
        if not named.exists():
            # Written with a fence it belongs to the resource from now on.
            own.update(resource_type=fence.resource_type, resource_id=fence.resource_id)
    while (head := lock_rows(named).first()) is None:
        # Again from the top, because the scan may take the new row before it is locked.
        Checkpoint.objects.bulk_create(
            [
                Checkpoint(
                    organization_id=actor.organization,
                    principal_id=actor.principal,
                    subject_id=subject_id,
                    kind=kind,
                    resource_type="" if fence is None else fence.resource_type,
                    resource_id="" if fence is None else fence.resource_id,
                    created_at=at,
                    updated_at=at,
                )
            ],
            ignore_conflicts=True,
        )
    return head


def _record(head: Checkpoint, *, actor: Actor, at: datetime, fence: Fence | None) -> None:
    record(
        "checkpoint.saved",
        at=at,
        organization=head.organization_id,
        actor=actor.principal,
        key=actor.key,
        resource_type=head.resource_type,
        resource_id=head.resource_id,
        fencing_token=None if fence is None else fence.fencing_token,
        principal=head.principal_id,
        data={
            "checkpoint_id": head.checkpoint_id,
            "subject_id": head.subject_id,
            "kind": head.kind,
            "version": head.version,
            "state_hash": head.state_hash,
        },
    )
