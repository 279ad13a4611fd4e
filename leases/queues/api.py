"""/v1/queues, /v1/tasks and the hot claim."""

import uuid
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal

import orjson
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from pydantic import BaseModel, Field, RootModel

from leasehub.api import paging
from leasehub.api.parsing import (
    Body,
    Holder,
    Identifier,
    Message,
    Page,
    Payload,
    QueueName,
    Token,
    parse_body,
    parse_query,
    validated,
)
from leasehub.api.rendering import data, json_response, no_content
from leasehub.api.views import Operation, operation
from leasehub.db import clock
from leasehub.errors import NotFound, ValidationError
from leasehub.identity.authentication import Caller, check_key
from leasehub.identity.errors import OutsideFence
from leasehub.identity.rings import ACT, OBSERVE, OPERATE
from leases.api import Seconds
from leases.errors import LeaseLost, StaleToken
from leases.models import Resource, public_lease_id
from leases.queues import queries, services
from leases.queues.engines import Claim, NewTask, Put, Step
from leases.queues.errors import TaskIsNotDead
from leases.queues.models import LONGEST_PAUSE_SECONDS, MAX_ATTEMPTS, PRIORITIES, Queue, Task, public_task_id
from leases.queues.waiting import Crowded, watch
from leases.replays import with_time_left
from leases.services import Actor

MOST_TASKS = 1000
MOST_CLAIMS = 100
LONGEST_WAIT_SECONDS = 25
# Said to a call that may not wait because too many do.
CROWDED_RETRY_MS = 1000

State = Literal["ready", "leased", "done", "dead"]


class TaskToPut(Body):
    payload: Payload = None
    priority: Annotated[int, Field(ge=PRIORITIES[0], le=PRIORITIES[-1])] = 0
    delay_seconds: Annotated[int, Field(ge=0, le=LONGEST_PAUSE_SECONDS)] = 0
    max_attempts: Annotated[int, Field(ge=1, le=MAX_ATTEMPTS, description="By default the queue's, 5")] | None = None
    dedupe_key: Identifier | None = None

    def task(self) -> NewTask:
        return NewTask(self.payload, self.priority, self.delay_seconds, self.max_attempts, self.dedupe_key)


class PutTasks(TaskToPut):
    """One task; or, with ``tasks`` alone, many, all or none."""

    EXAMPLE: ClassVar = {"tasks": [{"payload": {"commit": "4f2a91c"}, "priority": 5, "dedupe_key": "build-4f2a91c"}]}

    tasks: Annotated[list[TaskToPut], Field(min_length=1, max_length=MOST_TASKS)] | None = None


class TaskPut(BaseModel):
    task_id: str
    state: State
    ready_at: str | None
    #: A live task has the dedupe_key: this is it.
    deduplicated: bool


class TasksPut(BaseModel):
    tasks: list[TaskPut]


class PutAnswer(RootModel[TaskPut | TasksPut]):
    pass


class ClaimTask(Body):
    EXAMPLE: ClassVar = {"queue": "build", "ttl_seconds": 60, "wait_seconds": 20}

    queue: QueueName
    holder: Holder | None = None
    ttl_seconds: Seconds = max(settings.LEASEHUB_MIN_TTL_SECONDS, min(300, settings.LEASEHUB_MAX_TTL_SECONDS))
    wait_seconds: Annotated[int, Field(ge=0, le=LONGEST_WAIT_SECONDS)] = 0
    count: Annotated[int, Field(ge=1, le=MOST_CLAIMS)] = 1


class ClaimedTask(BaseModel):
    task_id: str
    fencing_token: int
    expires_at: str
    expires_in_ms: int
    lease_id: str
    attempt: int
    payload: Any


class ClaimedTasks(BaseModel):
    claims: list[ClaimedTask]


class ClaimAnswer(RootModel[ClaimedTask | ClaimedTasks]):
    """With ``count`` above 1 the second."""


