"""How pools, slots, requests and runs are shown, as far as the caller may see them."""

from datetime import datetime
from typing import Any

from leasehub.db import clock
from leasehub.identity.authentication import Caller
from leases.granting import Grant
from leases.models import Resource, public_lease_id
from pools import queries
from pools.estimates import Estimate
from pools.models import CommandRun, Pool, Request, Slot, public_request_id, public_run_id
from pools.poolfile import Declaration
from pools.queries import Held


def grants_of(request: Request) -> list[dict[str, Any]]:
    """The live leases that the request was granted, with tokens: for whom they are for alone."""
    declaration = Declaration(request.pool.declaration)
    fresh: list[tuple[Slot, Grant]] | None = getattr(request, "granted", None)
    if fresh is not None:
        return [
            grant_of(request, Held(slot, granted_lease(request, grant)), declaration, grant.at) for slot, grant in fresh
        ]
    at = clock.now()
    return [grant_of(request, held, declaration, at) for held in queries.held(request=request) if _lives(held, at)]


def granted_lease(request: Request, grant: Grant) -> Resource:
    """What the resource's row says since the grant."""
    return Resource(
        lease_id=grant.lease_id,
        last_token=grant.fencing_token,
        holder=request.holder,
        acquired_at=grant.at,
        expires_at=grant.expires_at,
        ttl_ms=request.ttl_seconds * 1000,
    )


def grant_of(request: Request, held: Held, declaration: Declaration, at: datetime) -> dict[str, Any]:
    slot, lease = held.slot, held.lease
    assert lease is not None and lease.lease_id and lease.expires_at and lease.ttl_ms and lease.acquired_at
    fields = declaration.grant_fields(slot)
    return {
        "request_id": public_request_id(request.request_id),
        "slot_id": slot.id_value,
        "kind": slot.kind,
        "mode": request.mode,
        "holder": lease.holder,
        "lease_id": public_lease_id(lease.lease_id),
        "fencing_token": lease.last_token,
        "expires_at": clock.iso(lease.expires_at),
        "expires_in_ms": clock.milliseconds_between(at, lease.expires_at),
        "ttl_minutes": minutes(lease.ttl_ms),
        "attrs": slot.attributes,
        **fields,
        "grant_fields": fields,
        "env": declaration.grant_environment(slot),
        "granted_at": clock.iso(request.ready_at or lease.acquired_at),
    }


def request_view(caller: Caller, request: Request, estimate: Estimate | None) -> dict[str, Any]:
    """One request. ``estimate`` for one that waits."""
    own = is_own(caller, request)
    return {
        "request_id": public_request_id(request.request_id),
        "pool": request.pool.name,
        "state": request.state,
        "position": estimate.position if estimate else None,
        "eta_ms": estimate.eta_ms if estimate else None,
        "eta_better_ms": estimate.eta_better_ms if estimate else None,
        "moving_avg_ms": estimate.moving_avg_ms if estimate else None,
        "grants": grants_of(request) if own and request.state == Request.State.READY else [],
        "ticket": request.ticket,
        "mode": request.mode,
        "principal": request.principal.handle,
        "holder": request.holder,
        "session": request.session,
        "count": request.count,
        "selector": request.selector,
        "ttl_minutes": minutes(request.ttl_seconds * 1000),
        "shell_prefix": Declaration(request.pool.declaration).shell_prefix,
        "slot_id": request.failed_slot,
        "error": request.error or None,
        "reason": request.reason or None,
        "created_at": clock.iso(request.created_at),
        "ready_at": iso(request.ready_at),
        "ended_at": iso(request.ended_at),
    }


def is_own(caller: Caller, request: Request) -> bool:
    return request.principal_id == caller.principal and caller.acts and caller.may_hold_as(request.holder)


def pool_line(pool: Pool, counts: dict[str, int]) -> dict[str, Any]:
    declaration = Declaration(pool.declaration)
    return {
        "pool": pool.name,
        "worker": pool.worker,
        "ttl_minutes": minutes(declaration.ttl_seconds * 1000),
        "moving_avg_ms": queries.moving_average(pool),
        "declared_at": clock.iso(pool.declared_at),
        **counts,
    }


