"""How long requests took, by operation: counted in the process that answered them, for /metrics."""

import threading
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

#: Seconds; each bucket counts what took at most so long.
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
#: What is no operation: /healthz, an unknown address.
OTHER = "other"


@dataclass(frozen=True, slots=True)
class Timed:
    operation: str
    method: str
    #: 2xx, 4xx, …
    status: str
    #: (upper bound, how many took at most so long), the last bound is +Inf
    buckets: list[tuple[str, float]]
    seconds: float


# (operation, method, hundreds of the status) -> [count by bucket …, seconds]. One lock for all: it is held for a
# few list operations, and a labelled histogram of the client library would look its labels up under one, too.
_cells: dict[tuple[str, str, int], list[float]] = {}
_lock = threading.Lock()


def note(operation: str, method: str, status: int, seconds: float) -> None:
    place = bisect_left(BOUNDS, seconds)
    key = (operation, method, status // 100)
    with _lock:
        cell = _cells.get(key)
        if cell is None:
            cell = _cells[key] = [0.0] * (len(BOUNDS) + 2)
        cell[place] += 1
        cell[-1] += seconds


def read() -> Iterator[Timed]:
    with _lock:
        seen = [(key, list(cell)) for key, cell in _cells.items()]
    for (operation, method, hundreds), (*counts, seconds) in sorted(seen):
        total = 0.0
        buckets = []
        for bound, count in zip([*map(str, BOUNDS), "+Inf"], counts, strict=True):
            total += count
            buckets.append((bound, total))
        yield Timed(operation, method, f"{hundreds}xx", buckets, seconds)
