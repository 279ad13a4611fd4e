"""Reads of handoffs and checkpoints, through the eyes of a principal."""

import difflib
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Avg, Count, Exists, ExpressionWrapper, F, Max, OuterRef, Q, QuerySet
from django.db.models.fields import DurationField

from handoffs.errors import UnknownAddressee
from handoffs.models import Checkpoint, CheckpointVersion, Handoff, OfferedLease
from leasehub.db import clock
from leasehub.errors import NotFound
from leasehub.identity.authentication import Caller
from leasehub.identity.models import Principal
from leases.models import Resource
from leases.queries import parse_lease_id

# A badge that says more than this says it with a plus.
COUNTED_UP_TO = 99
SUGGESTIONS = 3
LOOKED_AT_FOR_SUGGESTIONS = 5000
REASONS = 10

Status = Handoff.Status


def of_party(*, organization: int, principal: int) -> QuerySet[Handoff]:
    """The handoffs that a principal gave or is addressed by."""
    return Handoff.objects.filter(organization_id=organization).filter(Q(giver=principal) | Q(addressee=principal))


def inbox(*, principal: int, at: datetime, status: str = Status.PENDING) -> QuerySet[Handoff]:
    """What is addressed to a principal; without a status, what waits for it."""
    return _in_status(Handoff.objects.filter(addressee=principal), status, at)


def sent(*, principal: int, at: datetime, status: str | None = None) -> QuerySet[Handoff]:
    found = Handoff.objects.filter(giver=principal)
    return found if status is None else _in_status(found, status, at)


def _in_status(handoffs: QuerySet[Handoff], status: str, at: datetime) -> QuerySet[Handoff]:
    """As ``Handoff.status_at`` says it: what is past accept_by waits for nobody."""
    if status == Status.PENDING:
        return handoffs.filter(Q(accept_by=None) | Q(accept_by__gt=at), status=status)
    if status == Status.EXPIRED:
        return handoffs.filter(Q(status=status) | Q(status=Status.PENDING, accept_by__lte=at))
    return handoffs.filter(status=status)


def count_pending(*, principal: int, at: datetime) -> int:
    """How many wait for a principal, counted up to one above COUNTED_UP_TO."""
    return inbox(principal=principal, at=at).order_by()[: COUNTED_UP_TO + 1].count()


def whole(handoffs: QuerySet[Handoff]) -> QuerySet[Handoff]:
    """With everything that a view of them shows, in a fixed number of queries."""
    return handoffs.select_related("giver", "addressee", "checkpoint", "parent").prefetch_related("leases")


def handoff(*, organization: int, principal: int, handoff_id: str) -> Handoff:
    """Raises NotFound for everybody but the two parties."""
    named = of_party(organization=organization, principal=principal).filter(public_id=parse_handoff_id(handoff_id))
    found = whole(named).first()
    if found is None:
        raise NotFound
    return found


def known(*, caller: Caller, handoff_id: str) -> uuid.UUID:
    """The handoff that a key means to change, when it may know of it: a party, or a key that observes.

    Raises NotFound.
    """
    named = parse_handoff_id(handoff_id)
    if not caller.observes:
        parties = of_party(organization=caller.organization, principal=caller.principal)
        if not parties.filter(public_id=named).exists():
            raise NotFound
    return named


def live_leases(leases: Iterable[OfferedLease]) -> dict[uuid.UUID, Resource]:
    """Of the offered leases, those that are still on their resource, by lease id."""
    open_ones = (OfferedLease.Outcome.OFFERED, OfferedLease.Outcome.MOVED)
    named = [lease.moved_to or lease.lease_id for lease in leases if lease.outcome in open_ones]
    if not named:
        return {}
    rows = Resource.objects.filter(lease_id__in=named)
    return {row.lease_id: row for row in rows if row.lease_id is not None}


def addressee(*, organization: int, handle: str) -> Principal:
    """Raises UnknownAddressee, with handles that are close."""
    alive = Principal.objects.filter(organization_id=organization, retired_at=None)
    found = alive.filter(handle=handle).first()
    if found is None:
        handles = list(alive.order_by("pk").values_list("handle", flat=True)[:LOOKED_AT_FOR_SUGGESTIONS])
        raise UnknownAddressee(close_to(handle, handles))
    return found


def close_to(handle: str, handles: list[str]) -> list[str]:
    folded = {known.lower(): known for known in handles}
    return [folded[close] for close in difflib.get_close_matches(handle.lower(), folded, n=SUGGESTIONS)]


def offerable(*, organization: int, principal: int, lease_ids: Iterable[str]) -> list[Resource]:
    """The live leases of a principal that are named, each by its lease id or by its task's id.

    Raises NotFound when one is not, or not any more.
    """
    named = list(dict.fromkeys(lease_ids))
    tasks = [text for text in named if text.startswith("t_")]
    leases = [parse_lease_id(text) for text in named if not text.startswith("t_")]
    rows = list(
        Resource.objects.filter(organization_id=organization, principal=principal, expires_at__gt=clock.now())
        .filter(Q(lease_id__in=leases) | Q(resource_type="task", resource_id__in=tasks))
        .order_by("pk")
    )
    found = {row.lease_id for row in rows} | {row.resource_id for row in rows if row.resource_type == "task"}
    if not found.issuperset([*leases, *tasks]):
        raise NotFound("One of the leases has ended or is not yours.")
    return rows


