"""The tools of queues."""

from typing import Annotated, Any

from pydantic import Field

from leasehub.api.parsing import Message, Payload, QueueName
from leasehub.db import clock
from leasehub.identity.rings import ACT
from leasehub.mcp.schemas import (
    DEFAULT_TTL_SECONDS,
    Answer,
    Arguments,
    HolderName,
    Part,
    TokenOf,
    TtlSeconds,
    WaitSeconds,
)
from leasehub.mcp.server import Call, lean, tool
from leases import api as leases
from leases.queues import api, queries, services
from leases.queues.models import LONGEST_PAUSE_SECONDS
from leases.queues.waiting import Crowded, watch

TaskId = Annotated[str, Field(min_length=1, max_length=200, description="The task_id of your claim")]


class Claim(Arguments):
    queue: Annotated[QueueName, Field(description="The queue's name")]
    holder: HolderName | None = None
    ttl_seconds: TtlSeconds = DEFAULT_TTL_SECONDS
    wait_seconds: WaitSeconds = 0


class OfTask(Arguments):
    task_id: TaskId


class OfClaim(OfTask):
    fencing_token: TokenOf


class Heartbeat(OfClaim):
    ttl_seconds: TtlSeconds | None = None


class Complete(OfClaim):
    result: Annotated[Payload, Field(description="Any JSON, up to 64 KiB")] = None


class Fail(OfClaim):
    error: Annotated[Message, Field(description="What went wrong, for the one who tries next")]
    retry_in_seconds: Annotated[int, Field(ge=0, le=LONGEST_PAUSE_SECONDS)] | None = None
    final: Annotated[bool, Field(description="It is never to be tried again")] = False


class Claimed(Answer):
    claimed: bool
    pending: bool | None = None
    retry_after_s: int | None = None
    task_id: str | None = None
    fencing_token: int | None = None
    expires_at: str | None = None
    expires_in_ms: int | None = None
    lease_id: str | None = None
    attempt: int | None = None
    payload: Any = None


class Beaten(Answer):
    task_id: str
    lease_id: str
    fencing_token: int
    expires_at: str
    expires_in_ms: int


class Step(Answer):
    task_id: str
    state: str
    ready_at: str | None = None


class Released(Answer):
    task_id: str
    lease_id: str
    released_at: str
    was_expired: bool


class Claimant(Part):
    lease_id: str
    principal: str
    holder: str
    state: str
    acquired_at: str
    heartbeat_at: str
    expires_at: str
    expires_in_ms: int
    fencing_token: int | None = None


class Status(Answer):
    task_id: str
    queue: str
    state: str
    priority: int
    attempts: int
    max_attempts: int
    created_at: str
    dedupe_key: str | None = None
    ready_at: str | None = None
    finished_at: str | None = None
    payload: Any = None
    result: Any = None
    error: str | None = None
    lease: Claimant | None = None


@tool("task_claim", ring=ACT, answers=Claimed, repeatable=False, service_checks_key=True)
def task_claim(call: Call, given: Claim) -> dict[str, Any]:
    """Take the next task of a queue: the highest priority first, then the oldest. Keep task_id and fencing_token; call
    task_heartbeat before half of ttl_seconds is over, then task_complete, task_fail or task_release. Nothing to claim
    is no error: "claimed": false. An attempt counts when it is claimed."""

    def attempt() -> dict[str, Any] | None:
        claims = services.claim(
            caller=call.caller,
            queue=given.queue,
            holder=call.holder(given.holder),
            ttl_seconds=given.ttl_seconds,
        )
        return {"claimed": True, **api.claim_view(claims[0])} if claims else None

    found = attempt()
    if found is None and given.wait_seconds:
        try:
            found = watch.wait(attempt, at=(call.caller.organization, given.queue), seconds=given.wait_seconds)
        except Crowded:
            return {"claimed": False, "pending": True, "retry_after_s": 1, "hint": "Many wait just now: call again."}
    if found is None:
        return {"claimed": False, "pending": True, "hint": "Nothing to claim now: call again with wait_seconds 25."}
    return lean(found)


@tool("lease_heartbeat", ring=ACT, answers=Beaten, service_checks_key=True)
def task_heartbeat(call: Call, given: Heartbeat) -> dict[str, Any]:
    """A sign of life for a claim: it lasts another ttl_seconds from now. LEASE_LOST or STALE_TOKEN: stop, somebody
    else may have the task by now."""
    beaten = services.heartbeat(
        caller=call.caller,
        task_id=api.named(call.caller, given.task_id),
        fencing_token=given.fencing_token,
        ttl_seconds=given.ttl_seconds,
    )
    return {"task_id": given.task_id, **leases.grant_view(beaten)}


@tool("task_complete", ring=ACT, answers=Step, service_checks_key=True)
def task_complete(call: Call, given: Complete) -> dict[str, Any]:
    """The task is done, for good: your claim ends."""
    step = services.complete(
        caller=call.caller,
        task_id=api.named(call.caller, given.task_id),
        fencing_token=given.fencing_token,
        result=given.result,
    )
    return lean(api.step_view(given.task_id, step))


@tool("task_fail", ring=ACT, answers=Step, service_checks_key=True)
def task_fail(call: Call, given: Fail) -> dict[str, Any]:
    """The task could not be done: it is ready again after a pause, or dead when its attempts are used up or final is
    set. To give it back because you have no time for it, call task_release."""
    step = services.fail(
        caller=call.caller,
        task_id=api.named(call.caller, given.task_id),
        fencing_token=given.fencing_token,
        error=given.error,
        retry_in_seconds=given.retry_in_seconds,
        final=given.final,
    )
    return lean(api.step_view(given.task_id, step))


@tool("lease_release", ring=ACT, answers=Released, service_checks_key=True)
def task_release(call: Call, given: OfClaim) -> dict[str, Any]:
    """Give a claimed task back unfinished: the next one can claim it at once."""
    ended = services.give_back(
        caller=call.caller, task_id=api.named(call.caller, given.task_id), fencing_token=given.fencing_token
    )
    return {"task_id": given.task_id, **leases.released_view(ended)}


@tool("task_show", answers=Status, reads=True)
def task_status(call: Call, given: OfTask) -> dict[str, Any]:
    """How a task stands: ready, leased (and who has it), done or dead; with its payload and its result."""
    task = queries.task(caller=call.caller, task_id=queries.parse_task_id(given.task_id))
    view = api.task_view(call.caller, task, clock.now())
    return lean({**view, "lease": view["lease"] and lean(view["lease"])})
