"""The verbs of the queues on PostgreSQL: one call of a function of leases/sql each, in autocommit."""

import json
import uuid
from collections.abc import Sequence
from datetime import datetime

from psycopg.types.numeric import Int4, Int8

from leasehub.db.functions import call_many, call_one
from leases.engines import Outcome
from leases.queues.engines import Claim, NewTask, Put, Step

# A chunk's locks are held for as long as it takes.
REAP_BATCH = 2000

PUT = "SELECT * FROM task_put(%s, %s::text, %s::smallint[], %s::bigint[], %s::smallint[], %s::text[], %s::text[])"
CLAIM = "SELECT * FROM task_claim(%s, %s::text, %s::text, %s, %s, %s::timestamptz)"
HEARTBEAT = "SELECT * FROM task_heartbeat(%s, %s, %s, %s::bigint)"
COMPLETE = "SELECT * FROM task_complete(%s, %s, %s, %s::text)"
FAIL = "SELECT * FROM task_fail(%s, %s, %s, %s::text, %s::bigint, %s)"
RETURN = "SELECT * FROM task_return(%s, %s, %s)"
REAP_DUE = "SELECT * FROM task_reap_due(%s)"


def put(*, key: int, queue: str, tasks: Sequence[NewTask]) -> list[Put]:
    parameters = (
        Int8(key),
        queue,
        [task.priority for task in tasks],
        [task.delay_seconds * 1000 for task in tasks],
        [task.max_attempts for task in tasks],
        [task.dedupe_key for task in tasks],
        [None if task.payload is None else json.dumps(task.payload) for task in tasks],
    )
    return [Put(*row) for row in call_many(PUT, parameters)]


def claim(*, key: int, queue: str, holder: str, ttl_ms: int, count: int, since: datetime | None) -> list[Claim]:
    rows = call_many(CLAIM, (Int8(key), queue, holder, Int8(ttl_ms), Int4(count), since))
    return [Claim(*row) for row in rows]


def heartbeat(*, key: int, task: uuid.UUID, fencing_token: int, ttl_ms: int | None) -> Outcome:
    return Outcome(*call_one(HEARTBEAT, (Int8(key), task, Int8(fencing_token), ttl_ms)))


def complete(*, key: int, task: uuid.UUID, fencing_token: int, result: str | None) -> Step:
    return Step(*call_one(COMPLETE, (Int8(key), task, Int8(fencing_token), result)))


def fail(*, key: int, task: uuid.UUID, fencing_token: int, error: str, pause_ms: int | None, final: bool) -> Step:
    return Step(*call_one(FAIL, (Int8(key), task, Int8(fencing_token), error, pause_ms, final)))


def give_back(*, key: int, task: uuid.UUID, fencing_token: int) -> Step:
    return Step(*call_one(RETURN, (Int8(key), task, Int8(fencing_token))))


def reap_due(*, limit: int) -> tuple[int, int]:
    looked_at, reaped = call_one(REAP_DUE, (Int4(limit),))
    return looked_at, reaped
