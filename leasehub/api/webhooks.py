"""/v1/webhooks."""

from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal

from django.http import HttpRequest, HttpResponse
from pydantic import AfterValidator, BaseModel, Field, StringConstraints

from leasehub.api import paging
from leasehub.api.parsing import MAX_INTEGER, Body, Label, Page, parse_body, parse_query
from leasehub.api.rendering import data
from leasehub.api.views import Operation, operation
from leasehub.db import clock
from leasehub.errors import NotFound, QuotaExceeded
from leasehub.events.errors import CursorExpired
from leasehub.events.types import TYPES
from leasehub.events.webhooks import queries, services
from leasehub.events.webhooks.addresses import LONGEST_URL
from leasehub.events.webhooks.models import WebhookDelivery, WebhookEndpoint
from leasehub.identity.rings import OPERATE

State = Literal["active", "paused", "disabled"]
DeliveryState = Literal["pending", "delivered", "failed"]
Position = Annotated[int, Field(ge=0, le=MAX_INTEGER)]


def _known(types: list[str]) -> list[str]:
    if unknown := sorted({repr(type)[:60] for type in types if type not in TYPES}):
        raise ValueError(f"unknown: {', '.join(unknown[:10])}")
    return types


class WebhookView(BaseModel):
    webhook_id: str
    url: str
    #: Empty: all.
    types: list[str]
    description: str
    state: State
    #: Why the server disabled it.
    reason: str | None
    principal: str
    #: Up to this position of the feed everything was delivered, or did not concern it.
    cursor: int
    #: Attempts in a row that failed, and since when.
    failures: int
    failing_since: str | None
    next_attempt_at: str | None
    last_status: int | None
    last_delivered_at: str | None
    #: Until then messages are signed with the secret before the last rotation, too.
    old_secret_until: str | None
    created_at: str


class CreatedWebhook(WebhookView):
    #: Shown this once.
    secret: str


class WebhookPage(BaseModel):
    webhooks: list[WebhookView]
    next: str | None


class DeletedWebhook(BaseModel):
    webhook_id: str
    deleted_at: str


class DeliveryView(BaseModel):
    delivery_id: str
    webhook_id: str
    #: The webhook-id header: the same in every attempt and every replay.
    event_id: str
    position: int | None
    #: The event's; ``webhook.test``; ``webhook.missed`` where events were moved out before they were sent.
    type: str
    purpose: Literal["feed", "replay", "test"]
    state: DeliveryState
    attempts: int
    response_status: int | None
    #: Why the last attempt failed.
    error: str | None
    created_at: str
    attempted_at: str | None
    next_attempt_at: str | None
    ended_at: str | None
    took_ms: int | None


class DeliveryPage(BaseModel):
    deliveries: list[DeliveryView]
    next: str | None


class ReplayedSpan(BaseModel):
    webhook_id: str
    #: How many deliveries were added.
    queued: int
    #: Where to go on, with ``after``, when there were more than may wait, or be looked at, at once.
    next: int | None


class CreateWebhook(Body):
    EXAMPLE: ClassVar = {"url": "https://example.org/leasehub", "types": ["handoff.created"]}

    url: Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_URL)]
    types: Annotated[
        list[str], Field(max_length=len(TYPES), description="Event types; all without it"), AfterValidator(_known)
    ] = []
    description: Annotated[Label, StringConstraints(max_length=120)] = ""


class RotateSecret(Body):
    overlap_seconds: Annotated[int, Field(ge=0, le=services.LONGEST_OVERLAP_SECONDS)] = (
        services.ROTATION_OVERLAP_SECONDS
    )


class ReplaySpan(Body):
    EXAMPLE: ClassVar = {"after": 1204}

    after: Annotated[Position, Field(description="A position of the feed: the events that follow it")]
    before: Annotated[
        Position | None, Field(description="Up to, but not with this position; to the last delivered without it")
    ] = None


