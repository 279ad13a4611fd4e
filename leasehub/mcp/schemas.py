"""How arguments and answers of tools become JSON schemas that every client understands."""

from functools import cache
from typing import Annotated, Any

from django.conf import settings
from pydantic import AfterValidator, BaseModel, Field, StringConstraints

from leasehub.api.parsing import Body, Holder, Identifier
from leasehub.mcp.notices import parsed_cursor

Cursor = Annotated[
    str,
    StringConstraints(min_length=1, max_length=400),
    AfterValidator(parsed_cursor),
    Field(description="The notices_cursor of an earlier result: those notices are not repeated"),
]
HolderName = Annotated[
    Holder, Field(description="The label to act under, within the key's fence; your session's own when left out")
]
TtlSeconds = Annotated[int, Field(ge=1, description="How long it lasts without a heartbeat, in seconds")]
DEFAULT_TTL_SECONDS = min(300, settings.LEASEHUB_MAX_TTL_SECONDS)
WaitSeconds = Annotated[int, Field(ge=0, le=25, description="Wait up to so many seconds before answering")]
TokenOf = Annotated[
    int, Field(ge=1, le=2**53 - 1, description="The fencing_token that you were granted: it names the acquisition")
]
ResourceType = Annotated[Identifier, Field(description="The kind of thing, for example deploy, branch, file")]
ResourceId = Annotated[Identifier, Field(description="Which one of that kind")]


class Arguments(Body):
    """What every tool takes."""

    notices_cursor: Cursor | None = None


class Part(BaseModel):
    """An object within a result."""


class Answer(BaseModel):
    """What every result may carry. A member that is None is left out."""

    hint: str | None = None
    notices: list[dict[str, Any]] | None = None
    #: Older ones that are unread too; at least so many.
    notices_more: int | None = None
    notices_cursor: str | None = None


@cache
def input_schema(model: type[BaseModel]) -> dict[str, Any]:
    schema: dict[str, Any] = _plain(model.model_json_schema())
    # A docstring is for readers of the code.
    schema.pop("description", None)
    return schema


@cache
def output_schema(model: type[BaseModel]) -> dict[str, Any]:
    schema: dict[str, Any] = _plain(model.model_json_schema(mode="serialization"))
    schema.pop("description", None)
    return schema


def _plain(schema: Any) -> Any:
    """Without titles, and without "or null": such a member is left out instead."""
    if isinstance(schema, list):
        return [_plain(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {name: _plain(value) for name, value in schema.items() if name != "title" or not isinstance(value, str)}
    choices = [choice for choice in plain.get("anyOf", []) if choice != {"type": "null"}]
    if len(choices) == 1:
        del plain["anyOf"]
        plain = {**choices[0], **plain}
    if plain.get("default", 0) is None:
        del plain["default"]
    return plain
