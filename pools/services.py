"""The verbs of pools. Who is next is decided in pools.promotion, how things end in pools.endings.

Kept here and there (numbers of docs/architecture.md): one event per transition (8), a slot is handed out clean or
not at all (12), first come, first served (13).
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Max, QuerySet

from leasehub.db import clock
from leasehub.db.locks import locked_row
from leasehub.db.rows import known_row
from leasehub.errors import Forbidden, NotFound, QuotaExceeded
from leasehub.events.journal import record
from leasehub.identity.authentication import Caller
from leasehub.identity.models import Principal
from leases import queries as lease_queries
from leases import services as leases
from leases.errors import LeaseLost, StaleToken
from leases.granting import Grant
from leases.models import Resource
from leases.services import Actor
from pools import commands, endings, labels, poolfile, queries
from pools.errors import Busy, Saturated, Unsatisfiable
from pools.models import (
    RESOURCE_TYPE,
    CommandRun,
    Pool,
    Request,
    Slot,
    SlotLabel,
    resource_id,
)
from pools.poolfile import Declaration, DeclaredSlot, PoolFile
from pools.promotion import goes_in_one_call, grant_at_once, grant_in_one_call, is_silent, promote

MAX_COUNT = 100
# Beyond this nobody waits for their turn: something runs wild.
MAX_WAITING = 10_000
# The embedded server's own worker serves this one, even before it has said so.
EMBEDDED_QUEUE = "default"
SWEEP_BATCH = 200
# How often a broken slot's health is asked for.
RECOVER_SECONDS = 60
REPROVISION_HOLDER_TTL_SECONDS = 60


# --- declaring -------------------------------------------------------------------------------------------------


def declare(*, actor: Actor, name: str, document: Any) -> tuple[Pool, bool]:
    """Makes the pool what the pool file says, whatever it was before; whether it is new.

    A live lease is never touched: a removed slot drains, an added one is granted at once. Raises ValidationError,
    Forbidden (no commands here), Unsatisfiable (nobody would run them).
    """
    file = poolfile.parse(document, name=name)
    commands.check_may_declare(file.declaration)
    _check_is_served(file.declaration)
    with transaction.atomic():
        pool, is_new = _made(actor.organization, file)
        at = clock.now()
        added, removed, changed = _declare_slots(pool, file.slots)
        record(
            "pool.declared",
            at=at,
            organization=pool.organization_id,
            actor=actor.principal,
            key=actor.key,
            resource_type="pool",
            resource_id=pool.name,
            data={
                "slots": len(file.slots),
                "added": added,
                "removed": removed,
                "changed": changed,
                "declaration_sha256": queries.declaration_sha256(pool=pool),
            },
        )
        _drop_unsatisfiable(pool, at=at)
        promote(pool, at=at)
    return pool, is_new


def _check_is_served(declaration: Declaration) -> None:
    if not (settings.EMBEDDED and declaration.runs_commands) or declaration.worker == EMBEDDED_QUEUE:
        return
    if not queries.is_served(declaration.worker):
        raise Unsatisfiable(
            f'No worker serves the queue "{declaration.worker}": start one with'
            f' "leasehub worker --queues {declaration.worker}", or leave "worker" out.'
        )


def _made(organization: int, file: PoolFile) -> tuple[Pool, bool]:
    declaration = file.declaration
    members = {
        "declaration": dict(declaration.members),
        "worker": declaration.worker,
        "waiter_stale_ms": declaration.waiter_stale_ms,
        "claim_window_ms": declaration.claim_window_ms,
        "declared_at": clock.now(),
    }
    pool = Pool(organization_id=organization, name=file.name, **members)
    # Two first declarations at once: the second waits for the first and changes what it made.
    Pool.objects.bulk_create([pool], ignore_conflicts=True)
    before = locked_pool(organization, file.name)
    is_new = not Slot.objects.filter(pool=before).exists()
    Pool.objects.filter(pk=before.pk).update(**members)
    before.refresh_from_db()
    return before, is_new


def _declare_slots(pool: Pool, declared: tuple[DeclaredSlot, ...]) -> tuple[list[Any], list[Any], list[Any]]:
    """The ids of the slots that were added, removed and changed."""
    present = {slot.slot_id: slot for slot in Slot.objects.filter(pool=pool)}
    new = [_slot(pool, place, given) for place, given in enumerate(declared) if given.slot_id not in present]
    changed = [
        slot
        for place, given in enumerate(declared)
        if (slot := present.get(given.slot_id)) is not None and _redeclared(slot, place, given)
    ]
    names = {given.slot_id for given in declared}
    removed = [slot for slot in present.values() if slot.is_declared and slot.slot_id not in names]
    added = [slot for slot in changed if not slot.is_declared]
    for slot in added:
        slot.is_declared = True
    Slot.objects.bulk_create(new, batch_size=500)
    Slot.objects.bulk_update(changed, ["id_value", "kind", "place", "attributes", "is_declared"], batch_size=100)
    Slot.objects.filter(pk__in=[slot.pk for slot in removed]).update(is_declared=False)
    _label([*new, *changed])
    kept = [slot for slot in changed if slot not in added]
    return (
        [slot.id_value for slot in (*new, *added)],
        [slot.id_value for slot in removed],
        [slot.id_value for slot in kept],
    )


def _slot(pool: Pool, place: int, given: DeclaredSlot) -> Slot:
    return Slot(
        pool=pool,
        slot_id=given.slot_id,
        id_value=given.id_value,
        kind=given.kind,
        place=place,
        attributes=given.attributes,
    )


def _redeclared(slot: Slot, place: int, given: DeclaredSlot) -> bool:
    """Takes the new members over; whether anything has changed."""
    new = (given.id_value, given.kind, place, given.attributes)
    if slot.is_declared and (slot.id_value, slot.kind, slot.place, slot.attributes) == new:
        return False
    slot.id_value, slot.kind, slot.place, slot.attributes = new
    return True


def _label(slots: list[Slot]) -> None:
    SlotLabel.objects.filter(slot__in=[slot.pk for slot in slots]).delete()
    SlotLabel.objects.bulk_create(
        (
            SlotLabel(slot=slot, path=path, value=value)
            for slot in slots
            for path, value in labels.of(slot.id_value, slot.kind, slot.attributes).items()
        ),
        batch_size=500,
    )


def _drop_unsatisfiable(pool: Pool, *, at: datetime) -> None:
    """Those who wait for what the pool has no more: they learn it at once, not never."""
    waiting = Request.objects.filter(pool=pool, state=Request.State.QUEUED).order_by("ticket")
    possible: dict[str, int] = {}
    for request in waiting:
        if request.selector_key not in possible:
            possible[request.selector_key] = _declared(pool, request.selector).count()
        if possible[request.selector_key] < request.count:
            endings.drop(pool, request, "unsatisfiable", at=at)


def _declared(pool: Pool, selector: Mapping[str, Any]) -> QuerySet[Slot]:
    return labels.matching(Slot.objects.filter(pool=pool, is_declared=True), selector)


# --- asking for slots ------------------------------------------------------------------------------------------


def request(
    *,
    caller: Caller,
    pool: str,
    mode: str,
    holder: str | None = None,
    session: str | None = None,
    ttl_seconds: int | None = None,
    selector: Mapping[str, Any] | None = None,
    count: int = 1,
    no_wait: bool = False,
) -> Request:
    """Takes a place in the queue, and the slots at once when they are free and nobody is before.

    Raises Saturated (with no_wait), Unsatisfiable, NotFound, OutsideFence, ValidationError, QuotaExceeded.
    """
    as_holder = caller.fenced(holder)
    wanted = partial(
        Request,
        principal=Principal(pk=caller.principal, handle=caller.handle),
        key_id=caller.key,
        holder=as_holder,
        session=session or as_holder,
        mode=mode,
        no_wait=no_wait,
        count=count,
        selector=selector or {},
        selector_key=labels.key(selector or {}),
    )
    if goes_in_one_call(mode=mode, count=count):
        row = known_row(Pool, organization_id=caller.organization, name=pool)
        if row is not None:
            made = wanted(pool=row, ttl_seconds=_ttl_of(row, ttl_seconds))
            if grant_in_one_call(row, made):
                return made
    with transaction.atomic():
        row = locked_pool(caller.organization, pool)
        ttl_seconds = _ttl_of(row, ttl_seconds)
        at = clock.now()
        made = wanted(pool=row, ttl_seconds=ttl_seconds, ticket=row.last_ticket + 1, created_at=at, seen_at=at)
        if not grant_at_once(row, made, at=at):
            _queue(row, made, actor=Actor.of(caller), at=at)
        return made


def _ttl_of(pool: Pool, ttl_seconds: int | None) -> int:
    """How long a lease of the pool lasts for one that asks for so long, if it may have one of it at all."""
    declaration = Declaration(pool.declaration)
    ttl_seconds = declaration.ttl_seconds if ttl_seconds is None else ttl_seconds
    leases.check_ttl(ttl_seconds)
    commands.check_may_run(declaration)
    return ttl_seconds


def _queue(pool: Pool, made: Request, *, actor: Actor, at: datetime) -> None:
    """A place in the queue, unless what is dead in the pool was all that stood before. Raises Unsatisfiable,
    Saturated, QuotaExceeded."""
    _check_satisfiable(pool, made.selector, made.count)
    changed = _sweep(pool, at=at)
    made.save(force_insert=True)
    endings.journal(
        "pool.queued",
        pool,
        made,
        at=at,
        actor=actor,
        ticket=made.ticket,
        mode=made.mode,
        count=made.count,
        selector=made.selector or None,
    )
    _promote_arrival(pool, made, at=at, queue_changed=changed)
    made.refresh_from_db(fields=["state", "ready_at"])
    if made.state == Request.State.QUEUED:
        _check_may_wait(pool, made, at=at)
    if made.state == Request.State.READY:
        Request.objects.filter(pk=made.pk).update(fetched_at=at)


def _promote_arrival(pool: Pool, made: Request, *, at: datetime, queue_changed: bool) -> None:
    if queue_changed:
        return promote(pool, at=at)
    rivals = Request.objects.filter(pool=pool, state=Request.State.QUEUED, selector_key=made.selector_key)
    if not rivals.exclude(pk=made.pk).exists():
        promote(pool, at=at, arrived=made)
    return None


def _check_may_wait(pool: Pool, made: Request, *, at: datetime) -> None:
    """Raises Saturated or QuotaExceeded, which undoes the whole request."""
    position = queries.position(request=made)
    if made.no_wait:
        estimate = queries.estimate(pool=pool, position=position, at=at)
        raise Saturated(
            position=position,
            eta_ms=estimate.eta_ms,
            eta_better_ms=estimate.eta_better_ms,
            moving_avg_ms=estimate.moving_avg_ms,
        )
    if position > MAX_WAITING:
        raise QuotaExceeded(f"More than {MAX_WAITING} requests wait for this pool.")


def _check_satisfiable(pool: Pool, selector: Mapping[str, Any], count: int) -> None:
    if selector or count > 1:
        found = len(_declared(pool, selector).values_list("pk", flat=True)[:count])
    else:
        found = int(Slot.objects.filter(pool=pool, is_declared=True).exists())
    if found < count:
        raise Unsatisfiable(f"This pool has {found} such slots, not {count}.", found=found, count=count)


def seen(*, caller: Caller, request: Request, fetch: bool) -> Request:
    """The waiter's sign of life; with ``fetch``, its grants count as received. The request as it is now."""
    if request.principal_id != caller.principal or not caller.acts:
        return request
    at = clock.now()
    is_open = Request.objects.filter(pk=request.pk, state__in=Request.OPEN)
    if at - request.seen_at > timedelta(milliseconds=request.pool.waiter_stale_ms / 10):
        is_open.update(seen_at=at)
    if fetch and request.state == Request.State.READY and request.fetched_at is None:
        # Against the sweep: whichever comes first.
        is_open.filter(state=Request.State.READY, fetched_at=None).update(fetched_at=at)
    if request.state in Request.OPEN:
        request.refresh_from_db(fields=["state", "seen_at", "fetched_at", "reason", "error", "failed_slot", "ended_at"])
    return request


