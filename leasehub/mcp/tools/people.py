"""The tools about who is who."""

from typing import Annotated, Any

from pydantic import Field

from leasehub.api import paging
from leasehub.api.parsing import Page
from leasehub.identity import queries
from leasehub.identity.rings import OBSERVE
from leasehub.mcp.schemas import Answer, Arguments, Part
from leasehub.mcp.server import Call, lean, tool

MOST_SHOWN = 50


class Nothing(Arguments):
    pass


class ListAgents(Arguments):
    limit: Annotated[int, Field(ge=1, le=MOST_SHOWN)] = MOST_SHOWN
    cursor: Annotated[str, Field(min_length=1, max_length=200, description="next of an earlier result")] | None = None


class Whoami(Answer):
    organization: str
    principal: str
    kind: str
    holder: str | None = None
    holder_pattern: str
    rings: list[int]
    key_id: str


class Agent(Part):
    handle: str
    kind: str
    display_name: str | None = None


class Agents(Answer):
    agents: list[Agent]
    next: str | None = None


@tool("whoami", answers=Whoami, reads=True)
def agent_whoami(call: Call, given: Nothing) -> dict[str, Any]:
    """Who you are to LeaseHub, which comes from your key alone: organization, principal, the holder that you act under
    when you name none, and what the key may do (ring 1 observe, 2 act, 3 operate)."""
    caller = call.caller
    if call.session is None and not caller.may_hold_as(caller.handle):
        holder, hint = None, "The key's fence has no room for your handle: name a holder that matches holder_pattern."
    else:
        holder, hint = call.holder(None), None
    answer = {
        "organization": caller.organization_name,
        "principal": caller.handle,
        "kind": caller.kind,
        "holder": holder,
        "holder_pattern": caller.holder_pattern,
        "rings": sorted(caller.rings),
        "key_id": caller.key_id,
        "hint": hint,
    }
    return lean(answer)


@tool("principal_list", ring=OBSERVE, answers=Agents, reads=True)
def agent_list(call: Call, given: ListAgents) -> dict[str, Any]:
    """The agents, services and people of your organization: to whom work can be handed."""
    rows = queries.principals(organization=call.caller.organization).filter(retired_at=None)
    found, following = paging.page(rows, Page(limit=given.limit, after=given.cursor))
    agents = [lean({"handle": row.handle, "kind": row.kind, "display_name": row.display_name or None}) for row in found]
    return lean({"agents": agents, "next": following})
