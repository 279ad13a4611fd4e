"""A request that is granted at once beside a plain acquire, draining a queue, and a large pool's status."""

import itertools
import json
import time
from collections.abc import Iterator

from bench import load, processes, talks
from bench.figure import Figure, Goal, Plan, Row, in_turns, milliseconds, ratio
from bench.ground import Ground

LEASEHUB, HEALTH = "leasehub.wsgi:application", "/healthz"
GRANT, ACQUIRE = "a slot of a pool", "a plain lease"
HELD = 5
CLIENTS = (1, 8)


def figures(plan: Plan, base: Ground) -> Iterator[Row]:
    _declare(base, plan)
    with processes.granian(LEASEHUB, base.environment, HEALTH) as port:
        for clients in CLIENTS:
            yield _at_once(plan, base, port, clients)
        yield from _status(plan, base, port)
    yield _drained(plan, base)


def _declare(base: Ground, plan: Plan) -> None:
    """A pool of many slots, and as many waiters, none of which can use those that are free."""
    from leasehub.db import clock
    from leases.services import Actor
    from pools import labels, services
    from pools.models import Pool, Request, Slot

    slots = [{"id": n, "region": "full" if n <= HELD else "free"} for n in range(1, plan.slots + 1)]
    actor = Actor(base.organization, base.principal)
    services.declare(actor=actor, name="large", document={"slots": slots, "waiterStaleMs": 86_400_000})
    pool = Pool.objects.get(name="large")
    Slot.objects.filter(pool=pool, place__lt=HELD).update(is_draining=True)
    at = clock.now()
    Request.objects.bulk_create(
        Request(
            pool=pool, ticket=ticket, principal_id=base.principal, holder="bench", session="bench", mode="blocking",
            ttl_seconds=600, selector={"region": "full"}, selector_key=labels.key({"region": "full"}),
            created_at=at, seen_at=at,
        )
        for ticket in range(1, plan.waiters + 1)
    )  # fmt: skip
    Pool.objects.filter(pk=pool.pk).update(last_ticket=plan.waiters)
    base.execute("VACUUM ANALYZE pools_slot", "VACUUM ANALYZE pools_request", "VACUUM ANALYZE pools_slotlabel")


def _at_once(plan: Plan, base: Ground, port: int, clients: int) -> Figure:
    body = json.dumps({"mode": "blocking", "selector": {"region": "free"}}).encode()
    wanted = load.request("POST", "/v1/pools/large/requests", body, base.secret)

    def asking() -> load.Talk:
        while True:
            yield wanted

    def p95(talk: object) -> float:
        seen = load.run(port, talk, expect=201, seconds=plan.seconds, connections=clients)  # type: ignore[arg-type]
        return load.percentile(seen.latencies, 95)

    plain = talks.acquire("/v1/leases", base.secret)
    seen = in_turns(
        plan.rounds, {GRANT: lambda: p95(asking), ACQUIRE: lambda: p95(plain)}, before=lambda: _give_back(base)
    )
    what = f"p95 of a slot granted at once, {plan.slots} slots, {plan.waiters} waiters, {clients} clients, over a lease"
    return ratio(what, seen, GRANT, ACQUIRE, Goal(3, at_least=False) if clients == 1 else None, shown=milliseconds)


def _give_back(base: Ground) -> None:
    """Every slot is free again, without the events that nobody measures."""
    base.execute(
        "UPDATE pools_slot SET lease_id = NULL, granted_at = NULL, request_id = NULL, is_clean = false",
        "DELETE FROM leases_resource WHERE resource_type = 'slot'",
        "DELETE FROM pools_request WHERE state = 'ready'",
        "VACUUM ANALYZE pools_slot",
        "VACUUM ANALYZE pools_request",
    )


def _status(plan: Plan, base: Ground, port: int) -> Iterator[Row]:
    wanted = load.request("GET", "/v1/pools/large", b"", base.secret)

    def looking() -> load.Talk:
        while True:
            yield wanted

    def median() -> float:
        seen = load.run(port, looking, expect=200, seconds=plan.seconds, connections=1)
        return load.percentile(seen.latencies, 50)

    seen = [median() * 1000 for _ in range(plan.rounds)]
    yield Figure(f"status of a pool of {plan.slots} slots with {plan.waiters} waiters", seen, Goal(2000, False, " ms"))


def _drained(plan: Plan, base: Ground) -> Figure:
    """Time a waiter, of many over that of few: linear is 1."""
    few, many = plan.waiters // 4, plan.waiters
    names = itertools.count()
    seen = in_turns(
        plan.rounds,
        {
            f"{many} waiters": lambda: _drain(base, f"drain-{next(names)}", many) / many,
            f"{few} waiters": lambda: _drain(base, f"drain-{next(names)}", few) / few,
        },
    )
    what = "draining a queue over 50 slots, time a waiter, against a quarter of the waiters"
    return ratio(what, seen, f"{many} waiters", f"{few} waiters", Goal(1.3, at_least=False), shown=milliseconds)


def _drain(base: Ground, name: str, waiters: int) -> float:
    """Everybody asks; each grant is given back until nobody is left. Seconds, without the asking."""
    from leasehub.identity.authentication import authenticate
    from leases import services as leases
    from leases.services import Actor
    from pools import services
    from pools.models import Slot

    document = {"slots": [{"id": n} for n in range(50)], "waiterStaleMs": 86_400_000}
    services.declare(actor=Actor(base.organization, base.principal), name=name, document=document)
    caller = authenticate(f"Bearer {base.secret}")
    for _ in range(waiters):
        services.request(caller=caller, pool=name, mode="async")
    start = time.monotonic()
    while held := list(Slot.objects.filter(pool__name=name, lease_id__isnull=False).values_list("lease_id", flat=True)):
        for lease_id in held:
            leases.release(caller=caller, lease_id=lease_id)
    return time.monotonic() - start