class CompleteTask(Body):
    EXAMPLE: ClassVar = {"fencing_token": 1796036293829, "result": {"passed": True}}

    fencing_token: Token
    result: Payload = None


class FailTask(Body):
    EXAMPLE: ClassVar = {
        "fencing_token": 1796036293829,
        "error": "the linker ran out of memory",
        "retry_in_seconds": 30,
    }

    fencing_token: Token
    error: Message
    retry_in_seconds: Annotated[int, Field(ge=0, le=LONGEST_PAUSE_SECONDS)] | None = None
    final: bool = False


class TaskStep(BaseModel):
    task_id: str
    state: State
    ready_at: str | None


class Claimant(BaseModel):
    lease_id: str
    principal: str
    holder: str
    state: Literal["held", "unknown"]
    acquired_at: str
    heartbeat_at: str
    expires_at: str
    expires_in_ms: int
    #: Shown to its own principal and to RING-3.
    fencing_token: int | None


class TaskView(BaseModel):
    task_id: str
    queue: str
    state: State
    priority: int
    attempts: int
    max_attempts: int
    dedupe_key: str | None
    created_at: str
    #: Claimable from then on.
    ready_at: str | None
    finished_at: str | None
    payload: Any
    result: Any
    #: Of the last failure.
    error: str | None
    lease: Claimant | None


class QueueView(BaseModel):
    queue: str
    ready: int
    delayed: int
    leased: int
    dead: int
    oldest_age_ms: int | None
    claims_per_minute: int
    max_attempts: int
    backoff_base_seconds: int
    backoff_max_seconds: int
    keep_days: int
    created_at: str


class QueuePage(BaseModel):
    queues: list[QueueView]
    next: str | None


class NothingToClaim(Exception):
    """Rolls back what an Idempotency-Key would remember: that a queue is empty is no answer to keep."""

    def __init__(self, given: ClaimTask) -> None:
        self.given = given


class QueueTasks(Operation):
    @operation(
        "task_put",
        ring=ACT,
        body=PutTasks,
        answers={201: PutAnswer, 200: PutAnswer},
        # For an address that no queue can have.
        errors=[NotFound],
        service_checks_key=True,
        summary="Put one task, or up to 1,000, into a queue",
    )
    def post(self, request: HttpRequest, queue: str) -> HttpResponse:
        given = parse_body(request, PutTasks)
        many = given.tasks is not None
        if many and len(given.model_fields_set) > 1:
            raise ValidationError("Give one task, or tasks alone.", tasks="must stand alone")
        answers = services.put(
            caller=self.caller,
            queue=_queue_name(queue),
            tasks=[task.task() for task in given.tasks or [given]],
        )
        if many:
            return data({"tasks": [put_view(answer) for answer in answers]}, 201)
        location = {"Location": f"/v1/tasks/{public_task_id(answers[0].task)}"}
        return data(put_view(answers[0]), 200 if answers[0].was_live else 201, location)


