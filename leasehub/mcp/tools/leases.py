"""The tools of the lease."""

from typing import Annotated, Any

from pydantic import Field

from leasehub.api import waiting
from leasehub.api.parsing import Message, Payload, Reason
from leasehub.db import clock
from leasehub.explain.resources import GIVEN_BY
from leasehub.identity.rings import ACT, OPERATE
from leasehub.mcp import refusals
from leasehub.mcp.schemas import (
    DEFAULT_TTL_SECONDS,
    Answer,
    Arguments,
    HolderName,
    Part,
    ResourceId,
    ResourceType,
    TokenOf,
    TtlSeconds,
    WaitSeconds,
)
from leasehub.mcp.server import Call, lean, tool
from leases import api, queries, services
from leases.errors import Conflict
from leases.models import Resource

LeaseId = Annotated[str, Field(min_length=1, max_length=200, description="The lease_id that you were granted")]


class OnResource(Arguments):
    resource_type: ResourceType
    resource_id: ResourceId


class Acquire(OnResource):
    ttl_seconds: TtlSeconds = DEFAULT_TTL_SECONDS
    purpose: Annotated[Message, Field(description="What for, in a sentence, for people who wonder")] | None = None
    holder: HolderName | None = None
    payload: Annotated[Payload, Field(description="Any JSON to keep with the lease, up to 64 KiB")] = None
    max_lifetime_seconds: (
        Annotated[int, Field(ge=1, le=api.MAX_LIFETIME_SECONDS, description="No heartbeat prolongs it beyond this")]
        | None
    ) = None


class Heartbeat(Arguments):
    lease_id: LeaseId
    fencing_token: TokenOf
    ttl_seconds: TtlSeconds | None = None


class Release(Arguments):
    lease_id: LeaseId
    fencing_token: TokenOf | None = None


class WaitFor(OnResource):
    wait_seconds: WaitSeconds = 25


class ForceRelease(Arguments):
    lease_id: LeaseId
    fencing_token: Annotated[int, Field(ge=1, le=2**53 - 1, description="The token of the lease that is meant")]
    reason: Annotated[Reason, Field(description="Recorded with the release, for its holder to read")]


class PreviousLease(Part):
    lease_id: str
    holder: str
    acquired_at: str
    heartbeat_at: str
    expires_at: str


class Acquired(Answer):
    granted: bool
    lease_id: str | None = None
    fencing_token: int | None = None
    expires_at: str | None = None
    expires_in_ms: int | None = None
    holder: str | None = None
    took_over_expired: bool | None = None
    previous: PreviousLease | None = None
    held_by_self: bool | None = None
    principal: str | None = None
    retry_after_s: int | None = None


class Beaten(Answer):
    lease_id: str
    fencing_token: int
    expires_at: str
    expires_in_ms: int


class Released(Answer):
    lease_id: str
    released_at: str
    was_expired: bool


class Status(Answer):
    resource_type: str
    resource_id: str
    state: str
    mine: bool
    expires_at: str | None = None
    expires_in_ms: int | None = None
    expired_for_ms: int | None = None
    lease_id: str | None = None
    principal: str | None = None
    holder: str | None = None
    purpose: str | None = None
    payload: Any = None
    ttl_seconds: int | None = None
    acquired_at: str | None = None
    heartbeat_at: str | None = None
    lifetime_ends_at: str | None = None
    fencing_token: int | None = None


class Waited(Status):
    pending: bool
    retry_after_s: int | None = None


@tool("lease_acquire", ring=ACT, answers=Acquired, service_checks_key=True)
def lease_acquire(call: Call, given: Acquire) -> dict[str, Any]:
    """Take the lease of a resource before you work on it. Granted: keep lease_id and fencing_token, heartbeat before
    half of ttl_seconds is over, release when done; without a heartbeat it runs out and may be taken over. Not granted
    is no error: the answer says until when it is taken, and whether by yourself. It never takes what another one
    holds."""
    holder = call.holder(given.holder)
    try:
        grant = services.acquire(
            caller=call.caller,
            resource_type=given.resource_type,
            resource_id=given.resource_id,
            ttl_seconds=given.ttl_seconds,
            holder=holder,
            purpose=given.purpose,
            payload=given.payload,
            max_lifetime_seconds=given.max_lifetime_seconds,
            reacquire=False,
        )
    except Conflict as taken:
        return _not_granted(call, given, taken)
    answer = {"granted": True, **api.grant_view(grant), "holder": holder, "took_over_expired": grant.took_over_expired}
    return answer if grant.previous is None else {**answer, "previous": grant.previous}


