"""One process of test_crowd: a holder that asks, waits, holds and gives back, or a worker that runs commands."""

import random
import sys
import threading
import time

import django
from django.conf import settings

THREADS = 3


def main(role: str, database: str, secret: str, seed: str) -> None:
    settings.DATABASES["default"]["NAME"] = database
    django.setup()
    chance = random.Random(seed)
    if role == "worker":
        work()
    for _ in range(THREADS):
        holder = threading.Thread(target=hold, args=(secret, random.Random(chance.random())))
        holder.start()


def hold(secret: str, chance: random.Random) -> None:
    while True:
        hold_once(secret, chance)


def work() -> None:
    from pools.worker import CommandWorker

    commands = CommandWorker(["default"], limit=4)
    while True:
        commands.look()
        time.sleep(0.05)


def hold_once(secret: str, chance: random.Random) -> None:
    from leasehub.errors import DomainError
    from leasehub.identity.authentication import authenticate
    from pools import queries, services
    from pools.models import Request

    caller = authenticate(f"Bearer {secret}")
    try:
        asked = services.request(caller=caller, pool="crowd", mode="blocking", ttl_seconds=1)
        until = time.monotonic() + 3
        while asked.state in Request.UNCLEAN and time.monotonic() < until:
            time.sleep(chance.uniform(0.01, 0.1))
            asked.refresh_from_db()
            if services.has_dead_leases(asked.pool):
                services.sweep(pool=asked.pool)
            asked = services.seen(caller=caller, request=asked, fetch=True)
        what = chance.random()
        if asked.state != Request.State.READY or what < 0.2:
            services.cancel(caller=caller, request=asked)
        elif what < 0.9:
            (held,) = queries.held(request=asked)
            time.sleep(chance.uniform(0, 0.05))
            assert held.lease is not None
            services.release(
                caller=caller, pool="crowd", slot_id=held.slot.slot_id, fencing_token=held.lease.last_token
            )
        # Else it forgets the slot: its lease runs out.
    except (DomainError, ValueError) as error:
        # Lost meanwhile, or the database was busy: as any client, it asks again.
        print(type(error).__name__, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
