"""Worker processes of the tests: forked, with a connection of their own, killed without warning."""

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.db import connections

from leasehub.db.sqlite.base import is_connected
from leasehub.errors import DomainError, Unavailable
from leasehub.identity.authentication import Caller
from leases.queues import services


def forked(work: Callable[[], Any]) -> int:
    """The pid of a process that does this and nothing else.

    It may not open SQLite while a thread of this one has it open, as those that look for waiting calls have for a
    while after the last one.
    """
    connections.close_all()
    until(lambda: not is_connected())
    if pid := os.fork():
        return pid
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        services._looked.clear()
        work()
        status = 0
    finally:
        # Without pytest's own ending, which belongs to the parent.
        os._exit(status)


def until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.05)


def work_until(stop: Path, *, caller: Caller, queue: str, seed: int, log: Path) -> None:
    """Claims, works for a moment, completes; says in the log what was accepted and what was refused."""
    chance = random.Random(seed)
    with log.open("a", buffering=1) as said:
        while not stop.exists():
            for claimed in patiently(
                lambda: services.claim(
                    caller=caller, queue=queue, ttl_seconds=2, holder=f"w-{os.getpid()}", count=chance.choice((1, 1, 3))
                )
            ):
                time.sleep(chance.random() * 0.05)
                said.write(json.dumps(outcome(caller, claimed)) + "\n")


def outcome(caller: Caller, claimed: Any) -> dict[str, Any]:
    told = {"task": claimed.task.hex, "token": claimed.fencing_token}
    try:
        patiently(
            lambda: services.complete(
                caller=caller, task_id=claimed.task, fencing_token=claimed.fencing_token, result=os.getpid()
            )
        )
    except DomainError as refused:
        return {**told, "refused": refused.code}
    return {**told, "accepted": True}


def patiently(call: Callable[[], Any]) -> Any:
    """Again when the database is too busy: nothing was done then."""
    while True:
        try:
            answer = call()
        except Exception as error:
            if not isinstance(error, Unavailable) and "lock" not in str(error) and "timeout" not in str(error):
                raise
            time.sleep(0.05)
            continue
        if answer == []:
            time.sleep(0.05)
        return answer