def due(*, limit: int) -> list[int]:
    """Pending handoffs that are past accept_by."""
    late = Handoff.objects.filter(status=Status.PENDING, accept_by__lte=clock.now())
    return list(late.order_by("accept_by").values_list("pk", flat=True)[:limit])


@dataclass(frozen=True, slots=True)
class Statistics:
    """What became of the handoffs that are addressed to a principal."""

    counts: dict[str, int]
    mean_to_accept: timedelta | None
    longest_to_accept: timedelta | None
    #: The most frequent reasons of its rejections.
    reject_reasons: list[tuple[str, int]]


def statistics(*, principal: int) -> Statistics:
    received = Handoff.objects.filter(addressee=principal).order_by()
    counts = {status.value: 0 for status in Status}
    counts.update(received.values_list("status").annotate(Count("pk")))
    waited = ExpressionWrapper(F("resolved_at") - F("created_at"), output_field=DurationField())
    accepted = received.filter(status__in=[Status.ACCEPTED, Status.COMPLETED]).annotate(waited=waited)
    times = accepted.aggregate(mean=Avg("waited"), longest=Max("waited"))
    reasons = received.filter(status=Status.REJECTED).values_list("reason").annotate(times=Count("pk"))
    return Statistics(
        counts=counts,
        mean_to_accept=times["mean"],
        longest_to_accept=times["longest"],
        reject_reasons=list(reasons.order_by("-times", "reason")[:REASONS]),
    )


def _held_by(principal: int, at: datetime) -> Exists:
    """Whether a principal holds the resource that a checkpoint belongs to."""
    return Exists(
        Resource.objects.filter(
            organization_id=OuterRef("organization_id"),
            resource_type=OuterRef("resource_type"),
            resource_id=OuterRef("resource_id"),
            principal_id=principal,
            expires_at__gt=at,
        )
    )


def own_checkpoints(*, organization: int, principal: int) -> QuerySet[Checkpoint]:
    return Checkpoint.objects.filter(organization_id=organization, principal=principal, resource_type="")


def held_checkpoints(*, organization: int, principal: int, at: datetime) -> QuerySet[Checkpoint]:
    """Those of the resources that a principal holds."""
    fenced = Checkpoint.objects.filter(organization_id=organization).exclude(resource_type="")
    return fenced.filter(_held_by(principal, at))


def handed_checkpoints(*, organization: int, principal: int, at: datetime) -> QuerySet[Checkpoint]:
    """Those that a handoff names whose addressee a principal is, while it is pending or accepted."""
    open_handoffs = Handoff.objects.filter(checkpoint=OuterRef("pk"), addressee=principal).filter(
        Q(status=Status.ACCEPTED) | (Q(status=Status.PENDING) & (Q(accept_by=None) | Q(accept_by__gt=at)))
    )
    return Checkpoint.objects.filter(organization_id=organization).filter(Exists(open_handoffs))


def checkpoint(
    *,
    organization: int,
    principal: int,
    name: tuple[str, str] | None = None,
    checkpoint_id: str | None = None,
    at: datetime | None = None,
) -> Checkpoint:
    """The checkpoint that a subject and a kind mean to a principal, or an id.

    A name means the one of a resource that the principal holds, else its own, else one that was handed to it.
    Raises NotFound.
    """
    at = at or clock.now()
    where = Q(public_id=parse_checkpoint_id(checkpoint_id)) if checkpoint_id is not None else Q()
    if name is not None:
        where &= Q(subject_id=name[0], kind=name[1])
    for readable in (
        held_checkpoints(organization=organization, principal=principal, at=at),
        own_checkpoints(organization=organization, principal=principal),
        handed_checkpoints(organization=organization, principal=principal, at=at),
    ):
        alive = readable.filter(where).filter(Q(expires_at=None) | Q(expires_at__gt=at))
        found = alive.select_related("principal").order_by("-updated_at").first()
        if found is not None:
            return found
    raise NotFound


def nameable_checkpoint(*, organization: int, principal: int, checkpoint_id: str, subject_id: str) -> Checkpoint:
    """The checkpoint that a giver may name in a handoff: its own or its resource's, of the same subject.

    Raises NotFound.
    """
    found = checkpoint(organization=organization, principal=principal, checkpoint_id=checkpoint_id)
    at = clock.now()
    own = own_checkpoints(organization=organization, principal=principal).filter(pk=found.pk)
    held = held_checkpoints(organization=organization, principal=principal, at=at).filter(pk=found.pk)
    if found.subject_id != subject_id or not (own.exists() or held.exists()):
        raise NotFound
    return found


def version(*, of: Checkpoint, number: int | None = None) -> CheckpointVersion:
    """Raises NotFound for a version that is not kept."""
    found = of.versions.filter(version=of.version if number is None else number).select_related("written_by").first()
    if found is None:
        raise NotFound
    return found


def parse_handoff_id(text: str) -> uuid.UUID:
    return _parsed(text, "hoff_")


def parse_checkpoint_id(text: str) -> uuid.UUID:
    return _parsed(text, "ckpt_")


def _parsed(text: str, prefix: str) -> uuid.UUID:
    """Raises NotFound: a malformed id names nothing."""
    digits = text.removeprefix(prefix)
    if len(text) != len(prefix) + 32 or len(digits) != 32:
        raise NotFound
    try:
        return uuid.UUID(hex=digits)
    except ValueError:
        raise NotFound from None
