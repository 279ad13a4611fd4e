"""Acquire and heartbeat over HTTP beside the bare function, a conventional view, and etcd."""

import uuid
from collections.abc import Callable, Iterator
from functools import partial

from bench import ground, load, pgbench, processes, talks
from bench.figure import Figure, Goal, LeftOut, Plan, Row, Sides, in_turns, milliseconds, ratio
from bench.ground import Ground

BEATEN = 1000
REFUSED_CLIENTS = 16
LEASEHUB, HEALTH = "leasehub.wsgi:application", "/healthz"

HTTP, FUNCTION, CONVENTIONAL, ETCD = "LeaseHub over HTTP", "pgbench, same function", "conventional view", "etcd"


def figures(plan: Plan, base: Ground) -> Iterator[Row]:
    ground.hold_leases(base, BEATEN)
    ground.hold_locks(base, BEATEN)
    base.execute(pgbench.PLAIN_UPSERT_TABLE)
    conventional = {**base.environment, "DJANGO_SETTINGS_MODULE": ground.SETTINGS}
    with (
        processes.granian(LEASEHUB, base.environment, HEALTH) as port,
        processes.granian("bench.conventional.wsgi:application", conventional, "/leases") as other,
        processes.etcd() as etcd,
    ):
        _warm_up(plan, base, port, other)
        yield from _acquire(plan, base, port, other, etcd)
        yield from _heartbeat(plan, base, port, other)
        yield from _refused(plan, base, port)
        yield from _tail(plan, base, port)
        yield _hot_updates(plan, base)


def lease_path(n: int) -> str:
    return f"/v1/leases/lease_{n:032x}/heartbeat"


def lock_path(n: int) -> str:
    return f"/leases/{uuid.UUID(int=n)}/heartbeat"


def http_acquire(base: Ground, port: int, plan: Plan, clients: int = 8) -> load.Load:
    talk = talks.acquire("/v1/leases", base.secret)
    return load.run(port, talk, expect=201, seconds=plan.seconds, connections=clients)


def http_heartbeat(base: Ground, port: int, plan: Plan, leases: int = BEATEN) -> load.Load:
    return load.run(port, talks.heartbeat(lease_path, base.secret, leases), expect=200, seconds=plan.seconds)


def function_rate(base: Ground, script: str, plan: Plan, clients: int = 8) -> float:
    return pgbench.rate(base.url, script, clients=clients, seconds=plan.seconds)


def _conventional_acquire(base: Ground, port: int, plan: Plan) -> float:
    talk = talks.acquire("/leases", base.token, scheme="Token")
    return load.run(port, talk, expect=201, seconds=plan.seconds).rate


def _conventional_heartbeat(base: Ground, port: int, plan: Plan) -> float:
    talk = talks.heartbeat(lock_path, base.token, BEATEN, scheme="Token")
    return load.run(port, talk, expect=200, seconds=plan.seconds).rate


def _etcd_acquire(port: int, plan: Plan) -> float:
    return load.run(port, talks.etcd_acquire(), expect=200, seconds=plan.seconds, requests_a_unit=2).rate


def _warm_up(plan: Plan, base: Ground, port: int, other: int) -> None:
    """Every thread has its connection, its statements and its imports before anything counts."""
    once = Plan(rounds=1, seconds=1)
    http_acquire(base, port, once, clients=64)
    http_heartbeat(base, port, once)
    _conventional_acquire(base, other, once)
    _conventional_heartbeat(base, other, once)


