"""What happens to slots and requests when a slot's lease ends or moves, in the same transaction."""

from datetime import datetime
from typing import Any

from django.db.models import Q

from leasehub.db import clock
from leasehub.db.locks import lock_rows
from leases.errors import Conflict
from leases.models import Resource
from leases.queries import ENDED_BY
from pools import endings
from pools.models import CommandRun, Pool, Slot
from pools.promotion import promote

#: Endings that tell how long a lease takes.
MEASURED = ("lease.released", "lease.force_released")
REMEMBERED_DURATIONS = 10


class SlotOwner:
    """Registered for leases of type slot (leases.owners)."""

    def lock(self, rows: list[Resource]) -> None:
        pools = Q(pk=None)
        for organization, name in {(row.organization_id, row.resource_id.partition("/")[0]) for row in rows}:
            pools |= Q(organization_id=organization, name=name)
        list(lock_rows(Pool.objects.filter(pools)))

    def event_of(self, event: str) -> str:
        """A release is the pool's event. Reaped and forced ends stay the lease's, as does a move: whoever looks for
        these looks for every lease's."""
        return "pool.released" if event == "lease.released" else event

    def ended(self, row: Resource, event: str, data: dict[str, Any]) -> None:
        slot = _slot_of(row)
        if slot is None or slot.lease_id != row.lease_id:
            return
        at = clock.now()
        pool = slot.pool
        if event in MEASURED and slot.is_clean and row.acquired_at is not None:
            _remember_duration(pool, row.acquired_at, at)
        Slot.objects.filter(pk=slot.pk).update(lease_id=None, granted_at=None, request=None, is_clean=False)
        _withdraw_commands(slot, row, at)
        if slot.request is not None:
            endings.lost_a_lease(pool, slot, slot.request, ENDED_BY.get(self.event_of(event), "released"), at=at)
        promote(pool, at=at)

    def moved(self, before: Resource, after: Resource) -> None:
        """Raises Conflict while the slot is not clean: nobody is handed one that is not."""
        slot = _slot_of(before)
        if slot is None or slot.lease_id != before.lease_id:
            return
        if not slot.is_clean:
            raise Conflict("The slot is still being prepared.", retry_after_ms=1000)
        Slot.objects.filter(pk=slot.pk).update(lease_id=after.lease_id, granted_at=after.acquired_at, request=None)
        if slot.request is not None:
            endings.lost_a_lease(slot.pool, slot, slot.request, "transferred", at=clock.now())


def _slot_of(row: Resource) -> Slot | None:
    pool, _, slot_id = row.resource_id.partition("/")
    return (
        Slot.objects.select_related("pool", "request")
        .filter(pool__organization_id=row.organization_id, pool__name=pool, slot_id=slot_id)
        .first()
    )


def _withdraw_commands(slot: Slot, row: Resource, at: datetime) -> None:
    """What no worker has begun for the lease is not needed any more. What runs is ended by its worker."""
    withdrawn = CommandRun.objects.filter(slot=slot, lease_id=row.lease_id, state=CommandRun.State.WAITING).update(
        state=CommandRun.State.ENDED, outcome=CommandRun.Outcome.INTERRUPTED, ended_at=at, error="the lease has ended"
    )
    if withdrawn:
        Slot.objects.filter(pk=slot.pk).update(is_busy=False)


def _remember_duration(pool: Pool, start: datetime, end: datetime) -> None:
    durations = [*pool.durations_ms, max(1, clock.milliseconds_between(start, end))][-REMEMBERED_DURATIONS:]
    Pool.objects.filter(pk=pool.pk).update(durations_ms=durations)
