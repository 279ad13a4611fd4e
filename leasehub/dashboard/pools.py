"""Reads of the pools' pages, and where things stand in their pictures."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count, Q, QuerySet

from leasehub.templatetags.times import span
from pools import queries
from pools.answers import condition
from pools.estimates import Estimate
from pools.models import Pool, Request, Slot

#: A pool with more slots is drawn as a bar.
MOST_CELLS = 1000
ACROSS = 40
CELL = 10
PIXELS = 20
#: What comes of a slot for somebody who waits, in the order in which it is drawn.
STATES = ("free", "preparing", "leased", "draining", "broken")
WIDTH = 1000
HEIGHT = 100
BAR = 10
USABLE = Q(is_declared=True, is_draining=False, is_broken=False)
COUNTS: Mapping[str, Q] = {
    "free": USABLE & Q(lease_id=None, is_busy=False),
    "preparing": USABLE & (Q(is_busy=True) | Q(lease_id__isnull=False, is_clean=False)),
    "leased": USABLE & Q(lease_id__isnull=False, is_clean=True, is_busy=False),
    "draining": ~USABLE & (Q(is_declared=False) | Q(is_broken=False)),
    "broken": Q(is_declared=True, is_broken=True),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """A slot in the picture of its pool."""

    slot_id: str
    state: str
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class Picture:
    cells: list[Cell]
    width: int
    height: int
    #: Of the screen, in pixels.
    shown_width: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a bar that is WIDTH wide."""

    name: str
    count: int
    x: int
    width: int


@dataclass(frozen=True, slots=True)
class Duration:
    """How long one of the last leases took, drawn up to HEIGHT."""

    text: str
    x: int
    y: int
    height: int


def shown(pool: Pool) -> QuerySet[Slot]:
    """The slots that the pool file names, and those that are on their way out."""
    return Slot.objects.filter(pool=pool).exclude(is_declared=False, lease_id=None, is_busy=False)


def drawn(pool: Pool) -> list[Slot] | None:
    """The slots without what may be large; None when there are more than MOST_CELLS."""
    narrow = shown(pool).defer("attributes", "error")
    found = list(narrow.order_by("place", "pk")[: MOST_CELLS + 1])
    return found if len(found) <= MOST_CELLS else None


def state_of(slot: Slot) -> str:
    found = condition(slot)
    if found != "enabled":
        return "broken" if found == "broken" else "draining"
    if slot.is_busy or (slot.lease_id is not None and not slot.is_clean):
        return "preparing"
    return "free" if slot.lease_id is None else "leased"


def counts(pool: Pool, slots: list[Slot] | None) -> dict[str, int]:
    """How many slots are in each state."""
    if slots is None:
        return shown(pool).aggregate(**{name: Count("pk", filter=where) for name, where in COUNTS.items()})
    found = Counter(map(state_of, slots))
    return {name: found[name] for name in STATES}


def picture(slots: list[Slot]) -> Picture:
    across = min(ACROSS, max(1, len(slots)))
    cells = [
        Cell(slot.slot_id, state_of(slot), place % across * CELL, place // across * CELL)
        for place, slot in enumerate(slots)
    ]
    return Picture(cells, across * CELL, math.ceil(len(slots) / across) * CELL, across * PIXELS)


def stretches(counted: Mapping[str, int]) -> list[Stretch]:
    """The parts of a bar; the least of them can still be seen."""
    total = max(1, sum(counted.values()))
    found: list[Stretch] = []
    x = 0
    for name, count in counted.items():
        width = round(count / total * WIDTH) if count else 0
        if count:
            found.append(Stretch(name, count, x, max(width, 6)))
        x += width
    return found


def durations(pool: Pool) -> list[Duration]:
    longest = max(pool.durations_ms, default=1)
    heights = [max(4, round(took / longest * HEIGHT)) for took in pool.durations_ms]
    return [
        Duration(span(took / 1000), number * BAR, HEIGHT - height, height)
        for number, (took, height) in enumerate(zip(pool.durations_ms, heights, strict=True))
    ]


def waiting(pool: Pool, *, at: datetime) -> QuerySet[Request]:
    """Who waits, in order, but for those that have gone silent."""
    silent = at - timedelta(milliseconds=pool.waiter_stale_ms)
    found = Request.objects.filter(pool=pool, state=Request.State.QUEUED, seen_at__gte=silent)
    return found.select_related("principal").order_by("ticket")


def estimates(pool: Pool, positions: range, *, at: datetime, slots: list[Slot] | None) -> list[Estimate]:
    """Of a pool that is too large to be drawn the contract's figure alone."""
    if slots is not None:
        return queries.estimates_by(pool=pool, positions=positions, at=at, slots=slots)
    average = queries.moving_average(pool)
    return [Estimate(place, place * average, place * average, average) for place in positions]
