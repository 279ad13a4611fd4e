"""/v1/events."""

from typing import Annotated, Any

from django.http import HttpRequest, HttpResponse
from pydantic import BaseModel, Field, StringConstraints

from leasehub.api.paging import cursor_number
from leasehub.api.parsing import Body, Limit, parse_query
from leasehub.api.rendering import data
from leasehub.api.views import Operation, operation
from leasehub.errors import ValidationError
from leasehub.events import queries
from leasehub.events.rendering import event_view
from leasehub.events.types import TYPES


class FeedQuery(Body):
    after: Annotated[str, Field(description="The cursor of an earlier answer; from the beginning without it")] = "0"
    types: Annotated[str, StringConstraints(max_length=1000), Field(description="Event types, separated by commas")] = (
        ""
    )
    resource: Annotated[str, StringConstraints(max_length=401), Field(description="resource_type/resource_id")] = ""
    limit: Limit = 50


class Actor(BaseModel):
    principal: str
    key_id: str | None


class EventView(BaseModel):
    event_id: str
    position: int
    type: str
    at: str
    actor: Actor | None
    resource_type: str | None
    resource_id: str | None
    lease_id: str | None
    fencing_token: int | None
    principal: str | None
    holder: str | None
    #: To whom it is addressed: the receiving party of a handoff.
    addressee: str | None
    data: dict[str, Any]


class EventPage(BaseModel):
    events: list[EventView]
    next: str | None
    cursor: str


class Events(Operation):
    @operation(
        "event_list",
        query=FeedQuery,
        answers={200: EventPage},
        summary="The feed: every event once, in order, from a cursor on",
    )
    def get(self, request: HttpRequest) -> HttpResponse:
        given = parse_query(request, FeedQuery)
        reading = queries.read(
            caller=self.caller,
            after=cursor_number(given.after),
            limit=given.limit,
            types=_types(given.types),
            resource=_resource(given.resource),
        )
        return data(
            {
                "events": [event_view(event) for event in reading.events],
                "next": str(reading.cursor) if reading.more else None,
                "cursor": str(reading.cursor),
            }
        )


def _types(text: str) -> list[str]:
    given = [name for name in text.split(",") if name]
    if unknown := sorted(set(given) - set(TYPES)):
        raise ValidationError(f"Unknown event types: {', '.join(unknown)}.", types=f"unknown: {', '.join(unknown)}")
    return given


def _resource(text: str) -> tuple[str, str] | None:
    if not text:
        return None
    resource_type, slash, resource_id = text.partition("/")
    if not (resource_type and slash and resource_id):
        raise ValidationError("resource must be resource_type/resource_id.", resource="must be type/id")
    if "\0" in text:
        raise ValidationError("resource must not have NUL.", resource="must not have NUL")
    return resource_type, resource_id
