"""Who is next: the one way in which a slot's capacity is handed out.

Every path that frees some calls ``promote`` in its own transaction, so that at every commit nothing more can be
granted (invariant 13). Order governs assignment, not readiness: a free slot goes to a request only if no earlier
open request that is still short of its count could use it.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import Q, QuerySet

from leasehub.db import clock
from leases import services as leases
from leases.errors import LeaseLost
from leases.granting import Grant
from leases.models import Resource
from pools import commands, endings, labels, plpgsql
from pools.models import RESOURCE_TYPE, CommandRun, Pool, Request, Slot, public_request_id, resource_id
from pools.poolfile import Declaration

State = Request.State


def promote(pool: Pool, *, at: datetime, arrived: Request | None = None) -> None:
    """Grants what can be granted, in the order of the tickets. The pool is locked.

    ``arrived``: all that has changed is this new request, which nobody with its selector waits before: then only
    those who wait for several slots can be in its way, and the rest of the queue need not be looked at.
    """
    passed: set[str] = set()
    kept: list[Mapping[str, Any]] = []
    while (head := _next(pool, passed, arrived)) is not None:
        if is_silent(pool, head, at):
            # Not dropped if it spoke up between the two looks: then it is looked at again.
            endings.drop(pool, head, "silent", at=at)
            continue
        missing = head.count - (Slot.objects.filter(request=head).count() if head.count > 1 else 0)
        usable = list(_usable(pool, head, kept)[:missing])
        if len(usable) == missing:
            _assign(pool, head, usable, at=at)
            if head.pk == (arrived.pk if arrived else None):
                return
        elif not head.selector:
            # It can use any slot: what is free is kept for it.
            return
        else:
            passed.add(head.selector_key)
            if usable:
                kept.append(head.selector)


def is_silent(pool: Pool, request: Request, at: datetime) -> bool:
    """A waiter that gave no sign of life for longer than the pool waits."""
    return request.seen_at < at - timedelta(milliseconds=pool.waiter_stale_ms)


def grantable(pool: Pool) -> QuerySet[Slot]:
    """The free slots, those that failed lately last."""
    return Slot.objects.filter(
        pool=pool, is_declared=True, is_draining=False, is_broken=False, is_busy=False, lease_id=None
    ).order_by("failures", "place")


def _next(pool: Pool, passed: set[str], arrived: Request | None) -> Request | None:
    waiting = Request.objects.filter(pool=pool, state=State.QUEUED)
    if passed:
        # Who has the selector of one that could not be served cannot be served either: all it could use is kept.
        waiting = waiting.exclude(selector_key__in=passed)
    if arrived is not None:
        waiting = waiting.filter(Q(count__gt=1) | Q(pk=arrived.pk))
    return waiting.order_by("ticket").first()


def _usable(pool: Pool, request: Request, kept: Sequence[Mapping[str, Any]]) -> QuerySet[Slot]:
    slots = labels.matching(grantable(pool), request.selector)
    for selector in kept:
        slots = labels.excluding(slots, selector)
    return slots


def goes_in_one_call(*, mode: str, count: int) -> bool:
    """Whether ``grant_in_one_call`` may do: for one slot, which nobody has to be told of."""
    return connection.vendor == "postgresql" and count == 1 and mode == Request.Mode.BLOCKING


def grant_in_one_call(pool: Pool, request: Request) -> bool:
    """What ``grant_at_once`` does, for a pool without commands; it is not locked, but as declared as a moment ago."""
    if Declaration(pool.declaration).granting_steps():
        return False
    granted = plpgsql.grant_at_once(pool, request)
    if granted is None:
        return False
    request.granted = [granted]  # type: ignore[attr-defined]
    return True


def grant_at_once(pool: Pool, request: Request, *, at: datetime) -> bool:
    """Makes a new request that need not wait, with its slots: what ``promote`` would do, in fewer steps.

    Nobody with its selector waits, nor for several slots; so no slot that is free now is kept for anybody.
    """
    steps = Declaration(pool.declaration).granting_steps()
    Pool.objects.filter(pk=pool.pk).update(last_ticket=request.ticket)
    waiting = Request.objects.filter(pool=pool, state=State.QUEUED)
    if waiting.filter(Q(selector_key=request.selector_key) | Q(count__gt=1)).exists():
        return False
    usable = list(_usable(pool, request, [])[: request.count])
    if len(usable) < request.count:
        return False
    request.state = State.PROVISIONING if steps else State.READY
    if not steps:
        request.ready_at = request.fetched_at = at
    request.save(force_insert=True)
    # Told at once with their tokens: nobody has to look them up again.
    request.granted = [  # type: ignore[attr-defined]
        (slot, _lease(pool, request, slot, steps, at=at)) for slot in usable
    ]
    if not steps:
        _tell(pool, request, at=at)
    return True


def _assign(pool: Pool, request: Request, slots: Sequence[Slot], *, at: datetime) -> None:
    steps = Declaration(pool.declaration).granting_steps()
    for slot in slots:
        _lease(pool, request, slot, steps, at=at)
    if steps:
        Request.objects.filter(pk=request.pk).update(state=State.PROVISIONING)
    else:
        _ready(pool, request, at=at)


def _lease(pool: Pool, request: Request, slot: Slot, steps: list[dict[str, str]], *, at: datetime) -> Grant:
    """Leases the slot for the request, and has it made clean first if the pool has commands for that."""
    named = {
        "request_id": public_request_id(request.request_id),
        "session": request.session,
        "mode": request.mode,
    }
    grant = leases.grant(
        organization=pool.organization_id,
        resource_type=RESOURCE_TYPE,
        resource_id=resource_id(pool.name, slot.slot_id),
        principal=request.principal_id,
        holder=request.holder,
        ttl_seconds=request.ttl_seconds,
        event="pool.granted",
        actor=endings.server(pool),
        payload=named,
        data={
            **named,
            "slot_id": slot.id_value,
            "ticket": request.ticket,
            "count": request.count,
            "state": State.PROVISIONING if steps else State.READY,
        },
    )
    Slot.objects.filter(pk=slot.pk).update(
        lease_id=grant.lease_id, granted_at=grant.at, request=request, is_clean=not steps
    )
    if steps:
        commands.order(pool, slot, CommandRun.Purpose.GRANT, steps, at=at, lease_id=grant.lease_id, request=request)
    return grant


def ready_if_clean(pool: Pool, request: Request, *, at: datetime) -> None:
    """Hands the request its grants once every slot of it is clean, each with its full ttl from now."""
    slots = list(Slot.objects.filter(request=request).order_by("pk"))
    if len(slots) < request.count or not all(slot.is_clean for slot in slots):
        return
    endings.lock_leases(slots)
    for slot in slots:
        assert slot.lease_id is not None
        try:
            leases.keep_alive(lease_id=slot.lease_id)
        except LeaseLost:
            # It ran out while the commands ran: no grant. Its end settles the request.
            for row in Resource.objects.filter(lease_id=slot.lease_id):
                leases.reap_owned(row)
            return
    # Behind those signs of life: a later one is the holder's own, and says that it has the grant.
    at = clock.now()
    # Without commands the grant's own event says that it is ready.
    endings.journal("pool.ready", pool, request, at=at, mode=request.mode)
    _ready(pool, request, at=at)


def _ready(pool: Pool, request: Request, *, at: datetime) -> None:
    Request.objects.filter(pk=request.pk).update(state=State.READY, ready_at=at, error="", failed_slot=None)
    _tell(pool, request, at=at)


def _tell(pool: Pool, request: Request, *, at: datetime) -> None:
    if request.mode == Request.Mode.ASYNC:
        commands.order_nudge(pool, request, at=at)