def _acquire(plan: Plan, base: Ground, port: int, other: int, etcd: int | None) -> Iterator[Row]:
    sides: dict[str, Callable[[], float]] = {
        FUNCTION: partial(function_rate, base, pgbench.acquire(base.key, "floor."), plan),
        HTTP: lambda: http_acquire(base, port, plan).rate,
        CONVENTIONAL: partial(_conventional_acquire, base, other, plan),
    }
    if etcd is not None:
        sides[ETCD] = partial(_etcd_acquire, etcd, plan)
    seen = in_turns(plan.rounds, sides)
    yield ratio("acquire, 8 clients, against the bare function", seen, HTTP, FUNCTION, Goal(0.25))
    yield ratio("acquire, 8 clients, against a conventional view", seen, HTTP, CONVENTIONAL, Goal(5))
    what = "acquire, 8 clients, against etcd's lease grant and transaction (JSON gateway)"
    if etcd is None:
        yield LeftOut(what, "etcd is not installed (Debian: etcd-server)")
    else:
        yield ratio(what, seen, HTTP, ETCD, Goal(1.5))


def _heartbeat(plan: Plan, base: Ground, port: int, other: int) -> Iterator[Row]:
    seen = in_turns(
        plan.rounds,
        {
            FUNCTION: partial(function_rate, base, pgbench.heartbeat(base.key, BEATEN), plan),
            HTTP: lambda: http_heartbeat(base, port, plan).rate,
            CONVENTIONAL: partial(_conventional_heartbeat, base, other, plan),
        },
    )
    yield ratio("heartbeat, 8 clients, against the bare function", seen, HTTP, FUNCTION, Goal(0.17))
    yield ratio("heartbeat, 8 clients, against a conventional view", seen, HTTP, CONVENTIONAL, Goal(5))


def _refused(plan: Plan, base: Ground, port: int) -> Iterator[Row]:
    clients = REFUSED_CLIENTS
    refused, granted, upsert = "refused by the function", "granted by the function", "refused by a plain upsert"
    over_http, granted_http = "refused over HTTP", "granted over HTTP"
    talk = talks.refused(base.secret, "kept.1")
    seen: Sides = in_turns(
        plan.rounds,
        {
            granted: partial(function_rate, base, pgbench.acquire(base.key, "g."), plan, clients),
            refused: partial(function_rate, base, pgbench.refused(base.key, "kept.1"), plan, clients),
            upsert: partial(function_rate, base, pgbench.PLAIN_UPSERT, plan, clients),
            granted_http: lambda: http_acquire(base, port, plan, clients).rate,
            over_http: lambda: load.run(port, talk, expect=409, seconds=plan.seconds, connections=clients).rate,
        },
    )
    yield ratio(f"refusals of one held resource, {clients} clients, against grants", seen, refused, granted, Goal(5))
    yield ratio(
        f"refusals of one held resource, {clients} clients, against a plain upsert", seen, refused, upsert, Goal(5)
    )
    yield ratio(f"the same over HTTP, {clients} clients, against grants", seen, over_http, granted_http)


def _tail(plan: Plan, base: Ground, port: int) -> Iterator[Row]:
    script = pgbench.acquire(base.key, "tail.")
    for clients in plan.clients:
        seen = in_turns(
            plan.rounds,
            {
                FUNCTION: lambda clients=clients: (
                    pgbench.run(base.url, script, clients=clients, seconds=plan.seconds).p99
                ),
                HTTP: lambda clients=clients: http_acquire(base, port, plan, clients).p99,
            },
        )
        what = f"99th percentile of acquire, {clients} clients, against the bare function"
        yield ratio(what, seen, HTTP, FUNCTION, Goal(5, at_least=False), shown=milliseconds)


def _hot_updates(plan: Plan, base: Ground) -> Figure:
    """On leases of their own: a row that one of the figures above has touched may be on a full page."""
    count = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'leases_resource'"
    with base.connect() as connection:
        ((updates, hot),) = connection.execute(count).fetchall()
        pgbench.times(base.url, pgbench.heartbeat(base.key, BEATEN), plan.heartbeats // 8)
        connection.execute("SELECT pg_stat_clear_snapshot()")
        ((updates_now, hot_now),) = connection.execute(count).fetchall()
    made = int(updates_now) - int(updates)
    return Figure(
        f"heartbeats that are HOT updates, of {made:,}",
        [100 * (int(hot_now) - int(hot)) / max(1, made)],
        Goal(95, unit=" %"),
    )
