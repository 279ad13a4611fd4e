"""The tool that says why."""

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from leasehub.errors import ValidationError
from leasehub.explain import requests, resources
from leasehub.mcp.schemas import Answer, Arguments, ResourceId, ResourceType
from leasehub.mcp.server import Call, lean, tool

MOST_SHOWN = 5


class About(Arguments):
    resource_type: ResourceType | None = None
    resource_id: ResourceId | None = None
    request_id: (
        Annotated[
            str,
            Field(min_length=1, max_length=200, description="Instead of a resource: the request_id of pool_acquire"),
        ]
        | None
    ) = None


class Explained(Answer):
    model_config = ConfigDict(extra="allow")

    reason: str
    explanation: str
    state: str


@tool("explain", answers=Explained, reads=True)
def explain(call: Call, given: About) -> dict[str, Any]:
    """Why you wait, why you were refused, who ended your lease: of a resource (resource_type and resource_id), or of a
    request to a pool (request_id). In sentences and as members, as far as you may see it."""
    if given.request_id is not None:
        found = requests.explain(caller=call.caller, request_id=given.request_id)
    elif given.resource_type is None or given.resource_id is None:
        raise ValidationError(
            "Give resource_type and resource_id, or request_id.", resource_type="is required without request_id"
        )
    else:
        found = resources.explain(caller=call.caller, resource_type=given.resource_type, resource_id=given.resource_id)
    body = found.body()
    # The explanation has them already.
    del body["sentences"], body["advice"]
    if "history" in body:
        body["history"] = [lean(event) for event in body["history"][:MOST_SHOWN]]
        body["last_lease"] = body["last_lease"] and lean(body["last_lease"])
    return lean(body)