def cancel(*, caller: Caller, request: Request) -> Request:
    """Leaves the queue, or gives back what was granted: afterwards the request holds nothing.

    A request that has ended already stays as it is. Raises NotFound for another principal's, but for an operator,
    who drops it while it waits. Raises Busy when an operator means one that has its slots.
    """
    own = request.principal_id == caller.principal and caller.may_hold_as(request.holder)
    if not own and not caller.operates:
        raise NotFound
    with transaction.atomic():
        pool = locked_pool(caller.organization, request.pool.name)
        request.refresh_from_db()
        at = clock.now()
        if request.state in Request.OPEN:
            if own:
                endings.cancel(pool, request, at=at, actor=Actor.of(caller))
            else:
                _refuse_theft(request, at)
                endings.drop(pool, request, "operator", at=at, actor=Actor.of(caller))
            # Its going may let those behind it pass.
            promote(pool, at=at)
            request.refresh_from_db()
    return request


@transaction.atomic
def drop_waiter(*, actor: Actor, request_id: uuid.UUID) -> bool:
    """An operator ends a request that waits. Raises NotFound, Busy when it has its slots."""
    found = Request.objects.filter(pool__organization_id=actor.organization, request_id=request_id)
    seen_row = found.select_related("pool").first()
    if seen_row is None:
        raise NotFound
    pool = locked_pool(actor.organization, seen_row.pool.name)
    row = found.get()
    at = clock.now()
    _refuse_theft(row, at)
    dropped = row.state in Request.OPEN and endings.drop(pool, row, "operator", at=at, actor=actor)
    promote(pool, at=at)
    return dropped


def _refuse_theft(request: Request, at: datetime) -> None:
    """Raises Busy: a lease that lives is ended by a force-release alone, with a reason ("no theft", invariant 4)."""
    if request.state == Request.State.READY:
        leased = Slot.objects.filter(request=request).values("lease_id")
        last = Resource.objects.filter(lease_id__in=leased).aggregate(last=Max("expires_at"))["last"]
        raise Busy("It has its slots: force-release their leases, with a reason.", **_until(last, at))


# --- a holder's slot -------------------------------------------------------------------------------------------


def heartbeat(
    *, caller: Caller, pool: str, slot_id: str, fencing_token: int, ttl_seconds: int | None = None
) -> tuple[Slot, Grant]:
    """Raises LeaseLost, StaleToken, NotFound."""
    slot, lease_id = _acquisition(caller, pool, slot_id, fencing_token)
    return slot, leases.heartbeat(
        caller=caller, lease_id=lease_id, fencing_token=fencing_token, ttl_seconds=ttl_seconds
    )


def release(*, caller: Caller, pool: str, slot_id: str, fencing_token: int) -> tuple[Slot, leases.Ended]:
    """Raises LeaseLost when it has ended already, StaleToken, NotFound."""
    slot, lease_id = _acquisition(caller, pool, slot_id, fencing_token)
    try:
        return slot, leases.release(caller=caller, lease_id=lease_id, fencing_token=fencing_token)
    except NotFound:
        _raise_lost(caller, lease_id)
        raise