class Webhooks(Operation):
    @operation(
        "webhook_list", ring=OPERATE, query=Page, answers={200: WebhookPage}, summary="The organization's endpoints"
    )
    def get(self, request: HttpRequest) -> HttpResponse:
        rows = queries.endpoints(organization=self.caller.organization)
        found, following = paging.page(rows, parse_query(request, Page))
        return data({"webhooks": [webhook_view(row) for row in found], "next": following})

    @operation(
        "webhook_create",
        ring=OPERATE,
        body=CreateWebhook,
        answers={201: CreatedWebhook},
        errors=[QuotaExceeded],
        shows_secret=True,
        summary="Have events posted to a URL from now on; the secret that signs them is shown this once. Needs"
        " RING-1 as well: it is told of what RING-1 sees",
    )
    def post(self, request: HttpRequest) -> HttpResponse:
        given = parse_body(request, CreateWebhook)
        made, secret = services.create(caller=self.caller, **given.model_dump())
        location = {"Location": f"/v1/webhooks/{made.webhook_id}"}
        return data({**webhook_view(made), "secret": secret}, 201, location)


class Webhook(Operation):
    @operation("webhook_show", ring=OPERATE, answers={200: WebhookView}, errors=[NotFound], summary="One endpoint")
    def get(self, request: HttpRequest, webhook_id: str) -> HttpResponse:
        return data(webhook_view(queries.endpoint(organization=self.caller.organization, webhook_id=webhook_id)))

    @operation(
        "webhook_delete",
        ring=OPERATE,
        answers={200: DeletedWebhook},
        errors=[NotFound],
        summary="Delete an endpoint and its log",
    )
    def delete(self, request: HttpRequest, webhook_id: str) -> HttpResponse:
        row = services.delete(organization=self.caller.organization, webhook_id=webhook_id)
        return data({"webhook_id": row.webhook_id, "deleted_at": _iso(row.deleted_at)})


class PauseWebhook(Operation):
    @operation(
        "webhook_pause",
        ring=OPERATE,
        body=Body,
        answers={200: WebhookView},
        errors=[NotFound],
        summary="Send nothing until it is resumed; nothing is lost",
    )
    def post(self, request: HttpRequest, webhook_id: str) -> HttpResponse:
        parse_body(request, Body)
        return data(webhook_view(services.pause(organization=self.caller.organization, webhook_id=webhook_id)))


class ResumeWebhook(Operation):
    @operation(
        "webhook_resume",
        ring=OPERATE,
        body=Body,
        answers={200: WebhookView},
        errors=[NotFound],
        summary="Go on from where it was, at once, after a pause or when it was disabled",
    )
    def post(self, request: HttpRequest, webhook_id: str) -> HttpResponse:
        parse_body(request, Body)
        return data(webhook_view(services.resume(organization=self.caller.organization, webhook_id=webhook_id)))


class RotateWebhook(Operation):
    @operation(
        "webhook_rotate",
        ring=OPERATE,
        body=RotateSecret,
        answers={200: CreatedWebhook},
        errors=[NotFound],
        shows_secret=True,
        summary="A new secret, shown this once; until the overlap is over messages carry both signatures",
    )
    def post(self, request: HttpRequest, webhook_id: str) -> HttpResponse:
        given = parse_body(request, RotateSecret)
        row, secret = services.rotate(
            organization=self.caller.organization, webhook_id=webhook_id, overlap_seconds=given.overlap_seconds
        )
        return data({**webhook_view(row), "secret": secret})


class TestWebhook(Operation):
    @operation(
        "webhook_test",
        ring=OPERATE,
        body=Body,
        answers={202: DeliveryView},
        errors=[NotFound, QuotaExceeded],
        summary="Send one message of type webhook.test, once, whatever the endpoint's state",
    )
    def post(self, request: HttpRequest, webhook_id: str) -> HttpResponse:
        parse_body(request, Body)
        made = services.test(organization=self.caller.organization, webhook_id=webhook_id)
        return _accepted(made)


