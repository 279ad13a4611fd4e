"""/v1/explain."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from pydantic import BaseModel

from leasehub.api.parsing import Body, Identifier, parse_query
from leasehub.api.rendering import data
from leasehub.api.views import Operation, operation
from leasehub.errors import NotFound
from leasehub.explain import requests, resources


class ExplainResource(Body):
    resource_type: Identifier
    resource_id: Identifier


class Said(BaseModel):
    #: One word for programs: free, ran_out, held_by_you, held_by_another; of a request its state, or why it was
    #: dropped.
    reason: str
    #: The sentences and the advice as one text.
    explanation: str
    sentences: list[str]
    advice: str


class LastLease(BaseModel):
    lease_id: str
    fencing_token: int | None
    holder: str
    ended_by: str
    ended_at: str
    by: str | None
    reason_given: str | None
    handoff_id: str | None


class Happened(BaseModel):
    type: str
    at: str
    by: str | None
    principal: str | None
    holder: str | None
    lease_id: str | None
    reason: str | None


class ResourceExplained(Said):
    resource_type: str
    resource_id: str
    state: str
    mine: bool
    expires_at: str | None
    expires_in_ms: int | None
    #: From here on as far as the key may see it.
    lease_id: str | None
    principal: str | None
    holder: str | None
    purpose: str | None
    acquired_at: str | None
    heartbeat_at: str | None
    lifetime_ends_at: str | None
    #: The principal's own last lease on the resource, when it has ended.
    last_lease: LastLease | None
    #: Newest first.
    history: list[Happened]
    #: Of a task's resource.
    task_state: str | None = None
    #: Of a slot's resource.
    slot_condition: str | None = None


class Slots(BaseModel):
    slots_total: int
    slots_held: int
    slots_free: int
    slots_out: int
    waiting: int
    #: What the request's selector asks for.
    matching: int
    matching_free: int


class Ahead(BaseModel):
    principal: str
    holder: str
    count: int


class RequestExplained(Said):
    request_id: str
    pool: str
    state: str
    principal: str
    holder: str
    count: int
    selector: dict[str, Any]
    created_at: str
    ended_at: str | None
    position: int | None
    eta_ms: int | None
    slots: Slots | None
    #: Who is before it; shown to RING-1.
    ahead: list[Ahead]
    error: str | None


class Explain(Operation):
    @operation(
        "explain",
        query=ExplainResource,
        answers={200: ResourceExplained},
        summary="Why a resource is not to be had, how one's own last lease on it ended, and what happened to it",
    )
    def get(self, request: HttpRequest) -> HttpResponse:
        given = parse_query(request, ExplainResource)
        found = resources.explain(caller=self.caller, resource_type=given.resource_type, resource_id=given.resource_id)
        return data(found.body())


class ExplainRequest(Operation):
    @operation(
        "explain_request",
        answers={200: RequestExplained},
        errors=[NotFound],
        summary="Why a request to a pool waits, or how it ended",
    )
    def get(self, request: HttpRequest, request_id: str) -> HttpResponse:
        return data(requests.explain(caller=self.caller, request_id=request_id).body())