def reset(*, caller: Caller, pool: str, slot_id: str, fencing_token: int) -> tuple[Slot, CommandRun | None]:
    """Runs the slot's reset, then its health, while its holder keeps the lease; None when there is nothing to run.

    Raises LeaseLost, StaleToken, NotFound, Busy, Unsatisfiable.
    """
    _, lease_id = _acquisition(caller, pool, slot_id, fencing_token)
    leases.check_fence(caller, [lease_id])
    with transaction.atomic():
        row, slot = _locked_slot(caller.organization, pool, slot_id)
        lease = queries.lease_on(slot)
        at = clock.now()
        if lease is None or lease.lease_id != lease_id or lease.principal_id != caller.principal:
            _raise_lost(caller, lease_id)
            raise StaleToken
        assert lease.expires_at is not None
        if lease.expires_at <= at:
            raise LeaseLost(ended_by="expired", ended_at=lease.expires_at)
        _check_idle(slot)
        return slot, _run(row, slot, CommandRun.Purpose.RESET, lease_id=lease_id, actor=Actor.of(caller), at=at)


def _acquisition(caller: Caller, pool: str, slot_id: str, fencing_token: int) -> tuple[Slot, uuid.UUID]:
    """Which acquisition is meant, from the slot and the token.

    Raises StaleToken when the token was never the principal's own on this slot.
    """
    slot = queries.slot(pool=queries.pool(organization=caller.organization, name=pool), slot_id=slot_id)
    lease_id = queries.acquisition(caller=caller, slot=slot, fencing_token=fencing_token)
    if lease_id is None:
        raise StaleToken
    return slot, lease_id


