"""/v1/pools."""

import json
from http import HTTPStatus
from typing import Annotated, Any, ClassVar, Literal

from django.http import HttpRequest, HttpResponse
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from leasehub.api import paging, waiting
from leasehub.api.parsing import (
    Body,
    Holder,
    Page,
    Token,
    bounded_json,
    json_object,
    parse_body,
    parse_query,
)
from leasehub.api.rendering import data
from leasehub.api.views import Operation, operation
from leasehub.db import clock
from leasehub.errors import Forbidden, NotFound, QuotaExceeded
from leasehub.identity.authentication import Caller
from leasehub.identity.errors import OutsideFence
from leasehub.identity.rings import ACT, OBSERVE, OPERATE
from leases.api import Seconds, grant_view, released_view
from leases.errors import LeaseLost, StaleToken
from leases.replays import with_time_left
from leases.services import Actor
from pools import answers, queries, services
from pools.errors import Busy, Saturated, Unsatisfiable
from pools.models import CommandRun, Request, public_request_id

MAX_WAIT_SECONDS = 25
MAX_SELECTOR = 20


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 4 else value


def _switch(value: Any) -> Any:
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


def _selector(value: dict[str, Any]) -> dict[str, Any]:
    if len(value) > MAX_SELECTOR or any(not path or len(path) > 200 for path in value):
        raise ValueError(f"must have at most {MAX_SELECTOR} paths of 1 to 200 characters")
    bounded_json(value)
    return value


Wait = Annotated[int, Field(ge=0, le=MAX_WAIT_SECONDS)]
QueryWait = Annotated[int, BeforeValidator(_number), Field(ge=0, le=MAX_WAIT_SECONDS)]
QuerySwitch = Annotated[bool, BeforeValidator(_switch)]
Selector = Annotated[dict[str, Any], AfterValidator(_selector)]
Number = Annotated[int | float, Field(gt=0)]


class PoolFileBody(Body):
    """The pool file. Every other member of a slot is an attribute of it."""

    EXAMPLE: ClassVar = {"slots": [{"id": 1}, {"id": 2}], "provision": "./fresh-database.sh", "ttlMinutes": 30}

    slots: list[dict[str, Any]]
    name: str | None = None
    provision: str | None = None
    reset: str | None = None
    health: str | None = None
    nudgeCommand: str | None = None
    nudgeEvent: str | None = None
    shellPrefix: str | None = None
    bookkeeper: str | None = None
    kindPrefix: str | None = None
    queueLockKind: str | None = None
    ttlMinutes: Number | None = None
    waiterStaleMs: Number | None = None
    movingAvgSeedMs: Number | None = None
    claimWindowMs: Number | None = None
    commandTimeoutMs: Number | None = None
    grantEnv: dict[str, str] | None = None
    grantFields: dict[str, Any] | None = None
    cwd: str | None = None
    worker: str | None = None


class PoolLine(BaseModel):
    pool: str
    worker: str
    ttl_minutes: float
    moving_avg_ms: int
    declared_at: str
    slots_total: int
    slots_held: int
    slots_free: int
    slots_out: int
    waiting: int


class PoolPage(BaseModel):
    pools: list[PoolLine]
    next: str | None


class SlotView(BaseModel):
    slot_id: str | int | float
    kind: str
    attrs: dict[str, Any]
    state: Literal["free", "held", "unknown"]
    condition: Literal["enabled", "draining", "broken", "removed"]
    #: A command runs on it, or waits to.
    busy: bool
    clean: bool
    holder: str | None
    principal: str | None
    lease_id: str | None
    request_id: str | None
    expires_at: str | None
    expires_in_ms: int | None
    failures: int
    error: str | None


class QueueEntry(BaseModel):
    request_id: str
    holder: str
    principal: str
    session: str
    mode: str
    count: int
    selector: dict[str, Any]
    position: int
    eta_ms: int
    eta_better_ms: int
    queued_at: str
    seen_at: str


class PoolView(PoolLine):
    #: Whether a live worker runs the commands; null without any.
    served: bool | None
    #: The pool file without its slots; shown to RING-3.
    declaration: dict[str, Any] | None
    slots: list[SlotView]
    queue: list[QueueEntry]


class AskForSlots(Body):
    EXAMPLE: ClassVar = {"mode": "blocking", "wait_seconds": 20}

    mode: Literal["blocking", "async"]
    holder: Holder | None = None
    #: Whom the nudge is for; the holder unless given.
    session: Holder | None = None
    ttl_seconds: Seconds | None = None
    wait_seconds: Wait = 0
    no_wait: bool = False
    selector: Selector | None = None
    count: Annotated[int, Field(ge=1, le=services.MAX_COUNT)] = 1


