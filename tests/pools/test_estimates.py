"""The better estimate against a simulation of pools at work."""

import random
import statistics
from collections.abc import Callable

import pytest

from pools.estimates import better_etas_ms, moving_average_ms

SEED_MS = 480_000
Draw = Callable[[random.Random], float]
DURATIONS: dict[str, Draw] = {
    "steady": lambda chance: chance.uniform(0.8, 1.2) * 300_000,
    "mixed": lambda chance: chance.lognormvariate(0, 0.6) * 300_000,
    "memoryless": lambda chance: chance.expovariate(1 / 300_000),
}


@pytest.mark.parametrize("name", DURATIONS)
def test_the_better_estimates_median_error_is_under_half_of_the_plain_ones(name: str) -> None:
    chance = random.Random(7)
    plain, better = [], []
    for slots in (2, 4, 10):
        for _ in range(60):
            for plain_error, better_error in errors(chance, slots, DURATIONS[name]):
                plain.append(plain_error)
                better.append(better_error)
    assert statistics.median(better) < statistics.median(plain) / 2


def errors(chance: random.Random, slots: int, draw: Draw) -> list[tuple[float, float]]:
    """(plain, better) errors of a queue's etas against when each is really served."""
    seen = [round(draw(chance)) for _ in range(10)]
    running = [(chance.uniform(0, total), total) for total in (draw(chance) for _ in range(slots))]
    average = moving_average_ms(seen, seed_ms=SEED_MS)
    waiting = 3 * slots
    guessed = better_etas_ms(
        waiting, free=0, used_ms=[round(used) for used, _ in running], durations_ms=seen, average_ms=average
    )
    ends = sorted(total - used for used, total in running)
    found = []
    for place, guess in enumerate(guessed, start=1):
        served = ends.pop(0)
        found.append((abs(place * average - served), abs(guess - served)))
        ends = sorted([*ends, served + draw(chance)])
    return found


def test_the_average_is_of_the_last_durations_rounded_half_up_or_the_seed() -> None:
    assert moving_average_ms([], seed_ms=SEED_MS) == SEED_MS
    assert moving_average_ms([1, 2], seed_ms=SEED_MS) == 2
    assert moving_average_ms([10, 20, 30], seed_ms=SEED_MS) == 20


def test_a_free_slot_is_no_wait_and_without_slots_the_plain_estimate_stands() -> None:
    assert better_etas_ms(2, free=1, used_ms=[], durations_ms=[], average_ms=100) == [0.0, 100.0]
    assert better_etas_ms(2, free=0, used_ms=[], durations_ms=[], average_ms=100) == [100.0, 200.0]
