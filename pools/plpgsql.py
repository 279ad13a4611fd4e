"""What PostgreSQL does in one call: pools/sql/pool_functions.sql."""

import json

from psycopg.types.numeric import Int8

from leasehub.db.functions import call_many
from leases.granting import Grant
from pools import labels
from pools.models import Pool, Request, Slot

GRANT_AT_ONCE = (
    "SELECT * FROM pool_grant_at_once(%s, %s, %s::text, %s::jsonb, %s, %s, %s::bigint, %s::text, %s::text, %s::text,"
    " %s, %s, %s::jsonb, %s::text, %s::text[], %s::text[])"
)


def grant_at_once(pool: Pool, request: Request) -> tuple[Slot, Grant] | None:
    """One free slot for a new request, which is ready then; None when the ordinary way has to be gone.

    Locks the pool by itself. Ticket, request, slot, lease and event are written.
    """
    rows = call_many(
        GRANT_AT_ONCE,
        (
            Int8(pool.organization_id),
            Int8(pool.pk),
            pool.name,
            json.dumps(pool.declaration),
            request.request_id,
            Int8(request.principal_id),
            request.key_id,
            request.holder,
            request.session,
            request.mode,
            request.no_wait,
            Int8(request.ttl_seconds),
            json.dumps(request.selector),
            request.selector_key,
            list(request.selector),
            [labels.stored(value) for value in request.selector.values()],
        ),
    )
    if not rows:
        return None
    ((made, ticket, at, slot, slot_id, id_value, kind, attributes, *lease),) = rows
    request.pk, request.ticket = made, ticket
    request._state.adding = False
    request.state = Request.State.READY
    request.created_at = request.seen_at = request.ready_at = request.fetched_at = at
    given = Slot(pk=slot, pool=pool, slot_id=slot_id, id_value=id_value, kind=kind, attributes=attributes)
    return given, Grant(*lease)
