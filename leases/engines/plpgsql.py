"""The hot verbs on PostgreSQL: one call of a function of leases/sql each, in autocommit."""

import uuid
from collections.abc import Sequence

from psycopg.types.numeric import Int8

from leasehub.db.functions import call_many, call_one
from leases import owners
from leases.engines import Outcome

# A chunk's locks are held for as long as it takes.
REAP_BATCH = 2000

ACQUIRE = "SELECT * FROM lease_acquire(%s, %s::text, %s::text, %s::text, %s, %s, %s::text, %s::jsonb, %s::bigint)"
GRANT = (
    "SELECT * FROM lease_grant(%s, %s::text, %s::text, %s, %s::text, %s, %s::jsonb, %s::text, %s::bigint, %s::bigint,"
    " %s::jsonb)"
)
HEARTBEAT = "SELECT * FROM lease_heartbeat(%s, %s, %s, %s::bigint)"
HEARTBEATS = "SELECT * FROM lease_heartbeats(%s, %s::uuid[], %s::bigint[])"
RELEASE = "SELECT * FROM lease_release(%s, %s, %s::bigint, %s::text[])"
REAP_DUE = "SELECT * FROM lease_reap_due(%s::integer, %s::text[])"


def acquire(
    *,
    key: int,
    resource_type: str,
    resource_id: str,
    holder: str,
    ttl_ms: int,
    reacquire: bool,
    purpose: str | None,
    payload: str | None,
    lifetime_ms: int | None,
) -> Outcome:
    return Outcome(
        *call_one(
            ACQUIRE,
            (
                Int8(key),
                resource_type,
                resource_id,
                holder,
                Int8(ttl_ms),
                reacquire,
                purpose,
                payload,
                lifetime_ms,
            ),
        )
    )


def grant(
    *,
    organization: int,
    resource_type: str,
    resource_id: str,
    principal: int,
    holder: str,
    ttl_ms: int,
    payload: str | None,
    event: str,
    actor: int | None,
    key: int | None,
    data: str,
) -> Outcome:
    return Outcome(
        *call_one(
            GRANT,
            (
                Int8(organization),
                resource_type,
                resource_id,
                Int8(principal),
                holder,
                Int8(ttl_ms),
                payload,
                event,
                actor,
                key,
                data,
            ),
        )
    )


def heartbeat(*, key: int, lease_id: uuid.UUID, fencing_token: int, ttl_ms: int | None) -> Outcome:
    return Outcome(*call_one(HEARTBEAT, (Int8(key), lease_id, Int8(fencing_token), ttl_ms)))


def heartbeats(*, key: int, pairs: Sequence[tuple[uuid.UUID, int]]) -> list[Outcome]:
    leases = [lease_id for lease_id, _ in pairs]
    tokens = [token for _, token in pairs]
    return [Outcome(*row) for row in call_many(HEARTBEATS, (Int8(key), leases, tokens))]


def release(*, key: int, lease_id: uuid.UUID, fencing_token: int | None) -> Outcome:
    return Outcome(*call_one(RELEASE, (Int8(key), lease_id, fencing_token, owners.types())))


def reap_due(*, limit: int) -> tuple[int, int]:
    looked_at, reaped = call_one(REAP_DUE, (limit, owners.types()))
    return looked_at, reaped