def still_running(caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
    """Remembered claims, with the time that is left of each now."""
    if "claims" in body:
        return {"claims": with_time_left(caller, body["claims"])}
    (claim,) = with_time_left(caller, [body])
    return claim


class HotClaim(Operation):
    def _answer(self, handler: Any, request: HttpRequest, kwargs: dict[str, Any]) -> HttpResponse:
        try:
            return super()._answer(handler, request, kwargs)
        except NothingToClaim as nothing:
            if nothing.given.wait_seconds == 0:
                return no_content()
            return self._wait(handler, request, kwargs, nothing.given)

    def _wait(self, handler: Any, request: HttpRequest, kwargs: dict[str, Any], given: ClaimTask) -> HttpResponse:
        def attempt() -> HttpResponse | None:
            try:
                return super(HotClaim, self)._answer(handler, request, kwargs)
            except NothingToClaim:
                return None

        try:
            claimed = watch.wait(attempt, at=(self.caller.organization, given.queue), seconds=given.wait_seconds)
        except Crowded:
            return no_content(retry_after_ms=CROWDED_RETRY_MS)
        return claimed or no_content()

    @operation(
        "task_claim",
        ring=ACT,
        body=ClaimTask,
        answers={200: ClaimAnswer, 204: None},
        errors=[OutsideFence],
        service_checks_key=True,
        replayed=still_running,
        is_bare=True,
        summary="Claim the next task of a queue, or up to 100; 204 when there is none",
    )
    def post(self, request: HttpRequest) -> HttpResponse:
        given = parse_body(request, ClaimTask)
        claims = services.claim(
            caller=self.caller,
            queue=given.queue,
            holder=given.holder,
            ttl_seconds=given.ttl_seconds,
            count=given.count,
        )
        if not claims:
            raise NothingToClaim(given)
        found = [claim_view(claim) for claim in claims]
        return json_response(found[0] if given.count == 1 else {"claims": found})


class ShowTask(Operation):
    @operation("task_show", answers={200: TaskView}, errors=[NotFound], summary="One task, and who has it")
    def get(self, request: HttpRequest, task_id: str) -> HttpResponse:
        task = queries.task(caller=self.caller, task_id=queries.parse_task_id(task_id))
        return data(task_view(self.caller, task, clock.now()))


class CompleteTaskOperation(Operation):
    @operation(
        "task_complete",
        ring=ACT,
        body=CompleteTask,
        answers={200: TaskStep},
        errors=[NotFound, StaleToken, LeaseLost],
        service_checks_key=True,
        summary="The task is done: the claim ends",
    )
    def post(self, request: HttpRequest, task_id: str) -> HttpResponse:
        given = parse_body(request, CompleteTask)
        step = services.complete(
            caller=self.caller,
            task_id=named(self.caller, task_id),
            fencing_token=given.fencing_token,
            result=given.result,
        )
        return data(step_view(task_id, step))


class FailTaskOperation(Operation):
    @operation(
        "task_fail",
        ring=ACT,
        body=FailTask,
        answers={200: TaskStep},
        errors=[NotFound, StaleToken, LeaseLost],
        service_checks_key=True,
        summary="The task could not be done: ready again after a pause, or dead",
    )
    def post(self, request: HttpRequest, task_id: str) -> HttpResponse:
        given = parse_body(request, FailTask)
        step = services.fail(
            caller=self.caller,
            task_id=named(self.caller, task_id),
            fencing_token=given.fencing_token,
            error=given.error,
            retry_in_seconds=given.retry_in_seconds,
            final=given.final,
        )
        return data(step_view(task_id, step))


class RetryTask(Operation):
    @operation(
        "task_retry",
        ring=OPERATE,
        body=Body,
        answers={200: TaskView},
        errors=[NotFound, TaskIsNotDead],
        summary="A dead task is ready again, with all its attempts",
    )
    def post(self, request: HttpRequest, task_id: str) -> HttpResponse:
        parse_body(request, Body)
        task = services.retry(actor=Actor.of(self.caller), task_id=queries.parse_task_id(task_id))
        return data(task_view(self.caller, task, clock.now()))


class Queues(Operation):
    @operation(
        "queue_list",
        ring=OBSERVE,
        query=Page,
        answers={200: QueuePage},
        summary="The queues, with depth, oldest age and rate",
    )
    def get(self, request: HttpRequest) -> HttpResponse:
        rows = queries.queues(organization=self.caller.organization)
        found, following = paging.page(rows, parse_query(request, Page))
        return data({"queues": [queue_view(each) for each in queries.figures(queues=found)], "next": following})


class ShowQueue(Operation):
    @operation(
        "queue_show",
        ring=OBSERVE,
        answers={200: QueueView},
        errors=[NotFound],
        summary="One queue: ready, delayed, leased, dead, oldest age, claims per minute",
    )
    def get(self, request: HttpRequest, queue: str) -> HttpResponse:
        found: Queue = queries.queue(caller=self.caller, name=_queue_name(queue))
        return data(queue_view(queries.figures(queues=[found])[0]))


def put_view(answer: Put) -> dict[str, Any]:
    return {
        "task_id": public_task_id(answer.task),
        "state": answer.state,
        "ready_at": _iso(answer.ready_at),
        "deduplicated": answer.was_live,
    }


def claim_view(claim: Claim) -> dict[str, Any]:
    return {
        "task_id": public_task_id(claim.task),
        "fencing_token": claim.fencing_token,
        "expires_at": clock.iso(claim.expires_at),
        "expires_in_ms": clock.milliseconds_between(claim.at, claim.expires_at),
        "lease_id": public_lease_id(claim.lease_id),
        "attempt": claim.attempt,
        # It goes out as it is stored, without being read in between.
        "payload": None if claim.payload is None else orjson.Fragment(claim.payload),
    }


def step_view(task_id: str, step: Step) -> dict[str, Any]:
    return {"task_id": task_id, "state": step.state, "ready_at": _iso(step.ready_at)}


def task_view(caller: Caller, task: Task, at: datetime) -> dict[str, Any]:
    content = getattr(task, "content", None)
    held = queries.claim(organization=caller.organization, task_id=task.pk) if task.state == "leased" else None
    return {
        "task_id": task.task_id,
        "queue": task.queue.name,
        "state": task.state,
        "priority": task.priority,
        "attempts": task.attempts,
        "max_attempts": task.max_attempts,
        "dedupe_key": task.dedupe_key,
        "created_at": clock.iso(task.created_at),
        "ready_at": _iso(task.ready_at),
        "finished_at": _iso(task.finished_at),
        "payload": content and content.payload,
        "result": content and content.result,
        "error": task.last_error,
        "lease": None if held is None else claimant_view(caller, held, at),
    }


def claimant_view(caller: Caller, held: Resource, at: datetime) -> dict[str, Any]:
    assert held.lease_id and held.principal and held.acquired_at and held.heartbeat_at and held.expires_at
    remaining = clock.milliseconds_between(at, held.expires_at)
    mine = held.principal_id == caller.principal
    return {
        "lease_id": public_lease_id(held.lease_id),
        "principal": held.principal.handle,
        "holder": held.holder,
        "state": "held" if remaining > 0 else "unknown",
        "acquired_at": clock.iso(held.acquired_at),
        "heartbeat_at": clock.iso(held.heartbeat_at),
        "expires_at": clock.iso(held.expires_at),
        "expires_in_ms": max(0, remaining),
        "fencing_token": held.last_token if mine or caller.operates else None,
    }


def queue_view(figures: queries.Figures) -> dict[str, Any]:
    queue = figures.queue
    return {
        "queue": queue.name,
        "ready": figures.ready,
        "delayed": figures.delayed,
        "leased": figures.leased,
        "dead": figures.dead,
        "oldest_age_ms": figures.oldest_age_ms,
        "claims_per_minute": figures.claims_per_minute,
        "max_attempts": queue.max_attempts,
        "backoff_base_seconds": queue.backoff_base_seconds,
        "backoff_max_seconds": queue.backoff_max_seconds,
        "keep_days": queue.keep_days,
        "created_at": clock.iso(queue.created_at),
    }


def named(caller: Caller, task_id: str) -> uuid.UUID:
    """Raises NotFound, and Unauthenticated first: for an id that is none the hot path asks nobody."""
    try:
        return queries.parse_task_id(task_id)
    except NotFound:
        check_key(caller)
        raise


class _QueueName(Body):
    queue: QueueName


def _queue_name(text: str) -> str:
    """Raises ValidationError for what cannot be a queue's name."""
    return validated(_QueueName, {"queue": text}).queue


def _iso(at: datetime | None) -> str | None:
    return None if at is None else clock.iso(at)
