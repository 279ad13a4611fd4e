"""The tools of pools."""

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from leasehub.api.parsing import Identifier
from leasehub.errors import NotFound, ValidationError
from leasehub.identity.rings import ACT, OBSERVE
from leasehub.mcp import refusals
from leasehub.mcp.schemas import Answer, Arguments, HolderName, Part, TokenOf, TtlSeconds, WaitSeconds
from leasehub.mcp.server import Call, lean, tool
from leases import api as leases
from pools import answers, api, queries, services
from pools.models import Request

MOST_SHOWN = 20
#: What of a request tells an agent something.
SHOWN = (
    "request_id", "pool", "state", "position", "eta_ms", "holder", "count", "slot_id", "error", "reason", "ended_at",
)  # fmt: skip
SHOWN_OF_GRANT = (
    "slot_id", "lease_id", "fencing_token", "expires_at", "expires_in_ms", "ttl_minutes", "attrs", "grant_fields",
    "env",
)  # fmt: skip
HINTS = {
    "ready": "Yours: use it, lease_heartbeat with its lease_id before half of its time is over, then pool_release.",
    "queued": "You have a place in the queue: call pool_wait again soon, since a waiter that stays silent is dropped.",
    "provisioning": "Your slot is being prepared: call pool_wait again.",
}

PoolName = Annotated[Identifier, Field(description="The pool's name")]
RequestId = Annotated[str, Field(min_length=1, max_length=200, description="The request_id of pool_acquire")]


class Acquire(Arguments):
    pool: PoolName
    holder: HolderName | None = None
    ttl_seconds: TtlSeconds | None = None
    selector: (
        Annotated[api.Selector, Field(description='What the slot must have, all equal: {"attribute.path": value}')]
        | None
    ) = None
    count: Annotated[int, Field(ge=1, le=services.MAX_COUNT)] = 1
    no_wait: Annotated[bool, Field(description="Now or not at all")] = False
    wait_seconds: WaitSeconds = 0


class Wait(Arguments):
    pool: PoolName
    request_id: RequestId
    wait_seconds: WaitSeconds = 25


class Release(Arguments):
    pool: PoolName
    slot_id: Annotated[str, Field(min_length=1, max_length=200, description="Of your grant")] | None = None
    fencing_token: TokenOf | None = None
    request_id: (
        Annotated[str, Field(min_length=1, max_length=200, description="Instead of a slot: the whole request")] | None
    ) = None


class OfPool(Arguments):
    pool: PoolName


class Grant(Part):
    slot_id: str | int | float
    lease_id: str
    fencing_token: int
    expires_at: str
    expires_in_ms: int
    ttl_minutes: float
    attrs: dict[str, Any]
    grant_fields: dict[str, Any]
    env: dict[str, str]


class Requested(Answer):
    request_id: str
    pool: str
    state: str
    granted: bool
    queued: bool
    pending: bool
    position: int | None = None
    eta_s: int | None = None
    grants: list[Grant] | None = None
    holder: str | None = None
    count: int | None = None
    slot_id: Any = None
    error: str | None = None
    reason: str | None = None
    ended_at: str | None = None
    retry_after_s: int | None = None


class Released(Answer):
    pool: str
    slot_id: Any = None
    lease_id: str | None = None
    released_at: str | None = None
    was_expired: bool | None = None
    request_id: str | None = None
    state: str | None = None
    reason: str | None = None


class Slot(Part):
    model_config = ConfigDict(extra="allow")

    slot_id: str | int | float
    state: str
    condition: str


class Waiter(Part):
    model_config = ConfigDict(extra="allow")

    request_id: str
    holder: str
    position: int
    eta_ms: int


class Status(Answer):
    pool: str
    slots_total: int
    slots_held: int
    slots_free: int
    slots_out: int
    waiting: int
    moving_avg_ms: int
    ttl_minutes: float
    served: bool | None = None
    slots: list[Slot]
    queue: list[Waiter]