class Grant(BaseModel):
    #: And the pool's grantFields.
    model_config = ConfigDict(extra="allow")

    request_id: str
    slot_id: str | int | float
    kind: str
    mode: str
    holder: str
    lease_id: str
    fencing_token: int
    expires_at: str
    expires_in_ms: int
    ttl_minutes: float
    attrs: dict[str, Any]
    grant_fields: dict[str, Any]
    env: dict[str, str]
    granted_at: str


class RequestView(BaseModel):
    request_id: str
    pool: str
    state: str
    position: int | None
    eta_ms: int | None
    eta_better_ms: int | None
    moving_avg_ms: int | None
    #: With tokens: shown to its own principal once it is ready.
    grants: list[Grant]
    ticket: int
    mode: str
    principal: str
    holder: str
    session: str
    count: int
    selector: dict[str, Any]
    ttl_minutes: float
    shell_prefix: str
    slot_id: str | int | float | None
    error: str | None
    reason: str | None
    created_at: str
    ready_at: str | None
    ended_at: str | None


class RequestPage(BaseModel):
    requests: list[RequestView]
    next: str | None


class ListRequests(Page):
    state: Literal[tuple(Request.State.values)] | None = None  # type: ignore[valid-type]


class FollowRequest(Body):
    wait_seconds: QueryWait = 0
    #: A sign of life that does not count as receiving the grants, and does not show them.
    peek: QuerySwitch = False


class NamedSlot(Body):
    EXAMPLE: ClassVar = {"fencing_token": 1796036293829}

    fencing_token: Token


class BeatSlot(NamedSlot):
    ttl_seconds: Seconds | None = None


class ResetOfSlot(NamedSlot):
    wait_seconds: Wait = 0


class Reprovision(Body):
    holder: Holder | None = None
    ttl_seconds: Seconds | None = None
    wait_seconds: Wait = 0


class RunCommands(Body):
    wait_seconds: Wait = 0


class FollowRun(Body):
    wait_seconds: QueryWait = 0


class BeatenSlot(BaseModel):
    slot_id: str | int | float
    lease_id: str
    fencing_token: int
    expires_at: str
    expires_in_ms: int


class ReleasedSlot(BaseModel):
    slot_id: str | int | float
    lease_id: str
    released_at: str
    was_expired: bool


class RunView(BaseModel):
    #: And, for RING-3, "results": what each command printed.
    model_config = ConfigDict(extra="allow")

    slot_id: str | int | float
    run_id: str | None
    purpose: str | None
    state: str
    outcome: str | None
    failed_action: str | None
    error: str | None
    condition: str
    ended_at: str | None


class Pumped(BaseModel):
    reaped_slots: list[dict[str, Any]]
    dropped: list[RequestView]
    #: Shown to RING-1.
    status: PoolView | None


class Pools(Operation):
    @operation("pool_list", ring=OBSERVE, query=Page, answers={200: PoolPage}, summary="The pools")
    def get(self, request: HttpRequest) -> HttpResponse:
        found, following = paging.page(queries.pools(organization=self.caller.organization), parse_query(request, Page))
        counts = queries.counts(pools=found)
        return data({"pools": [answers.pool_line(pool, counts[pool.pk]) for pool in found], "next": following})


class PoolByName(Operation):
    @operation(
        "pool_show",
        ring=OBSERVE,
        answers={200: PoolView},
        errors=[NotFound],
        summary="A pool with its slots and its queue",
    )
    def get(self, request: HttpRequest, pool: str) -> HttpResponse:
        parse_query(request, Body)
        found = queries.pool_on_show(organization=self.caller.organization, name=pool)
        return data(answers.pool_view(self.caller, found))

    @operation(
        "pool_declare",
        ring=OPERATE,
        body=PoolFileBody,
        answers={200: PoolView, 201: PoolView},
        errors=[Forbidden, Unsatisfiable],
        summary="Make a pool what the pool file says; live leases are never touched",
    )
    def put(self, request: HttpRequest, pool: str) -> HttpResponse:
        parse_query(request, Body)
        made, is_new = services.declare(actor=Actor.of(self.caller), name=pool, document=json_object(request))
        headers = {"Location": f"/v1/pools/{pool}"} if is_new else {}
        made = queries.pool_on_show(organization=made.organization_id, name=pool)
        return data(answers.pool_view(self.caller, made), 201 if is_new else 200, headers)


