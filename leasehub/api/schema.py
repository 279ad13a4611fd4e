"""How operations become OpenAPI."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse
from pydantic import BaseModel, ConfigDict, create_model

from leasehub.errors import DomainError
from leasehub.identity.rings import NAMES


class ErrorDetail(BaseModel):
    model_config = ConfigDict(extra="allow")

    code: str
    message: str


class Failure(BaseModel):
    """What every refusal looks like."""

    error: ErrorDetail


class Schema(AutoSchema):
    """One group of operations for each word of the vocabulary."""

    def get_tags(self) -> list[str]:
        return [self.path.removeprefix("/v1/").split("/")[0]]

    def get_description(self) -> str:  # type: ignore[override]  # drf-spectacular drops the parameters too
        # What an operation says of itself; the docstring of the class is about the class.
        handler = getattr(self.view, self.method.lower(), None)
        return getattr(handler, "description", "")

    def get_auth(self) -> list[dict[str, list[str]]]:
        return [{"apiKey": []}]


IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    {"type": "string", "minLength": 1, "maxLength": 200},
    OpenApiParameter.HEADER,
    description="The same key with the same request: the same answer and one effect",
)


def described(summary: str, ring: int | None, *, repeatable: bool) -> str:
    needs = "Any key may." if ring is None else f"Takes a key with {NAMES[ring]}."
    repeats = " Repeat it safely with an `Idempotency-Key`." if repeatable else ""
    return f"{summary}. {needs}{repeats}"


@cache
def enveloped(name: str, model: type[BaseModel]) -> type[BaseModel]:
    title = "".join(part.capitalize() for part in name.split("_")) + model.__name__
    return create_model(f"{title}Answer", data=(model, ...))


def error_responses(errors: Sequence[type[DomainError]]) -> dict[int, OpenApiResponse]:
    """The statuses that an operation refuses with; these four every one has."""
    described: dict[int, list[str]] = {
        400: ["VALIDATION_ERROR"],
        401: ["UNAUTHENTICATED"],
        403: ["FORBIDDEN"],
        503: ["UNAVAILABLE"],
    }
    for error in errors:
        codes = described.setdefault(error.status, [])
        if error.code not in codes:
            codes.append(error.code)
    return {
        status: OpenApiResponse(Failure, description=", ".join(codes)) for status, codes in sorted(described.items())
    }


def query_parameters(query: type[BaseModel] | None) -> list[OpenApiParameter]:
    if query is None:
        return []
    schema = query.model_json_schema()
    return [
        OpenApiParameter(
            name,
            _type_of(properties),
            OpenApiParameter.QUERY,
            required=name in schema.get("required", []),
            description=properties.get("description", ""),
            default=properties.get("default"),
        )
        for name, properties in schema["properties"].items()
    ]


def _type_of(properties: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema of a parameter, without "or null": a parameter is left out instead."""
    choices = [choice for choice in properties.get("anyOf", []) if choice.get("type") != "null"]
    return choices[0] if len(choices) == 1 else {k: v for k, v in properties.items() if k not in ("title", "default")}
