"""How a request ends, or goes back to the queue, and how the server takes a slot back. The pool is locked throughout.

Taking a slot back ends its lease; ``pools.ownership`` is told of that, frees the slot and promotes.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from leasehub.db import clock
from leasehub.db.locks import lock_rows
from leasehub.events.journal import record
from leases.endings import end
from leases.models import Resource
from leases.services import Actor
from pools.commands import order_nudge
from pools.models import RESOURCE_TYPE, CommandRun, Pool, Request, Slot, public_request_id, resource_id

State = Request.State

#: Failures in a row that break a slot, and failures that a request puts up with.
MAX_FAILURES = 3


def server(pool: Pool) -> Actor:
    """What nobody asked for is done by the server itself."""
    return Actor(pool.organization_id, None)


def drop(pool: Pool, request: Request, reason: str, *, at: datetime, actor: Actor | None = None) -> bool:
    """Ends an open request that nobody wants to, or can, be served any more."""
    return _close(pool, request, State.DROPPED, reason, at=at, actor=actor or server(pool))


def cancel(pool: Pool, request: Request, *, at: datetime, actor: Actor) -> bool:
    """Ends an open request by its principal's wish: afterwards it holds nothing."""
    return _close(pool, request, State.CANCELLED, "cancelled", at=at, actor=actor)


def _close(pool: Pool, request: Request, state: State, reason: str, *, at: datetime, actor: Actor) -> bool:
    silent = {"seen_at": request.seen_at} if reason == "silent" else {}
    # A sign of life that came meanwhile keeps the waiter in the queue.
    closed = Request.objects.filter(pk=request.pk, state=request.state, **silent).update(
        state=state, reason=reason, ended_at=at
    )
    if not closed:
        return False
    journal(
        "pool.dropped",
        pool,
        request,
        at=at,
        actor=actor,
        state=state,
        reason=reason,
        was=request.state,
        waited_ms=clock.milliseconds_between(request.created_at, at),
    )
    take_back_all(pool, request, reason=reason, actor=actor)
    if state != State.CANCELLED:
        order_nudge(pool, request, at=at)
    return True


def take_back_all(pool: Pool, request: Request, *, reason: str, actor: Actor) -> None:
    slots = list(Slot.objects.filter(request=request).order_by("pk"))
    lock_leases(slots)
    for slot in slots:
        take_back(slot, "pool.released", actor=actor, request_id=public_request_id(request.request_id), reason=reason)


def lock_leases(slots: Sequence[Slot]) -> None:
    """The resource rows of several slots, in the order of their ids; whoever ends one alone locks it then."""
    if len(slots) > 1:
        locked_leases(slots)


def locked_leases(slots: Sequence[Slot]) -> list[Resource]:
    """The resource rows of slots, in the order of their ids, as a holder's heartbeats lock them."""
    return list(lock_rows(Resource.objects.filter(lease_id__in=[slot.lease_id for slot in slots])))


def take_back(slot: Slot, event: str, *, actor: Actor, **data: Any) -> None:
    """Ends the lease on a slot, for whomever it was."""
    # Parted first, so that the end of the lease is not taken for the request's own loss.
    Slot.objects.filter(pk=slot.pk).update(request=None)
    row = lock_rows(Resource.objects.filter(lease_id=slot.lease_id)).first()
    if row is None or row.expires_at is None or row.acquired_at is None:
        return
    at = clock.now()
    data = {"was_expired": row.expires_at <= at, "acquired_at": clock.iso(row.acquired_at), **data}
    end(row, event, at=at, actor=actor.principal, key=actor.key, data=data)


