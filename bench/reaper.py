"""The reaper in chunks beside a loop that ends one row at a time."""

import statistics
import time
from collections.abc import Callable, Iterator

from bench import ground
from bench.figure import Figure, Goal, Plan, Row, per_second, ratio
from bench.ground import Ground

IDLE_TICKS = 100

# What was reaped is held again, and some of all run out.
EXPIRE = (
    "TRUNCATE events_event",
    """
    UPDATE leases_resource SET lease_id = gen_random_uuid(), principal_id = %(principal)s, holder = 'bench',
        acquired_at = now(), heartbeat_at = now(), expires_at = now() + interval '1 day',
        check_at = now() + interval '1 day', ttl_ms = 600000
    WHERE lease_id IS NULL
    """,
    """
    UPDATE leases_resource SET heartbeat_at = now() - interval '1 hour',
        expires_at = now() - id %% 1000 * interval '1 ms', check_at = now() - interval '1 minute'
    WHERE id IN (SELECT id FROM leases_resource WHERE id %% %(every)s = 0 LIMIT %(expired)s)
    """,
    "VACUUM ANALYZE leases_resource",
    "CHECKPOINT",
)
SOME = "SELECT resource_id FROM leases_resource WHERE expires_at <= now() LIMIT %s"


def figures(plan: Plan, base: Ground) -> Iterator[Row]:
    from leases.engines.plpgsql import REAP_BATCH
    from leases.services import reap_due

    ground.forget_all(base)
    ground.hold_leases(base, plan.live + plan.expired)
    every = (plan.live + plan.expired) // plan.expired
    loop, chunks = f"one by one (of {plan.one_by_one:,})", f"in chunks of {REAP_BATCH:,}"
    seen: dict[str, list[float]] = {loop: [], chunks: []}
    longest = []
    for _ in range(plan.rounds):
        base.execute(*EXPIRE, principal=base.principal, every=every, expired=plan.expired)
        seen[loop].append(_one_by_one(base, plan.one_by_one))
        rate, chunk_seconds = _in_chunks()
        seen[chunks].append(rate)
        longest.append(max(chunk_seconds))
    what = f"the reaper, {plan.expired:,} expired among {plan.live:,} live, against a loop over rows"
    yield ratio(what, seen, chunks, loop, Goal(20), shown=per_second)
    yield Figure("its longest chunk of all rounds", [1000 * max(longest)], Goal(250, at_least=False, unit=" ms"))
    idle = statistics.median(_timed(reap_due) for _ in range(IDLE_TICKS))
    yield Figure("its tick when nothing is due", [1000 * idle], Goal(5, at_least=False, unit=" ms"))


def _one_by_one(base: Ground, count: int) -> float:
    from leases import services

    with base.connect() as connection:
        names = [str(name) for (name,) in connection.execute(SOME, [count]).fetchall()]
    actor = services.Actor(base.organization, None)
    begun = time.perf_counter()
    for name in names:
        services.reap(actor=actor, resource_type="bench", resource_id=name)
    return len(names) / (time.perf_counter() - begun)


def _in_chunks() -> tuple[float, list[float]]:
    from leases.engines.plpgsql import REAP_BATCH, reap_due

    total, seconds = 0, []
    looked_at = REAP_BATCH
    while looked_at == REAP_BATCH:
        begun = time.perf_counter()
        looked_at, reaped = reap_due(limit=REAP_BATCH)
        seconds.append(time.perf_counter() - begun)
        total += reaped
    return total / sum(seconds), seconds


def _timed(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun
