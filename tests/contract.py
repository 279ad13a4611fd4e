"""Holds answers against the OpenAPI document."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from drf_spectacular.generators import SchemaGenerator
from jsonschema import Draft202012Validator

from leasehub.management.commands.errors_doc import catalogue

Operation = dict[str, Any]
# What any operation may be refused with, whatever it says: a body of another kind, or none that is taken.
EVERYWHERE = {413, 415}


@cache
def document() -> dict[str, Any]:
    schema = SchemaGenerator().get_schema(request=None, public=True)
    assert isinstance(schema, dict)
    return schema


@cache
def operations() -> dict[tuple[str, str], Operation]:
    """By method and path template."""
    return {
        (method.upper(), path): operation
        for path, item in document()["paths"].items()
        for method, operation in item.items()
        if path != "/v1/schema"
    }


def found(method: str, address: str) -> Operation | None:
    path = address.partition("?")[0]
    template = next((template for template in _templates() if _pattern(template).fullmatch(path)), None)
    return None if template is None else operations().get((method, template))


@cache
def _templates() -> list[str]:
    # Literal paths first: /v1/leases/status is no lease's id.
    return sorted({path for _, path in operations()}, key=lambda path: path.count("{"))


@cache
def _pattern(template: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\{\w+\}", "[^/]+", template))


def check(method: str, address: str, status: int, headers: Mapping[str, str], body: Any) -> None:
    """Fails when the answer is not what the document says of this operation, or the catalogue of its error."""
    if status >= 400:
        error = body["error"]
        extra = set(error) - {"code", "message"} - members(status, error["code"])
        assert not extra, f"{error['code']} has members that the catalogue does not know: {extra}"
    operation = found(method, address)
    if operation is None:
        assert status in (404, 405), f"{method} {address} answered {status} and is not in the document"
        _validator("Failure").validate(body)
        return
    name = operation["operationId"]
    documented = operation["responses"].get(str(status))
    if documented is None:
        assert status in EVERYWHERE, f"{name} answered {status}, which the document does not know"
        _validator("Failure").validate(body)
        return
    content = documented.get("content", {}).get("application/json")
    if content is None:
        assert body is None, f"{name} answered {status} with a body"
        return
    assert headers["Content-Type"] == "application/json"
    _validator(content["schema"]["$ref"].rpartition("/")[2]).validate(body)


@cache
def members(status: int, code: str) -> set[str]:
    """What an error of this code may say besides; fails for a code that the catalogue does not know."""
    known = [error for error in catalogue() if (error.status, error.code) == (status, code)]
    assert known, f"{status} {code} is not in the catalogue"
    return {name for error in known for name in error.members}


@cache
def _validator(component: str) -> Draft202012Validator:
    schemas = {name: _closed(schema) for name, schema in document()["components"]["schemas"].items()}
    return Draft202012Validator({"$ref": f"#/components/schemas/{component}", "components": {"schemas": schemas}})


def _closed(schema: Any) -> Any:
    """Members that the document does not mention are a fault too."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(value) for name, value in schema.items()}
    if "properties" in schema and "additionalProperties" not in schema and isinstance(schema["properties"], dict):
        closed["additionalProperties"] = False
    return closed