def lost_a_lease(pool: Pool, slot: Slot, request: Request, ended_by: str, *, at: datetime) -> None:
    """A lease of the request has ended, and the event of that is written."""
    if request.state == State.READY:
        if not Slot.objects.filter(request=request).exists():
            Request.objects.filter(pk=request.pk).update(state=State.LEASE_LOST, reason=ended_by, ended_at=at)
        return
    if request.state not in Request.UNCLEAN:
        return
    Request.objects.filter(pk=request.pk).update(
        state=State.LEASE_LOST_DURING_RESET,
        reason=ended_by,
        ended_at=at,
        error=f"lease lost during reset ({ended_by})",
        failed_slot=slot.id_value,
    )
    take_back_all(pool, request, reason="lease_lost_during_reset", actor=server(pool))
    order_nudge(pool, request, at=at)


def grant_failed(pool: Pool, slot: Slot, request: Request, run: CommandRun, *, at: datetime) -> None:
    """A command of a grant failed: the request goes back with its ticket, or has failed once too often.

    An interrupted run is nobody's failure.
    """
    counted = run.outcome != CommandRun.Outcome.INTERRUPTED
    failures = request.failures + counted
    final = failures >= MAX_FAILURES
    Request.objects.filter(pk=request.pk).update(
        state=_failed_state(run) if final else State.QUEUED,
        failures=failures,
        error=run.error,
        failed_slot=slot.id_value,
        ended_at=at if final else None,
    )
    if counted:
        note_failure(pool, slot, run.error, at=at)
    take_back(
        slot,
        "pool.grant_failed",
        actor=server(pool),
        request_id=public_request_id(request.request_id),
        slot_id=slot.id_value,
        action=run.failed_action,
        error=run.error,
        outcome=run.outcome,
        final=final,
        state=_failed_state(run) if final else State.QUEUED,
    )
    request.refresh_from_db()
    if request.no_wait and request.state == State.QUEUED:
        # It did not want to wait, and there was no other slot to try.
        final = _close(pool, request, _failed_state(run), "no_other_slot", at=at, actor=server(pool))
    elif final:
        take_back_all(pool, request, reason=request.state, actor=server(pool))
        order_nudge(pool, request, at=at)


def _failed_state(run: CommandRun) -> State:
    return State.HEALTH_FAILED if run.failed_action == "health" else State.RESET_FAILED


def note_failure(pool: Pool, slot: Slot, error: str, *, at: datetime) -> None:
    """Counts a failed command; the third in a row breaks the slot."""
    failures = min(slot.failures + 1, 1000)
    broken = failures >= MAX_FAILURES and not slot.is_broken
    Slot.objects.filter(pk=slot.pk).update(
        failures=failures, error=error[:4000], is_broken=slot.is_broken or broken, checked_at=at
    )
    if broken:
        journal_slot("pool.slot_broken", pool, slot, at=at, failures=failures, error=error)


def note_repaired(pool: Pool, slot: Slot, *, at: datetime, actor: Actor, by: str) -> None:
    """The slot works again: it may be granted."""
    Slot.objects.filter(pk=slot.pk).update(failures=0, error="", is_broken=False)
    if slot.is_broken:
        journal_slot("pool.slot_repaired", pool, slot, at=at, actor=actor, by=by)


def journal(event: str, pool: Pool, request: Request, *, at: datetime, actor: Actor | None = None, **data: Any) -> None:
    """An event of a request, about its pool."""
    record(
        event,
        at=at,
        organization=pool.organization_id,
        actor=actor.principal if actor else None,
        key=actor.key if actor else None,
        resource_type="pool",
        resource_id=pool.name,
        principal=request.principal_id,
        holder=request.holder,
        data={"request_id": public_request_id(request.request_id), "session": request.session, **data},
    )


def journal_slot(event: str, pool: Pool, slot: Slot, *, at: datetime, actor: Actor | None = None, **data: Any) -> None:
    record(
        event,
        at=at,
        organization=pool.organization_id,
        actor=actor.principal if actor else None,
        key=actor.key if actor else None,
        resource_type=RESOURCE_TYPE,
        resource_id=resource_id(pool.name, slot.slot_id),
        data={"slot_id": slot.id_value, **data},
    )
