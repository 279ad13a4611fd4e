"""Reads of pools, through the caller's eyes."""

import hashlib
import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count, Exists, OuterRef, Q, QuerySet

from leasehub.db import clock
from leasehub.db.clock import DatabaseNow
from leasehub.errors import NotFound
from leasehub.events.models import Event
from leasehub.identity.authentication import Caller
from leases.models import Resource
from pools import promotion
from pools.estimates import Estimate, better_etas_ms, moving_average_ms
from pools.models import RESOURCE_TYPE, CommandRun, Pool, Request, ServedQueue, Slot, resource_id
from pools.poolfile import Declaration

#: A worker that was not seen for so long serves no queue any more.
SERVED_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Held:
    """A slot and the lease on it, if it lives or ran out unreaped."""

    slot: Slot
    lease: Resource | None


def pools(*, organization: int) -> QuerySet[Pool]:
    return Pool.objects.filter(organization_id=organization)


def pool(*, organization: int, name: str) -> Pool:
    """Raises NotFound."""
    found = pools(organization=organization).filter(name=name).first()
    if found is None:
        raise NotFound
    return found


def pool_on_show(*, organization: int, name: str) -> Pool:
    """The pool, with ``at`` (database time) and ``is_served`` in the same look. Raises NotFound."""
    alive = ServedQueue.objects.filter(
        worker=OuterRef("worker"), seen_at__gt=DatabaseNow() - timedelta(seconds=SERVED_SECONDS)
    )
    found = (
        pools(organization=organization).filter(name=name).annotate(at=DatabaseNow(), is_served=Exists(alive)).first()
    )
    if found is None:
        raise NotFound
    return found


def declaration_sha256(*, pool: Pool) -> str:
    """Of the pool file as it stands in the rows: the event of a declaration carries it instead of the whole."""
    slots = Slot.objects.filter(pool=pool, is_declared=True).order_by("place", "pk")
    declared = {
        "declaration": pool.declaration,
        "slots": list(slots.values_list("slot_id", "id_value", "kind", "attributes")),
    }
    return hashlib.sha256(json.dumps(declared, sort_keys=True).encode()).hexdigest()


def slot(*, pool: Pool, slot_id: str) -> Slot:
    """A slot by its id, or a numeric one by an equal number (01 is 1). Raises NotFound."""
    found = Slot.objects.filter(pool=pool, slot_id=slot_id).first()
    if found is None and (number := _number_text(slot_id)) is not None:
        found = Slot.objects.filter(pool=pool, slot_id=number).first()
        found = None if found is None or isinstance(found.id_value, str) else found
    if found is None:
        raise NotFound("This pool has no such slot.")
    return found


def requests(*, caller: Caller, pool: Pool) -> QuerySet[Request]:
    """RING-1 sees the pool's requests, other keys their principal's own."""
    found = Request.objects.filter(pool=pool).select_related("pool", "principal")
    return found if caller.observes else found.filter(principal=caller.principal)


def request(*, caller: Caller, pool: str, request_id: str) -> Request:
    """Raises NotFound."""
    found = (
        requests(caller=caller, pool=_pool_or_none(caller, pool))
        .filter(request_id=parse_id(request_id, "req_"))
        .first()
    )
    if found is None:
        raise NotFound
    return found


def _pool_or_none(caller: Caller, name: str) -> Pool:
    return pool(organization=caller.organization, name=name)


def run(*, caller: Caller, pool: str, run_id: str) -> CommandRun:
    """Operators see every run, others those they asked for. Raises NotFound."""
    found = CommandRun.objects.filter(
        pool__organization_id=caller.organization, pool__name=pool, run_id=parse_id(run_id, "run_")
    ).select_related("pool", "slot")
    if not caller.operates:
        found = found.filter(actor=caller.principal)
    row = found.first()
    if row is None:
        raise NotFound
    return row


def held(*, request: Request) -> list[Held]:
    """The request's slots with their leases, in the order of the pool file."""
    slots = list(Slot.objects.filter(request=request).order_by("place", "pk"))
    return with_leases(slots)


def with_leases(slots: Sequence[Slot]) -> list[Held]:
    wanted = [slot.lease_id for slot in slots if slot.lease_id is not None]
    leases = {row.lease_id: row for row in Resource.objects.filter(lease_id__in=wanted).select_related("principal")}
    return [Held(slot, leases.get(slot.lease_id) if slot.lease_id else None) for slot in slots]


def shown_slots(*, pool: Pool) -> list[Held]:
    """Every slot that the pool file names, and those that are on their way out."""
    slots = list(Slot.objects.filter(pool=pool).select_related("request").order_by("place", "pk"))
    names = {
        row.lease_id: row
        for row in Resource.objects.filter(
            organization_id=pool.organization_id,
            resource_type=RESOURCE_TYPE,
            resource_id__startswith=f"{pool.name}/",
            lease_id__isnull=False,
        ).select_related("principal")
    }
    return [
        Held(slot, names.get(slot.lease_id) if slot.lease_id else None)
        for slot in slots
        if slot.is_declared or slot.lease_id is not None or slot.is_busy
    ]


def queue(*, pool: Pool, at: datetime) -> list[Request]:
    """Who waits, in order, but for those that have gone silent."""
    silent = at - timedelta(milliseconds=pool.waiter_stale_ms)
    return list(
        Request.objects.filter(pool=pool, state=Request.State.QUEUED, seen_at__gte=silent)
        .select_related("principal")
        .order_by("ticket")
    )