@tool("pool_request", ring=ACT, answers=Requested, repeatable=False)
def pool_acquire(call: Call, given: Acquire) -> dict[str, Any]:
    """Ask a pool for slots (machines, checkouts, emulators …): granted at once when they are free, else a place in a
    queue that is served in order. "granted": true: the grants have the lease_id and fencing_token of each slot, and the
    env to work with. "pending": true: call pool_wait with the request_id; position and eta_s say how long it may
    take. A request is kept while its waiter calls, and its answer for a while after."""
    made = services.request(
        caller=call.caller,
        pool=given.pool,
        mode="async",
        holder=call.holder(given.holder),
        ttl_seconds=given.ttl_seconds,
        selector=given.selector,
        count=given.count,
        no_wait=given.no_wait,
    )
    if given.wait_seconds and made.state in Request.UNCLEAN:
        made = api.settled(call.caller, made, given.wait_seconds, fetch=True)
    return _requested(call, made)


@tool("pool_request_show", answers=Requested, reads=False)
def pool_wait(call: Call, given: Wait) -> dict[str, Any]:
    """Wait, up to wait_seconds, for what pool_acquire asked for. Each call is also the sign of life that keeps the
    place in the queue. "pending": true: call again."""
    row = queries.request(caller=call.caller, pool=given.pool, request_id=given.request_id)
    return _requested(call, api.settled(call.caller, row, given.wait_seconds, fetch=True))


@tool("pool_release", ring=ACT, answers=Released)
def pool_release(call: Call, given: Release) -> dict[str, Any]:
    """Give a slot back (slot_id and fencing_token), or leave the queue and give back all that a request was granted
    (request_id)."""
    if given.request_id is not None:
        row = queries.request(caller=call.caller, pool=given.pool, request_id=given.request_id)
        if row.principal_id != call.caller.principal:
            # An operator's key drops anybody's request by this verb, which is not what is meant here.
            raise NotFound
        ended = services.cancel(caller=call.caller, request=row)
        return lean(
            {"pool": given.pool, "request_id": given.request_id, "state": ended.state, "reason": ended.reason or None}
        )
    if given.slot_id is None or given.fencing_token is None:
        raise ValidationError(
            "Give slot_id and fencing_token, or request_id.", slot_id="is required without request_id"
        )
    slot, released = services.release(
        caller=call.caller, pool=given.pool, slot_id=given.slot_id, fencing_token=given.fencing_token
    )
    return {"pool": given.pool, "slot_id": slot.id_value, **leases.released_view(released)}


@tool("pool_show", ring=OBSERVE, answers=Status, reads=True)
def pool_status(call: Call, given: OfPool) -> dict[str, Any]:
    """A pool: how many slots are free, held or out of use, who waits, and the first twenty of both."""
    found = queries.pool_on_show(organization=call.caller.organization, name=given.pool)
    view = answers.pool_view(call.caller, found)
    slots = [lean(slot) for slot in view["slots"][:MOST_SHOWN]]
    queue = [lean(waiter) for waiter in view["queue"][:MOST_SHOWN]]
    return lean({**{name: view[name] for name in Status.model_fields if name in view}, "slots": slots, "queue": queue})


def _requested(call: Call, row: Request) -> dict[str, Any]:
    view = api.request_answer(call.caller, row)
    pending = row.state in Request.UNCLEAN
    grants = [{name: grant[name] for name in SHOWN_OF_GRANT} for grant in view["grants"]]
    eta_ms = view.pop("eta_ms")
    return lean(
        {
            **{name: view[name] for name in SHOWN if name in view},
            "granted": row.state == Request.State.READY,
            "queued": row.state == Request.State.QUEUED,
            "pending": pending,
            "eta_s": None if eta_ms is None else refusals.seconds(eta_ms),
            "grants": grants or None,
            "retry_after_s": 1 if pending else None,
            "hint": HINTS.get(row.state),
        }
    )