def how_it_stands(caller: Caller, request: HttpRequest, response: HttpResponse) -> HttpResponse:
    """The answer to a new request, or to the same one again: its state now, or after the wait that was asked for."""
    row = getattr(response, "made", None)
    if response.status_code == HTTPStatus.CREATED:
        return response if row is not None else _still_granted(caller, response)
    if row is None:
        named = json.loads(response.content)["data"]
        row = queries.request(caller=caller, pool=named["pool"], request_id=named["request_id"])
        row = settled(caller, row, 0, fetch=True)
    wait_seconds = parse_body(request, AskForSlots).wait_seconds
    if wait_seconds and row.state in Request.UNCLEAN:
        row = settled(caller, row, wait_seconds, fetch=True)
    view = request_answer(caller, row)
    status = 201 if row.state == Request.State.READY else 202
    return data(view, status, {"Location": response.headers["Location"]})


def _still_granted(caller: Caller, response: HttpResponse) -> HttpResponse:
    """A remembered answer, with the time that is left of its leases now."""
    told = json.loads(response.content)["data"]
    grants = with_time_left(caller, told["grants"])
    return data({**told, "grants": grants}, HTTPStatus.CREATED, {"Location": response.headers["Location"]})


class Requests(Operation):
    @operation(
        "pool_request_list",
        query=ListRequests,
        answers={200: RequestPage},
        errors=[NotFound],
        summary="A pool's requests: RING-1 sees all, other keys their own",
    )
    def get(self, request: HttpRequest, pool: str) -> HttpResponse:
        given = parse_query(request, ListRequests)
        rows = queries.requests(caller=self.caller, pool=queries.pool(organization=self.caller.organization, name=pool))
        if given.state is not None:
            rows = rows.filter(state=given.state)
        found, following = paging.page(rows, given, newest_first=True)
        return data({"requests": [answers.request_view(self.caller, row, None) for row in found], "next": following})

    @operation(
        "pool_request",
        ring=ACT,
        body=AskForSlots,
        answers={201: RequestView, 202: RequestView},
        errors=[NotFound, OutsideFence, Saturated, Unsatisfiable, QuotaExceeded],
        settled=how_it_stands,
        summary="Ask for slots: granted at once when they are free, else a place in the queue",
    )
    def post(self, request: HttpRequest, pool: str) -> HttpResponse:
        given = parse_body(request, AskForSlots)
        made = services.request(
            caller=self.caller,
            pool=pool,
            mode=given.mode,
            holder=given.holder,
            session=given.session,
            ttl_seconds=given.ttl_seconds,
            selector=given.selector,
            count=given.count,
            no_wait=given.no_wait,
        )
        named = {"pool": pool, "request_id": public_request_id(made.request_id)}
        is_ready = made.state == Request.State.READY
        # What was granted at once is remembered whole: the same answer again, though it may have ended since.
        told = request_answer(self.caller, made) if is_ready else named
        address = f"/v1/pools/{pool}/requests/{named['request_id']}"
        response = data(told, 201 if is_ready else 202, {"Location": address})
        response.made = made  # type: ignore[attr-defined]
        return response


class RequestById(Operation):
    @operation(
        "pool_request_show",
        query=FollowRequest,
        answers={200: RequestView},
        errors=[NotFound, Unsatisfiable],
        summary="The waiter's sign of life, and its answer",
    )
    def get(self, request: HttpRequest, pool: str, request_id: str) -> HttpResponse:
        given = parse_query(request, FollowRequest)
        row = queries.request(caller=self.caller, pool=pool, request_id=request_id)
        row = settled(self.caller, row, given.wait_seconds, fetch=not given.peek)
        if row.state == Request.State.DROPPED and row.reason == "unsatisfiable":
            raise Unsatisfiable(
                "The pool has shrunk below what this request asked for.", request_id=request_id, state=row.state
            )
        view = request_answer(self.caller, row)
        return data({**view, "grants": []} if given.peek else view)

    @operation(
        "pool_request_cancel",
        ring=ACT,
        answers={200: RequestView},
        errors=[NotFound, Busy],
        remembers=False,
        summary="Leave the queue, or give back what was granted; RING-3 drops anybody's request that waits",
    )
    def delete(self, request: HttpRequest, pool: str, request_id: str) -> HttpResponse:
        parse_query(request, Body)
        row = queries.request(caller=self.caller, pool=pool, request_id=request_id)
        return data(request_answer(self.caller, services.cancel(caller=self.caller, request=row)))


