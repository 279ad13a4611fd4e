"""/v1/events."""

import time
from typing import Annotated, Any

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from drf_spectacular.utils import OpenApiParameter
from pydantic import BaseModel, Field, StringConstraints

from leasehub.api import waiting
from leasehub.api.paging import cursor_number
from leasehub.api.parsing import MAX_HOLDER_LENGTH, Body, Limit, QueryWait, parse_query
from leasehub.api.rendering import data, whole_seconds
from leasehub.api.streams import MEDIA_TYPE, Stream, watch
from leasehub.api.views import Operation, operation
from leasehub.errors import Unavailable, ValidationError
from leasehub.events import queries
from leasehub.events.errors import CursorAhead, CursorExpired, Extent
from leasehub.events.queries import Reading, View
from leasehub.events.rendering import event_view
from leasehub.events.types import TYPES
from leasehub.identity.authentication import Caller, check_key

TAIL = "tail"
CROWDED_RETRY_MS = 1000


class ViewQuery(Body):
    types: Annotated[str, StringConstraints(max_length=1000), Field(description="Event types, separated by commas")] = (
        ""
    )
    resource: Annotated[str, StringConstraints(max_length=401), Field(description="resource_type/resource_id")] = ""
    holder: Annotated[
        str, StringConstraints(max_length=MAX_HOLDER_LENGTH), Field(description="The holder that an event is about")
    ] = ""


class FeedQuery(ViewQuery):
    after: Annotated[
        str | None,
        Field(
            description="The cursor of an earlier answer, or `tail`: only what is still to come; from the oldest event"
            " on file without it"
        ),
    ] = None
    limit: Limit = 50
    wait_seconds: Annotated[
        QueryWait, Field(description="How long to wait for an event when there is none; 25 at most")
    ] = 0


class StreamQuery(ViewQuery):
    after: Annotated[
        str, Field(description="The position to go on after, or `tail`: only what is still to come, as without it")
    ] = TAIL


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


LAST_EVENT_ID = OpenApiParameter(
    "Last-Event-ID",
    {"type": "string", "maxLength": 19},
    OpenApiParameter.HEADER,
    description="The id of the last event that came: goes before `after`",
)


class Events(Operation):
    @operation(
        "event_list",
        query=FeedQuery,
        answers={200: EventPage},
        errors=[CursorAhead, CursorExpired],
        summary="The feed: every event once, in order, from a cursor on",
    )
    def get(self, request: HttpRequest) -> HttpResponse:
        given = parse_query(request, FeedQuery)
        view = _view(self.caller, given)
        after = _start(given.after, organization=self.caller.organization)
        reading = queries.read(view=view, after=after, limit=given.limit)
        if reading.events or reading.more or given.wait_seconds == 0:
            return _page(reading)
        return self._wait(view, given, reading)

    def _wait(self, view: View, given: FeedQuery, reading: Reading) -> HttpResponse:
        with waiting.place(view.organization) as is_free:
            if not is_free:
                return _page(reading, retry_after_ms=CROWDED_RETRY_MS)
            reading = awaited(view, after=reading.cursor, limit=given.limit, seconds=given.wait_seconds)
        # Nobody is told of anything by a key that was revoked while it waited.
        check_key(self.caller)
        return _page(reading)


def awaited(view: View, *, after: int, limit: int, seconds: float) -> Reading:
    """Reads again whenever there may be an event of the view, without a connection between. Takes a place before."""
    deadline = time.monotonic() + seconds
    with watch.following(view) as follower:
        while True:
            follower.bell.clear()
            reading = queries.read(view=view, after=after, limit=limit)
            remaining = deadline - time.monotonic()
            has_found = bool(reading.events) or reading.more
            if has_found or remaining <= 0 or follower.has_ended or not waiting.let_go_of_connection():
                return reading
            after = reading.cursor
            follower.bell.wait(remaining)


class EventStream(Operation):
    @operation(
        "event_stream",
        query=StreamQuery,
        answers={200: str},
        media_type=MEDIA_TYPE,
        parameters=[LAST_EVENT_ID],
        errors=[CursorAhead, Unavailable],
        summary="The feed as server-sent events, from a cursor on; from the tail without one",
    )
    def get(self, request: HttpRequest) -> StreamingHttpResponse:
        given = parse_query(request, StreamQuery)
        view = _view(self.caller, given)
        known = queries.extent(organization=self.caller.organization)
        after = _resumed(request, given.after, known)
        is_expired = after < known.start
        stream = Stream(
            view,
            key=self.caller.key,
            after=known.tail if is_expired else after,
            resync=known if is_expired else None,
        )
        # Proxies pass each event on at once.
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        return StreamingHttpResponse(stream, content_type=MEDIA_TYPE, headers=headers)


def _resumed(request: HttpRequest, after: str, known: Extent) -> int:
    """The position that a stream goes on from. Raises CursorAhead."""
    # A browser that reconnects repeats the address, too.
    last: str = request.META.get("HTTP_LAST_EVENT_ID") or after
    position = known.tail if last == TAIL else cursor_number(last)
    if position > known.tail:
        raise CursorAhead(known)
    return position


def _page(reading: Reading, *, retry_after_ms: int | None = None) -> HttpResponse:
    response = data(
        {
            "events": [event_view(event) for event in reading.events],
            "next": str(reading.cursor) if reading.more else None,
            "cursor": str(reading.cursor),
        }
    )
    if retry_after_ms is not None:
        response.headers["Retry-After"] = whole_seconds(retry_after_ms)
    return response


def _start(after: str | None, *, organization: int) -> int:
    """The position to read after."""
    if after is None:
        return queries.extent(organization=organization).start
    if after == TAIL:
        return queries.extent(organization=organization).tail
    return cursor_number(after)


def _view(caller: Caller, given: ViewQuery) -> View:
    return View.of(
        caller,
        types=tuple(parsed_types(given.types)),
        resources=parsed_resource(given.resource),
        holder=_holder(given.holder),
    )


def parsed_types(text: str) -> list[str]:
    given = [name for name in text.split(",") if name]
    if unknown := sorted(set(given) - set(TYPES)):
        raise ValidationError(f"Unknown event types: {', '.join(unknown)}.", types=f"unknown: {', '.join(unknown)}")
    return given


def parsed_resource(text: str) -> tuple[tuple[str, str], ...]:
    """What it can mean; nothing when nothing was asked for."""
    if not text:
        return ()
    meant = tuple(reading for reading in queries.readings(text) if all(reading))
    if not meant:
        raise ValidationError("resource must be resource_type/resource_id.", resource="must be type/id")
    if "\0" in text:
        raise ValidationError("resource must not have NUL.", resource="must not have NUL")
    return meant


def _holder(text: str) -> str:
    if "\0" in text:
        raise ValidationError("holder must not have NUL.", holder="must not have NUL")
    return text