def position(*, request: Request) -> int:
    """1-based, among those who wait."""
    return (
        Request.objects.filter(pool=request.pool_id, state=Request.State.QUEUED, ticket__lte=request.ticket).count()
        or 1
    )


def moving_average(pool: Pool) -> int:
    return moving_average_ms(pool.durations_ms, seed_ms=Declaration(pool.declaration).moving_avg_seed_ms)


def counts(*, pools: Sequence[Pool]) -> dict[int, dict[str, int]]:
    """How many slots are there and in what state, and how many wait, by pool."""
    usable = Q(is_declared=True, is_draining=False, is_broken=False)
    rows = (
        Slot.objects.filter(pool__in=pools)
        .exclude(is_declared=False, lease_id=None, is_busy=False)
        .values("pool")
        .annotate(
            slots_total=Count("pk"),
            slots_held=Count("pk", filter=Q(lease_id__isnull=False)),
            slots_free=Count("pk", filter=usable & Q(lease_id=None, is_busy=False)),
            slots_out=Count("pk", filter=~usable),
        )
    )
    waiting = dict(
        Request.objects.filter(pool__in=pools, state=Request.State.QUEUED).values_list("pool").annotate(Count("pk"))
    )
    none = {"slots_total": 0, "slots_held": 0, "slots_free": 0, "slots_out": 0}
    found = {pool: dict(zip(none, figures, strict=True)) for pool, *figures in rows.values_list("pool", *none)}
    return {pool.pk: {**found.get(pool.pk, none), "waiting": waiting.get(pool.pk, 0)} for pool in pools}


def estimate(*, pool: Pool, position: int, at: datetime) -> Estimate:
    return estimates(pool=pool, positions=[position], at=at)[0]


def estimates(*, pool: Pool, positions: Sequence[int], at: datetime) -> list[Estimate]:
    """How long places in the queue are likely to take, by one look at the slots."""
    last = max(positions, default=0)
    # No more leases can matter than there are places, and the oldest end first.
    begun = (
        Slot.objects.filter(pool=pool, lease_id__isnull=False, is_declared=True, is_draining=False, is_broken=False)
        .order_by("granted_at")
        .values_list("granted_at", flat=True)[: last or 1]
    )
    free = promotion.grantable(pool).order_by().values_list("pk", flat=True)[: last or 1]
    return _estimates(pool, positions, at, begun=[start for start in begun if start is not None], free=len(free))


def estimates_by(*, pool: Pool, positions: Sequence[int], at: datetime, slots: Iterable[Slot]) -> list[Estimate]:
    """The same from slots that have been read already."""
    usable = [slot for slot in slots if slot.is_declared and not slot.is_draining and not slot.is_broken]
    begun = [slot.granted_at for slot in usable if slot.granted_at is not None]
    free = sum(1 for slot in usable if slot.lease_id is None and not slot.is_busy)
    return _estimates(pool, positions, at, begun=begun, free=free)


def _estimates(
    pool: Pool, positions: Sequence[int], at: datetime, *, begun: Sequence[datetime], free: int
) -> list[Estimate]:
    average = moving_average(pool)
    etas = better_etas_ms(
        max(positions, default=0),
        free=free,
        used_ms=[clock.milliseconds_between(start, at) for start in begun],
        durations_ms=pool.durations_ms,
        average_ms=average,
    )
    return [Estimate(place, place * average, round(etas[place - 1]), average) for place in positions]


def acquisition(*, caller: Caller, slot: Slot, fencing_token: int) -> uuid.UUID | None:
    """The principal's own lease on the slot that had this token, whether it lives or not."""
    row = _resource(slot)
    if row is not None and row.lease_id is not None and row.last_token == fencing_token:
        return row.lease_id if row.principal_id == caller.principal else None
    return (
        Event.objects.filter(
            organization_id=caller.organization,
            resource_type=RESOURCE_TYPE,
            resource_id=resource_id(slot.pool.name, slot.slot_id),
            fencing_token=fencing_token,
            principal=caller.principal,
            lease_id__isnull=False,
        )
        .values_list("lease_id", flat=True)
        .first()
    )


def lease_on(slot: Slot) -> Resource | None:
    row = _resource(slot)
    return row if row is not None and row.lease_id is not None else None


def is_served(worker: str) -> bool:
    """Whether a live worker serves this Celery queue."""
    return ServedQueue.objects.filter(
        worker=worker, seen_at__gt=clock.now() - timedelta(seconds=SERVED_SECONDS)
    ).exists()


def served(pool: Pool) -> bool | None:
    """Whether a live worker runs the pool's commands; None when it has none."""
    if not Declaration(pool.declaration).runs_commands:
        return None
    known: bool | None = getattr(pool, "is_served", None)
    return is_served(pool.worker) if known is None else known


def parse_id(text: str, prefix: str) -> uuid.UUID:
    """Raises NotFound: a malformed id names nothing."""
    digits = text.removeprefix(prefix)
    if len(text) != len(prefix) + 32 or len(digits) != 32:
        raise NotFound
    try:
        return uuid.UUID(hex=digits)
    except ValueError:
        raise NotFound from None


def _resource(slot: Slot) -> Resource | None:
    return Resource.objects.filter(
        organization_id=slot.pool.organization_id,
        resource_type=RESOURCE_TYPE,
        resource_id=resource_id(slot.pool.name, slot.slot_id),
    ).first()


def _number_text(text: str) -> str | None:
    from pools.templates import number_text

    try:
        number = float(text)
    except ValueError:
        return None
    return number_text(number) if abs(number) < 1e15 else None