def settled(caller: Caller, row: Request, wait_seconds: int, *, fetch: bool) -> Request:
    """The request once it is neither queued nor provisioning, or when the time is up; each look is a sign of life."""
    row.principal  # noqa: B018  loaded once, since the row is looked at again and again

    def look() -> Request:
        _revive(row)
        return services.seen(caller=caller, request=row, fetch=fetch)

    return waiting.wait(
        look,
        organization=caller.organization,
        until=lambda seen: seen.state not in Request.UNCLEAN,
        seconds=wait_seconds,
        first=look(),
    )


def _revive(row: Request) -> None:
    """Brings the request up to date, and does not wait for the reaper."""
    if row.state not in Request.OPEN:
        return
    row.refresh_from_db()
    if services.has_dead_leases(row.pool):
        services.sweep(pool=row.pool)
        row.refresh_from_db()


def request_answer(caller: Caller, row: Request) -> dict[str, Any]:
    estimate = None
    if row.state == Request.State.QUEUED:
        position = queries.position(request=row)
        row.pool.refresh_from_db(fields=["durations_ms"])
        estimate = queries.estimate(pool=row.pool, position=position, at=clock.now())
    return answers.request_view(caller, row, estimate)


class HeartbeatSlot(Operation):
    @operation(
        "pool_heartbeat",
        ring=ACT,
        body=BeatSlot,
        answers={200: BeatenSlot},
        errors=[NotFound, StaleToken, LeaseLost],
        remembers=False,
        summary="A sign of life: the slot's lease lasts another ttl from now",
    )
    def post(self, request: HttpRequest, pool: str, slot_id: str) -> HttpResponse:
        given = parse_body(request, BeatSlot)
        slot, grant = services.heartbeat(
            caller=self.caller,
            pool=pool,
            slot_id=slot_id,
            fencing_token=given.fencing_token,
            ttl_seconds=given.ttl_seconds,
        )
        return data({"slot_id": slot.id_value, **grant_view(grant)})


class ReleaseSlot(Operation):
    @operation(
        "pool_release",
        ring=ACT,
        body=NamedSlot,
        answers={200: ReleasedSlot},
        errors=[NotFound, StaleToken, LeaseLost],
        summary="Give a slot back",
    )
    def post(self, request: HttpRequest, pool: str, slot_id: str) -> HttpResponse:
        given = parse_body(request, NamedSlot)
        slot, ended = services.release(
            caller=self.caller, pool=pool, slot_id=slot_id, fencing_token=given.fencing_token
        )
        return data({"slot_id": slot.id_value, **released_view(ended)})


def how_it_runs(caller: Caller, request: HttpRequest, response: HttpResponse) -> HttpResponse:
    """The commands' end, or how far they are when the time is up."""
    named = json.loads(response.content)["data"]
    if named["run_id"] is None:
        return response
    wait_seconds = json_object(request).get("wait_seconds", 0)
    return _run_answer(caller, named["pool"], named["run_id"], wait_seconds, headers=dict(_location(response)))


def _location(response: HttpResponse) -> list[tuple[str, str]]:
    return [("Location", response.headers["Location"])] if "Location" in response.headers else []


def _run_answer(
    caller: Caller, pool: str, run_id: str, wait_seconds: int, *, headers: dict[str, str] | None = None
) -> HttpResponse:
    def look() -> CommandRun:
        return queries.run(caller=caller, pool=pool, run_id=run_id)

    ended = CommandRun.State.ENDED
    run = waiting.wait(
        look,
        organization=caller.organization,
        until=lambda seen: seen.state == ended,
        seconds=wait_seconds,
        first=look(),
    )
    assert run.slot is not None
    view = answers.run_view(caller, run.slot, run)
    return data(view, 200 if run.state == ended or headers is None else 202, headers)


def _begun(caller: Caller, pool: str, slot: Any, run: CommandRun | None) -> HttpResponse:
    view = answers.run_view(caller, slot, run)
    if run is None:
        return data(view)
    return data({**view, "pool": pool}, 202, {"Location": f"/v1/pools/{pool}/runs/{view['run_id']}"})


class ResetSlot(Operation):
    @operation(
        "pool_reset",
        ring=ACT,
        body=ResetOfSlot,
        answers={200: RunView, 202: RunView},
        errors=[NotFound, StaleToken, LeaseLost, Busy, Unsatisfiable],
        settled=how_it_runs,
        summary="Make a slot that one holds clean again",
    )
    def post(self, request: HttpRequest, pool: str, slot_id: str) -> HttpResponse:
        given = parse_body(request, ResetOfSlot)
        slot, run = services.reset(caller=self.caller, pool=pool, slot_id=slot_id, fencing_token=given.fencing_token)
        return _begun(self.caller, pool, slot, run)