def _raise_lost(caller: Caller, lease_id: uuid.UUID) -> None:
    ending = lease_queries.ending(organization=caller.organization, lease_id=lease_id)
    if ending is not None and ending.principal == caller.principal:
        raise LeaseLost(ended_by=ending.ended_by, ended_at=ending.ended_at)


# --- operators -------------------------------------------------------------------------------------------------


@transaction.atomic
def reprovision(
    *, actor: Actor, pool: str, slot_id: str, holder: str, ttl_seconds: int | None = None
) -> tuple[Slot, CommandRun | None]:
    """Resets a free slot under a lease of the operator's; passing repairs it. None when there is nothing to run.

    Raises Busy while it is leased or a command runs, NotFound, Unsatisfiable.
    """
    if ttl_seconds is not None:
        leases.check_ttl(ttl_seconds)
    row, slot = _locked_slot(actor.organization, pool, slot_id)
    _sweep(row, at=clock.now())
    slot.refresh_from_db()
    at = clock.now()
    _check_idle(slot)
    if slot.lease_id is not None:
        lease = queries.lease_on(slot)
        raise Busy("The slot is held.", **_until(lease.expires_at if lease else None, at))
    declaration = Declaration(row.declaration)
    commands.check_may_run(declaration)
    if not declaration.resetting_steps():
        endings.note_repaired(row, slot, at=at, actor=actor, by="reprovision")
        promote(row, at=at)
        return slot, None
    if actor.principal is None:
        raise Forbidden("Only a principal can hold the slot meanwhile.")
    grant = leases.grant(
        organization=row.organization_id,
        resource_type=RESOURCE_TYPE,
        resource_id=resource_id(row.name, slot.slot_id),
        principal=actor.principal,
        holder=holder,
        ttl_seconds=ttl_seconds or max(REPROVISION_HOLDER_TTL_SECONDS, settings.LEASEHUB_MIN_TTL_SECONDS),
        event="pool.granted",
        actor=actor,
        payload={"reprovision": True},
        data={"slot_id": slot.id_value, "purpose": "reprovision"},
    )
    Slot.objects.filter(pk=slot.pk).update(lease_id=grant.lease_id, granted_at=grant.at, is_clean=False)
    slot.refresh_from_db()
    return slot, _run(row, slot, CommandRun.Purpose.REPROVISION, lease_id=grant.lease_id, actor=actor, at=at)


@transaction.atomic
def health(*, actor: Actor, pool: str, slot_id: str) -> tuple[Slot, CommandRun | None]:
    """Asks for the slot's health, held or not; nothing is granted of it meanwhile. None without a health command.

    Raises Busy while a command runs, NotFound, Unsatisfiable.
    """
    row, slot = _locked_slot(actor.organization, pool, slot_id)
    _check_idle(slot)
    return slot, _run(row, slot, CommandRun.Purpose.HEALTH, lease_id=slot.lease_id, actor=actor, at=clock.now())


@transaction.atomic
def drain(*, actor: Actor, pool: str, slot_id: str) -> Slot:
    """No more grants of this slot; a live lease goes on. Raises NotFound."""
    row, slot = _locked_slot(actor.organization, pool, slot_id)
    if not slot.is_draining:
        Slot.objects.filter(pk=slot.pk).update(is_draining=True)
        endings.journal_slot("pool.slot_drained", row, slot, at=clock.now(), actor=actor)
    slot.refresh_from_db()
    return slot


@transaction.atomic
def undrain(*, actor: Actor, pool: str, slot_id: str) -> Slot:
    """Raises NotFound."""
    row, slot = _locked_slot(actor.organization, pool, slot_id)
    if slot.is_draining:
        at = clock.now()
        Slot.objects.filter(pk=slot.pk).update(is_draining=False)
        endings.journal_slot("pool.slot_undrained", row, slot, at=at, actor=actor)
        promote(row, at=at)
    slot.refresh_from_db()
    return slot


