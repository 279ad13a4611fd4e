"""The tool that tells what has happened."""

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from leasehub.api import waiting
from leasehub.api.events import awaited, parsed_resource, parsed_types
from leasehub.api.paging import cursor_number
from leasehub.events import queries
from leasehub.events.queries import View
from leasehub.events.rendering import event_view
from leasehub.identity.authentication import check_key
from leasehub.mcp.schemas import Answer, Arguments, Part, WaitSeconds
from leasehub.mcp.server import Call, lean, tool

MOST_SHOWN = 50
#: How far back a first call looks.
LOOKED_BACK = 20
#: What of an event's data tells an agent something.
TOLD = ("reason", "ended_by", "handoff_id", "to_principal", "subject_id", "request_id", "queue", "error", "slot_id")


class Since(Arguments):
    cursor: (
        Annotated[str, Field(max_length=200, description="cursor of an earlier result; the newest events without it")]
        | None
    ) = None
    types: Annotated[str, Field(max_length=1000, description="Event types, separated by commas")] = ""
    resource: Annotated[str, Field(max_length=401, description="resource_type/resource_id")] = ""
    limit: Annotated[int, Field(ge=1, le=MOST_SHOWN)] = 10
    wait_seconds: WaitSeconds = 0


class Happened(Part):
    model_config = ConfigDict(extra="allow")

    type: str
    at: str


class News(Answer):
    events: list[Happened]
    cursor: str
    more: bool
    pending: bool | None = None


@tool("event_list", answers=News, reads=True)
def whats_new(call: Call, given: Since) -> dict[str, Any]:
    """What has happened, as far as you may see it, from a cursor on; without one the newest events. Pass the cursor of
    the answer in your next call; "more": true means that there is more at once. wait_seconds waits for something to
    happen."""
    view = View.of(call.caller, types=tuple(parsed_types(given.types)), resources=parsed_resource(given.resource))
    after = _newest(call) if given.cursor is None else cursor_number(given.cursor)
    seen = queries.read(view=view, after=after, limit=given.limit)
    if not seen.events and not seen.more and given.wait_seconds:
        with waiting.place(view.organization) as is_free:
            if is_free:
                seen = awaited(view, after=seen.cursor, limit=given.limit, seconds=given.wait_seconds)
        check_key(call.caller)
    answer = {"events": [_shown(event_view(event)) for event in seen.events], "cursor": str(seen.cursor)}
    return {**answer, "more": seen.more, **({} if seen.events else {"pending": True})}


def _newest(call: Call) -> int:
    known = queries.extent(organization=call.caller.organization)
    return max(known.start, known.tail - LOOKED_BACK)


def _shown(view: dict[str, Any]) -> dict[str, Any]:
    actor = view["actor"]
    resource = view["resource_type"] and f"{view['resource_type']}/{view['resource_id']}"
    return lean(
        {
            "type": view["type"],
            "at": view["at"],
            "by": actor and actor["principal"],
            "resource": resource,
            "lease_id": view["lease_id"],
            "principal": view["principal"],
            "holder": view["holder"],
            "addressee": view["addressee"],
            **{name: view["data"].get(name) for name in TOLD},
        }
    )