class ReprovisionSlot(Operation):
    @operation(
        "pool_reprovision",
        ring=OPERATE,
        body=Reprovision,
        answers={200: RunView, 202: RunView},
        errors=[NotFound, Busy, Unsatisfiable, OutsideFence],
        settled=how_it_runs,
        summary="Make a free slot clean; passing repairs a broken one",
    )
    def post(self, request: HttpRequest, pool: str, slot_id: str) -> HttpResponse:
        given = parse_body(request, Reprovision)
        slot, run = services.reprovision(
            actor=Actor.of(self.caller),
            pool=pool,
            slot_id=slot_id,
            holder=self.caller.fenced(given.holder),
            ttl_seconds=given.ttl_seconds,
        )
        return _begun(self.caller, pool, slot, run)


class CheckSlot(Operation):
    @operation(
        "pool_health",
        ring=OPERATE,
        body=RunCommands,
        answers={200: RunView, 202: RunView},
        errors=[NotFound, Busy, Unsatisfiable],
        settled=how_it_runs,
        summary="Ask for a slot's health; passing repairs a broken one",
    )
    def post(self, request: HttpRequest, pool: str, slot_id: str) -> HttpResponse:
        parse_body(request, RunCommands)
        slot, run = services.health(actor=Actor.of(self.caller), pool=pool, slot_id=slot_id)
        return _begun(self.caller, pool, slot, run)


class RunById(Operation):
    @operation(
        "pool_run_show",
        query=FollowRun,
        answers={200: RunView},
        errors=[NotFound],
        summary="How commands that one asked for went; RING-3 sees everybody's, with their output",
    )
    def get(self, request: HttpRequest, pool: str, run_id: str) -> HttpResponse:
        given = parse_query(request, FollowRun)
        run = queries.run(caller=self.caller, pool=pool, run_id=run_id)
        if run.slot is None:
            raise NotFound
        return _run_answer(self.caller, pool, run_id, given.wait_seconds)


class DrainSlot(Operation):
    @operation(
        "pool_drain",
        ring=OPERATE,
        body=Body,
        answers={200: SlotView},
        errors=[NotFound],
        summary="No more grants of a slot; a live lease goes on",
    )
    def post(self, request: HttpRequest, pool: str, slot_id: str) -> HttpResponse:
        parse_body(request, Body)
        return _slot(self.caller, services.drain(actor=Actor.of(self.caller), pool=pool, slot_id=slot_id))


class UndrainSlot(Operation):
    @operation(
        "pool_undrain",
        ring=OPERATE,
        body=Body,
        answers={200: SlotView},
        errors=[NotFound],
        summary="Grant a drained slot again",
    )
    def post(self, request: HttpRequest, pool: str, slot_id: str) -> HttpResponse:
        parse_body(request, Body)
        return _slot(self.caller, services.undrain(actor=Actor.of(self.caller), pool=pool, slot_id=slot_id))


class RepairSlot(Operation):
    @operation(
        "pool_repair",
        ring=OPERATE,
        body=Body,
        answers={200: SlotView},
        errors=[NotFound],
        summary="Say that a broken slot works again",
    )
    def post(self, request: HttpRequest, pool: str, slot_id: str) -> HttpResponse:
        parse_body(request, Body)
        return _slot(self.caller, services.repair(actor=Actor.of(self.caller), pool=pool, slot_id=slot_id))


def _slot(caller: Caller, slot: Any) -> HttpResponse:
    (held,) = queries.with_leases([slot])
    return data(answers.slot_view(caller, held, clock.now()))


class PumpPool(Operation):
    @operation(
        "pool_pump",
        ring=ACT,
        body=Body,
        answers={200: Pumped},
        errors=[NotFound],
        summary="Tidy up and grant what can be granted, as the server does by itself every few seconds",
    )
    def post(self, request: HttpRequest, pool: str) -> HttpResponse:
        parse_body(request, Body)
        pumped = services.pump(organization=self.caller.organization, pool=pool)
        found = queries.pool_on_show(organization=self.caller.organization, name=pool)
        shown = self.caller.observes
        return data(
            {
                "reaped_slots": [
                    {"slot_id": slot_id, "previous_holder": holder if shown else None}
                    for slot_id, holder in pumped.reaped
                ],
                "dropped": [
                    answers.request_view(self.caller, row, None)
                    for row in pumped.dropped
                    if shown or answers.is_own(self.caller, row)
                ],
                "status": answers.pool_view(self.caller, found) if shown else None,
            }
        )