@transaction.atomic
def repair(*, actor: Actor, pool: str, slot_id: str) -> Slot:
    """An operator says that a broken slot works again. Raises NotFound."""
    row, slot = _locked_slot(actor.organization, pool, slot_id)
    at = clock.now()
    endings.note_repaired(row, slot, at=at, actor=actor, by="operator")
    promote(row, at=at)
    slot.refresh_from_db()
    return slot


def _run(
    pool: Pool, slot: Slot, purpose: CommandRun.Purpose, *, lease_id: uuid.UUID | None, actor: Actor, at: datetime
) -> CommandRun | None:
    declaration = Declaration(pool.declaration)
    is_health = purpose in (CommandRun.Purpose.HEALTH, CommandRun.Purpose.RECOVER)
    steps = declaration.health_steps() if is_health else declaration.resetting_steps()
    if not steps:
        return None
    commands.check_may_run(declaration)
    return commands.order(pool, slot, purpose, steps, at=at, lease_id=lease_id, actor=actor.principal)


def _check_idle(slot: Slot) -> None:
    if slot.is_busy:
        raise Busy("A command runs on the slot.", retry_after_ms=1000)


def _until(expires_at: datetime | None, at: datetime) -> dict[str, Any]:
    if expires_at is None:
        return {}
    return {
        "expires_at": clock.iso(expires_at),
        "retry_after_ms": max(0, clock.milliseconds_between(at, expires_at)),
    }


# --- sweeping --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pumped:
    #: (slot id, the late lease's holder)
    reaped: list[tuple[Any, str]]
    dropped: list[Request]


def pump(*, organization: int, pool: str) -> Pumped:
    """Tidies up and promotes, as the scan does every few seconds; harmless at any time. Raises NotFound."""
    with transaction.atomic():
        row = locked_pool(organization, pool)
        at = clock.now()
        reaped = _reap(row, at)
        dropped = _drop_silent(row, at=at) + _drop_unclaimed(row, at=at)
        _check_broken(row, at=at)
        promote(row, at=at)
    return Pumped(reaped, dropped)


def sweep_pools() -> int:
    """The scan: pumps the pools in which something is due, one a transaction. How many."""
    at = clock.now()
    due = [pool for pool in Pool.objects.order_by("pk") if _is_due(pool, at)]
    for pool in due:
        pump(organization=pool.organization_id, pool=pool.name)
    return len(due)


def _is_due(pool: Pool, at: datetime) -> bool:
    stale = at - timedelta(milliseconds=pool.waiter_stale_ms)
    return (
        Request.objects.filter(pool=pool, state=Request.State.QUEUED, seen_at__lt=stale).exists()
        or _unclaimed(pool, at).exists()
        or _due_leases(pool, at)[:1].exists()
        or _unchecked(pool, at).exists()
    )


def has_dead_leases(pool: Pool) -> bool:
    """Whether a lease on a slot is due for a look: a waiter does not wait for the reaper."""
    return _due_leases(pool, clock.now())[:1].exists()


def sweep(*, pool: Pool) -> None:
    """Ends what is dead in a pool and promotes."""
    with transaction.atomic():
        row = locked_pool(pool.organization_id, pool.name)
        _sweep(row, at=clock.now())


def _sweep(pool: Pool, *, at: datetime) -> bool:
    """Ends dead leases and silent waiters of a locked pool; whether that promoted others."""
    reaped = _reap(pool, at)
    dropped = _drop_silent(pool, at=at)
    if dropped:
        promote(pool, at=at)
    return bool(reaped or dropped)


def _reap(pool: Pool, at: datetime) -> list[tuple[Any, str]]:
    ids = dict[str, Any]()
    dead = [row for row in _due_leases(pool, at)[:SWEEP_BATCH] if leases.reap_owned(row)]
    if dead:
        names = [row.resource_id.partition("/")[2] for row in dead]
        ids = dict(Slot.objects.filter(pool=pool, slot_id__in=names).values_list("slot_id", "id_value"))
    return [(ids.get(row.resource_id.partition("/")[2]), row.holder or "") for row in dead]