def _not_granted(call: Call, given: OnResource, taken: Conflict) -> dict[str, Any]:
    fields = taken.fields
    answer = {
        "granted": False,
        "expires_at": fields["expires_at"],
        "held_by_self": fields["held_by_self"],
        "retry_after_s": refusals.seconds(int(str(fields["retry_after_ms"]))),
        "hint": "You hold it already, under this holder: go on with the lease_id and the token that you have."
        if fields["held_by_self"]
        else "It is taken. Call lease_wait, then lease_acquire again; or do something else meanwhile.",
    }
    if not call.caller.observes:
        return answer
    row = queries.resource(caller=call.caller, resource_type=given.resource_type, resource_id=given.resource_id)
    shown = {} if row is None else api.lease_view(call.caller, row, clock.now())
    return {**answer, **lean({name: shown.get(name) for name in ("holder", "principal")})}


@tool("lease_heartbeat", ring=ACT, answers=Beaten, service_checks_key=True)
def lease_heartbeat(call: Call, given: Heartbeat) -> dict[str, Any]:
    """A sign of life: the lease lasts another ttl_seconds from now. Also for the lease of a pool's slot. LEASE_LOST or
    STALE_TOKEN: stop working on the resource at once. A lease that ran out cannot be revived, only acquired again."""
    return api.grant_view(
        services.heartbeat(
            caller=call.caller,
            lease_id=api.named(call.caller, given.lease_id),
            fencing_token=given.fencing_token,
            ttl_seconds=given.ttl_seconds,
        )
    )


@tool("lease_release", ring=ACT, answers=Released, service_checks_key=True)
def lease_release(call: Call, given: Release) -> dict[str, Any]:
    """End your own lease, so that the next one need not wait. NOT_FOUND: it has ended already."""
    lease_id = api.named(call.caller, given.lease_id)
    return api.released_view(services.release(caller=call.caller, lease_id=lease_id, fencing_token=given.fencing_token))


@tool("lease_status", answers=Status, reads=True)
def lease_status(call: Call, given: OnResource) -> dict[str, Any]:
    """How a resource stands: free, held, or unknown (its lease ran out and nobody has tidied up yet: it can be
    acquired). Says until when it is held; who holds it, as far as this key may see."""
    return lean(api.lease_view(call.caller, _row(call, given), clock.now()))


@tool("lease_status", answers=Waited, reads=True)
def lease_wait(call: Call, given: WaitFor) -> dict[str, Any]:
    """Wait, up to wait_seconds, until a resource is not held any more; then call lease_acquire. "pending": true: it is
    still held, call again after retry_after_s. Waiting is no place in a queue: somebody else may be faster."""

    def look() -> dict[str, Any]:
        return lean(api.lease_view(call.caller, _row(call, given), clock.now()))

    organization, seconds = call.caller.organization, given.wait_seconds
    view = waiting.wait(
        look, organization=organization, until=lambda seen: seen["state"] != "held", seconds=seconds, first=look()
    )
    if view["state"] != "held":
        hint = GIVEN_BY.get(given.resource_type, "It can be acquired: call lease_acquire.")
        return {**view, "pending": False, "hint": hint}
    return {**view, "pending": True, "retry_after_s": min(25, refusals.seconds(view["expires_in_ms"]))}


@tool("lease_force_release", ring=OPERATE, answers=Released, destroys=True, repeatable=False)
def lease_force_release(call: Call, given: ForceRelease) -> dict[str, Any]:
    """For operators: end anybody's lease, recorded with the reason. Its holder may still be at work and is only told at
    its next call: make sure that it has stopped."""
    return api.released_view(
        services.force_release(
            actor=services.Actor.of(call.caller),
            lease_id=queries.parse_lease_id(given.lease_id),
            fencing_token=given.fencing_token,
            reason=given.reason,
        )
    )


def _row(call: Call, given: OnResource) -> Resource:
    row = queries.resource(caller=call.caller, resource_type=given.resource_type, resource_id=given.resource_id)
    return row or Resource(resource_type=given.resource_type, resource_id=given.resource_id)
