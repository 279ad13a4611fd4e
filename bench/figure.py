"""What the bench says: one row a figure."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    rounds: int = 5
    seconds: int = 3
    clients: tuple[int, ...] = (8, 16, 32, 64)
    #: Rows on file where a figure is about a full database.
    events: int = 1_000_000
    leases: int = 100_000
    handoffs: int = 100_000
    live: int = 1_000_000
    expired: int = 100_000
    one_by_one: int = 500
    heartbeats: int = 20_000
    queued: int = 1_000_000
    claims: int = 60_000
    returned: int = 10_000
    processes: int = 40
    slots: int = 5000
    waiters: int = 1000
    tool_calls: int = 1000
    feed: int = 600_000
    arrivals: int = 20
    followers: int = 200


QUICK = Plan(
    rounds=1,
    seconds=1,
    clients=(8,),
    events=2000,
    leases=500,
    handoffs=500,
    live=1000,
    expired=500,
    one_by_one=20,
    heartbeats=1000,
    queued=2000,
    claims=1500,
    returned=200,
    processes=2,
    # As many as can be granted in its second: none may have to wait.
    slots=5000,
    waiters=40,
    tool_calls=100,
    feed=5000,
    arrivals=2,
    followers=20,
)


@dataclass(frozen=True, slots=True)
class Goal:
    bound: float
    at_least: bool = True
    unit: str = "x"

    def met(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        return f"{'at least' if self.at_least else 'at most'} {self.bound:g}{self.unit}"


@dataclass(frozen=True, slots=True)
class Figure:
    what: str
    #: One a round.
    values: Sequence[float]
    goal: Goal | None = None
    #: The two sides in absolute terms, medians.
    ours: str = ""
    beside: str = ""

    @property
    def value(self) -> float:
        return statistics.median(self.values)

    @property
    def unit(self) -> str:
        return "x" if self.goal is None else self.goal.unit

    @property
    def verdict(self) -> str:
        if self.goal is None:
            return ""
        return "met" if self.goal.met(self.value) else "MISSED"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A figure that could not be measured here, and why."""

    what: str
    reason: str


Row = Figure | LeftOut
Sides = dict[str, list[float]]


def in_turns(rounds: int, sides: dict[str, Callable[[], float]], *, before: Callable[[], None] | None = None) -> Sides:
    """What each side measures, a value a round: A B C, A B C, …"""
    seen: Sides = {name: [] for name in sides}
    for _ in range(rounds):
        if before is not None:
            before()
        for name, measure in sides.items():
            seen[name].append(measure())
    return seen


def ratio(
    what: str,
    seen: Sides,
    ours: str,
    beside: str,
    goal: Goal | None = None,
    *,
    shown: Callable[[float], str] | None = None,
) -> Figure:
    shown = shown or per_second
    return Figure(
        what,
        [mine / other for mine, other in zip(seen[ours], seen[beside], strict=True)],
        goal,
        ours=f"{ours} {shown(statistics.median(seen[ours]))}",
        beside=f"{beside} {shown(statistics.median(seen[beside]))}",
    )


def per_second(value: float) -> str:
    return f"{value:,.0f}/s"


def milliseconds(value: float) -> str:
    return f"{value * 1000:.2f} ms"