def _due_leases(pool: Pool, at: datetime) -> QuerySet[Resource]:
    return Resource.objects.filter(
        lease_id__isnull=False,
        check_at__lte=at,
        resource_type=RESOURCE_TYPE,
        organization_id=pool.organization_id,
        resource_id__startswith=f"{pool.name}/",
    ).order_by("check_at")


def _drop_silent(pool: Pool, *, at: datetime) -> list[Request]:
    stale = at - timedelta(milliseconds=pool.waiter_stale_ms)
    silent = Request.objects.filter(pool=pool, state=Request.State.QUEUED, seen_at__lt=stale).order_by("ticket")
    dropped = [
        request
        for request in silent[:SWEEP_BATCH]
        if is_silent(pool, request, at) and endings.drop(pool, request, "silent", at=at)
    ]
    for request in dropped:
        request.refresh_from_db()
    return dropped


def _unclaimed(pool: Pool, at: datetime) -> QuerySet[Request]:
    """Grants that nobody fetched in the claim window. A blocking waiter polls: its silence is enough."""
    window = at - timedelta(milliseconds=pool.claim_window_ms)
    silence = at - timedelta(milliseconds=min(pool.waiter_stale_ms, pool.claim_window_ms))
    ready = Request.objects.filter(pool=pool, state=Request.State.READY, fetched_at=None)
    return ready.filter(mode=Request.Mode.ASYNC, ready_at__lt=window) | ready.filter(
        mode=Request.Mode.BLOCKING, ready_at__lt=silence, seen_at__lt=silence
    )


def _drop_unclaimed(pool: Pool, *, at: datetime) -> list[Request]:
    dropped = []
    for request in _unclaimed(pool, at)[:SWEEP_BATCH]:
        # Against a waiter that fetches at this moment: whichever comes first.
        marked = Request.objects.filter(pk=request.pk, state=Request.State.READY, fetched_at=None).update(fetched_at=at)
        # Whoever beats has the grant, from wherever: now it counts as fetched.
        if marked and not _is_kept(request) and endings.drop(pool, request, "unclaimed", at=at):
            request.refresh_from_db()
            dropped.append(request)
    return dropped


def _is_kept(request: Request) -> bool:
    """Whether a grant was heartbeaten since it was ready. Locks its leases, so that none is beaten before they end."""
    ready_at = request.ready_at or request.created_at
    return any(
        # Granting it was its first sign of life, a moment after the pool's clock was read.
        lease.heartbeat_at and lease.acquired_at and lease.heartbeat_at > max(ready_at, lease.acquired_at)
        for lease in endings.locked_leases(list(Slot.objects.filter(request=request)))
    )


def _unchecked(pool: Pool, at: datetime) -> QuerySet[Slot]:
    return Slot.objects.filter(
        pool=pool,
        is_broken=True,
        is_declared=True,
        is_busy=False,
        lease_id=None,
        checked_at__lt=at - timedelta(seconds=RECOVER_SECONDS),
    )


def _check_broken(pool: Pool, *, at: datetime) -> None:
    """Asks for the health of broken slots: one that passes again is repaired."""
    steps = Declaration(pool.declaration).health_steps()
    if not steps or not settings.LEASEHUB_COMMANDS:
        Slot.objects.filter(pk__in=list(_unchecked(pool, at).values_list("pk", flat=True))).update(checked_at=at)
        return
    for slot in _unchecked(pool, at)[:SWEEP_BATCH]:
        Slot.objects.filter(pk=slot.pk).update(checked_at=at)
        commands.order(pool, slot, CommandRun.Purpose.RECOVER, steps, at=at)


# --- locking ---------------------------------------------------------------------------------------------------


def locked_pool(organization: int, name: str) -> Pool:
    """The pool's row, locked: nothing else of the pool changes meanwhile. Raises NotFound."""
    found = locked_row(Pool, organization_id=organization, name=name)
    if found is None:
        raise NotFound
    return found


def _locked_slot(organization: int, pool: str, slot_id: str) -> tuple[Pool, Slot]:
    row = locked_pool(organization, pool)
    return row, queries.slot(pool=row, slot_id=slot_id)
