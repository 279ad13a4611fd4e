"""A database with a million events and a hundred thousand leases on file beside an empty one."""

from collections.abc import Callable, Iterator

from bench import ground, pgbench, processes
from bench.figure import Goal, Plan, Row, in_turns, ratio
from bench.ground import Ground
from bench.hot_path import HEALTH, LEASEHUB, function_rate, http_acquire, http_heartbeat

FULL, EMPTY = "full", "empty"
#: On file in the empty one, so that there is something to beat on.
FEW = 1000


def figures(plan: Plan, base: Ground) -> Iterator[Row]:
    ground.forget_all(base)
    with ground.copied(base) as full:
        ground.hold_leases(full, plan.leases)
        ground.journal(full, plan.events)
        with (
            processes.granian(LEASEHUB, base.environment, HEALTH) as empty_port,
            processes.granian(LEASEHUB, full.environment, HEALTH) as full_port,
        ):
            yield from _rates(plan, {FULL: Side(full, full_port, plan.leases), EMPTY: Side(base, empty_port, FEW)})


class Side:
    def __init__(self, at: Ground, port: int, leases: int) -> None:
        self.at, self.port, self.leases = at, port, leases


def _rates(plan: Plan, sides: dict[str, Side]) -> Iterator[Row]:
    def empty_again() -> None:
        ground.forget_all(sides[EMPTY].at)
        ground.hold_leases(sides[EMPTY].at, FEW)

    empty_again()
    for side in sides.values():
        http_acquire(side.at, side.port, Plan(seconds=1), clients=64)
    measures: dict[str, Callable[[Side], float]] = {
        "acquire over HTTP": lambda side: http_acquire(side.at, side.port, plan).rate,
        "heartbeat over HTTP": lambda side: http_heartbeat(side.at, side.port, plan, side.leases).rate,
        "acquire, the bare function": lambda side: function_rate(side.at, pgbench.acquire(side.at.key, "size."), plan),
        "heartbeat, the bare function": lambda side: function_rate(
            side.at, pgbench.heartbeat(side.at.key, side.leases), plan
        ),
    }
    on_file = f"{plan.events:,} events and {plan.leases:,} leases on file against none"
    for what, measure in measures.items():
        turns = {name: lambda measure=measure, side=side: measure(side) for name, side in sides.items()}
        seen = in_turns(plan.rounds, turns, before=empty_again)
        yield ratio(f"{what}, {on_file}", seen, FULL, EMPTY, Goal(0.9))
