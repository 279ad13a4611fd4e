"""How long a place in the queue is likely to take."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Estimate:
    position: int
    #: Position times the moving average: the contract's figure.
    eta_ms: int
    #: Counts the slots, and the time that the running leases have used already.
    eta_better_ms: int
    moving_avg_ms: int


def moving_average_ms(durations_ms: Sequence[int], *, seed_ms: int) -> int:
    return (2 * sum(durations_ms) + len(durations_ms)) // (2 * len(durations_ms)) if durations_ms else seed_ms


def remaining_ms(used_ms: int, durations_ms: Sequence[int], *, average_ms: int) -> float:
    """What a lease that has run so long is likely to run still: the mean of what the longer ones had left."""
    longer = [duration - used_ms for duration in durations_ms if duration > used_ms]
    if longer:
        return sum(longer) / len(longer)
    if durations_ms:
        # Beyond everything seen lately: nothing is known but that it goes on.
        return average_ms / 4
    return max(average_ms - used_ms, average_ms / 4)


def better_etas_ms(
    positions: int, *, free: int, used_ms: Sequence[int], durations_ms: Sequence[int], average_ms: int
) -> list[float]:
    """The time until each of the first positions is served: whoever is first takes the slot that ends first."""
    ends = [0.0] * free + [remaining_ms(used, durations_ms, average_ms=average_ms) for used in used_ms]
    if not ends:
        return [float(average_ms * (place + 1)) for place in range(positions)]
    heapq.heapify(ends)
    etas: list[float] = []
    for _ in range(positions):
        start = ends[0]
        etas.append(start)
        heapq.heapreplace(ends, start + average_ms)
    return etas