class ReplayDeliveries(Operation):
    @operation(
        "webhook_replay",
        ring=OPERATE,
        body=ReplaySpan,
        answers={202: ReplayedSpan},
        errors=[NotFound, QuotaExceeded, CursorExpired],
        summary="Send the events between two positions again, in order",
    )
    def post(self, request: HttpRequest, webhook_id: str) -> HttpResponse:
        given = parse_body(request, ReplaySpan)
        row, queued, following = services.replay(
            organization=self.caller.organization, webhook_id=webhook_id, **given.model_dump()
        )
        return data({"webhook_id": row.webhook_id, "queued": queued, "next": following}, 202)


class Deliveries(Operation):
    @operation(
        "webhook_deliveries",
        ring=OPERATE,
        query=Page,
        answers={200: DeliveryPage},
        errors=[NotFound],
        summary="An endpoint's deliveries, newest first",
    )
    def get(self, request: HttpRequest, webhook_id: str) -> HttpResponse:
        row = queries.endpoint(organization=self.caller.organization, webhook_id=webhook_id)
        rows = queries.deliveries(endpoint=row).select_related("endpoint")
        found, following = paging.page(rows, parse_query(request, Page), newest_first=True)
        return data({"deliveries": [delivery_view(one) for one in found], "next": following})


class Delivery(Operation):
    @operation("webhook_delivery", ring=OPERATE, answers={200: DeliveryView}, errors=[NotFound], summary="One delivery")
    def get(self, request: HttpRequest, webhook_id: str, delivery_id: str) -> HttpResponse:
        row = queries.endpoint(organization=self.caller.organization, webhook_id=webhook_id)
        return data(delivery_view(queries.delivery(endpoint=row, delivery_id=delivery_id)))


class ReplayDelivery(Operation):
    @operation(
        "webhook_replay_delivery",
        ring=OPERATE,
        body=Body,
        answers={202: DeliveryView},
        errors=[NotFound, QuotaExceeded],
        summary="Send a message again, with the same webhook-id; one that is pending is tried at once",
    )
    def post(self, request: HttpRequest, webhook_id: str, delivery_id: str) -> HttpResponse:
        parse_body(request, Body)
        made = services.replay_delivery(
            organization=self.caller.organization, webhook_id=webhook_id, delivery_id=delivery_id
        )
        return _accepted(made)


def _accepted(made: WebhookDelivery) -> HttpResponse:
    view = delivery_view(made)
    return data(view, 202, {"Location": f"/v1/webhooks/{view['webhook_id']}/deliveries/{view['delivery_id']}"})


def webhook_view(row: WebhookEndpoint) -> dict[str, Any]:
    return {
        "webhook_id": row.webhook_id,
        "url": row.url,
        "types": row.types,
        "description": row.description,
        "state": row.state,
        "reason": row.reason or None,
        "principal": row.principal.handle,
        "cursor": row.cursor,
        "failures": row.failures,
        "failing_since": _iso(row.failing_since),
        "next_attempt_at": _iso(row.next_attempt_at) if row.failures and row.state == "active" else None,
        "last_status": row.last_status,
        "last_delivered_at": _iso(row.last_delivered_at),
        "old_secret_until": _iso(row.old_secret_until),
        "created_at": clock.iso(row.created_at),
    }


def delivery_view(row: WebhookDelivery) -> dict[str, Any]:
    due = row.next_attempt_at if row.purpose == "test" else row.endpoint.next_attempt_at
    return {
        "delivery_id": row.delivery_id,
        "webhook_id": row.endpoint.webhook_id,
        "event_id": row.message_id,
        "position": row.position,
        "type": row.type,
        "purpose": row.purpose,
        "state": row.state,
        "attempts": row.attempts,
        "response_status": row.response_status,
        "error": row.error or None,
        "created_at": clock.iso(row.created_at),
        "attempted_at": _iso(row.attempted_at),
        "next_attempt_at": _iso(due) if row.state == "pending" else None,
        "ended_at": _iso(row.ended_at),
        "took_ms": row.took_ms,
    }


def _iso(at: datetime | None) -> str | None:
    return None if at is None else clock.iso(at)