def pool_view(caller: Caller, pool: Pool) -> dict[str, Any]:
    """A pool with its slots and its queue, in a handful of statements however large it is."""
    at: datetime = getattr(pool, "at", None) or clock.now()
    waiting = queries.queue(pool=pool, at=at)
    slots = queries.shown_slots(pool=pool)
    estimates = queries.estimates_by(
        pool=pool, positions=range(1, len(waiting) + 1), at=at, slots=[held.slot for held in slots]
    )
    return {
        **pool_line(pool, counts(slots, len(waiting), at)),
        "served": queries.served(pool),
        "declaration": {"name": pool.name, **pool.declaration} if caller.operates else None,
        "slots": [slot_view(caller, held, at) for held in slots],
        "queue": [queue_view(request, estimate) for request, estimate in zip(waiting, estimates, strict=True)],
    }


def counts(slots: list[Held], waiting: int, at: datetime) -> dict[str, int]:
    held = sum(1 for held in slots if _lives(held, at))
    unusable = sum(1 for held in slots if condition(held.slot) != "enabled")
    free = sum(
        1 for held in slots if condition(held.slot) == "enabled" and held.lease is None and not held.slot.is_busy
    )
    return {
        "slots_total": len(slots),
        "slots_held": held,
        "slots_free": free,
        "slots_out": unusable,
        "waiting": waiting,
    }


def slot_view(caller: Caller, held: Held, at: datetime) -> dict[str, Any]:
    slot, lease = held.slot, held.lease
    remaining = None if lease is None or lease.expires_at is None else clock.milliseconds_between(at, lease.expires_at)
    state = "free" if remaining is None else "held" if remaining > 0 else "unknown"
    shown = lease is not None and (caller.observes or lease.principal_id == caller.principal)
    return {
        "slot_id": slot.id_value,
        "kind": slot.kind,
        "attrs": slot.attributes,
        "state": state,
        "condition": condition(slot),
        #: A command runs or waits to: nothing is granted of it.
        "busy": slot.is_busy,
        "clean": slot.is_clean,
        "holder": lease.holder if shown and lease is not None and state == "held" else None,
        "principal": lease.principal.handle if shown and lease and lease.principal and state == "held" else None,
        "lease_id": public_lease_id(lease.lease_id) if shown and lease and lease.lease_id else None,
        "request_id": public_request_id(slot.request.request_id) if shown and slot.request else None,
        "expires_at": iso(lease.expires_at) if lease and state == "held" else None,
        "expires_in_ms": remaining if state == "held" else None,
        "failures": slot.failures,
        "error": slot.error or None,
    }


def condition(slot: Slot) -> str:
    if not slot.is_declared:
        return "removed"
    if slot.is_broken:
        return "broken"
    return "draining" if slot.is_draining else "enabled"


def queue_view(request: Request, estimate: Estimate) -> dict[str, Any]:
    return {
        "request_id": public_request_id(request.request_id),
        "holder": request.holder,
        "principal": request.principal.handle,
        "session": request.session,
        "mode": request.mode,
        "count": request.count,
        "selector": request.selector,
        "position": estimate.position,
        "eta_ms": estimate.eta_ms,
        "eta_better_ms": estimate.eta_better_ms,
        "queued_at": clock.iso(request.created_at),
        "seen_at": clock.iso(request.seen_at),
    }


def run_view(caller: Caller, slot: Slot, run: CommandRun | None) -> dict[str, Any]:
    """How commands that somebody asked for go. Without a run there was nothing to run, which is a success."""
    view = {
        "slot_id": slot.id_value,
        "run_id": public_run_id(run.run_id) if run else None,
        "purpose": run.purpose if run else None,
        "state": run.state if run else CommandRun.State.ENDED,
        "outcome": (run.outcome or None) if run else CommandRun.Outcome.PASSED,
        "failed_action": (run.failed_action or None) if run else None,
        "error": (run.error or None) if run else None,
        "condition": condition(slot),
        "ended_at": iso(run.ended_at) if run else None,
    }
    # What the commands printed is the operators': it may tell of other holders' work.
    return {**view, "results": run.results if run else []} if caller.operates else view


def minutes(milliseconds: int) -> int | float:
    exact = milliseconds / 60_000
    return int(exact) if exact.is_integer() else exact


def iso(at: datetime | None) -> str | None:
    return None if at is None else clock.iso(at)


def _lives(held: Held, at: datetime) -> bool:
    return held.lease is not None and held.lease.expires_at is not None and held.lease.expires_at > at
