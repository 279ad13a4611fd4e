"""JSON-RPC 2.0 as A2A binds it: the call out of a request, and the answer to it."""

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from pydantic import ConfigDict
from pydantic.alias_generators import to_camel

from leasehub.api import parsing
from leasehub.api.rendering import error_response, json_response
from leasehub.errors import DomainError, ValidationError

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
#: Any other refusal of LeaseHub's: the reason has its code.
REFUSED = -32000
TASK_NOT_FOUND = -32001
TASK_NOT_CANCELABLE = -32002
PUSH_NOT_SUPPORTED = -32003
UNSUPPORTED_OPERATION = -32004
CONTENT_TYPE_NOT_SUPPORTED = -32005
VERSION_NOT_SUPPORTED = -32009

REASONS = {
    TASK_NOT_FOUND: "TASK_NOT_FOUND",
    TASK_NOT_CANCELABLE: "TASK_NOT_CANCELABLE",
    PUSH_NOT_SUPPORTED: "PUSH_NOTIFICATION_NOT_SUPPORTED",
    UNSUPPORTED_OPERATION: "UNSUPPORTED_OPERATION",
    CONTENT_TYPE_NOT_SUPPORTED: "CONTENT_TYPE_NOT_SUPPORTED",
    VERSION_NOT_SUPPORTED: "VERSION_NOT_SUPPORTED",
}
PROTOCOL_DOMAIN = "a2a-protocol.org"
OWN_DOMAIN = "leasehub"
# What the web's own machinery acts on. Every other refusal comes with 200, which is what clients of A2A read.
HTTP_STATUSES = {401, 403, 405, 413, 415, 503}


class Params(parsing.Body):
    """What a method takes. Members that are not known are passed over, as the protocol wants it."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, alias_generator=to_camel)


@dataclass(frozen=True, slots=True)
class Call:
    id: str | int
    method: str
    params: Any


class Refusal(Exception):
    """An error of the protocol."""

    def __init__(self, code: int, message: str, **metadata: str) -> None:
        super().__init__(message)
        self.code, self.message, self.metadata = code, message, metadata

    def details(self) -> list[dict[str, Any]]:
        reason = REASONS.get(self.code)
        return [] if reason is None else [_error_info(reason, PROTOCOL_DOMAIN, self.metadata)]


def call_of(request: HttpRequest) -> Call:
    """Raises Refusal, PayloadTooLarge, UnsupportedMediaType."""
    try:
        given = parsing.json_object(request)
    except ValidationError as error:
        # Whole, so that it was an array; a body that broke off was not read.
        is_batch = getattr(request, "_body", b"").lstrip().startswith(b"[")
        raise Refusal(INVALID_REQUEST if is_batch else PARSE_ERROR, error.message) from None
    name, method = given.get("id"), given.get("method")
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise Refusal(INVALID_REQUEST, "A request has an id: text or a whole number.")
    if given.get("jsonrpc") != "2.0" or not isinstance(method, str):
        raise Refusal(INVALID_REQUEST, 'A request has "jsonrpc": "2.0" and a method.')
    return Call(name, method, given.get("params", {}))


def result(call: Call, value: Any) -> HttpResponse:
    return json_response({"jsonrpc": "2.0", "id": call.id, "result": value})


def failure(call: Call | None, error: Refusal | DomainError) -> HttpResponse:
    """The error in JSON-RPC's shape, with the headers of the API's."""
    if isinstance(error, Refusal):
        return json_response(_failed(call, error.code, error.message, error.details()))
    status = error.status if error.status in HTTP_STATUSES else 200
    headers = {name: value for name, value in error_response(error).headers.items() if name in CHALLENGES}
    return json_response(_failed(call, *_of_domain(error)), status, headers)


CHALLENGES = ("WWW-Authenticate", "Retry-After", "Allow")


def _failed(call: Call | None, code: int, message: str, details: list[dict[str, Any]]) -> dict[str, Any]:
    error = {"code": code, "message": message, "data": details}
    return {"jsonrpc": "2.0", "id": None if call is None else call.id, "error": error}


def _of_domain(error: DomainError) -> tuple[int, str, list[dict[str, Any]]]:
    wrong = error.fields.get("fields")
    if isinstance(error, ValidationError) and isinstance(wrong, dict):
        violations = [{"field": name, "description": str(text)} for name, text in wrong.items()]
        bad = {"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": violations}
        return INVALID_PARAMS, error.message, [bad]
    told = {name: str(value) for name, value in error.fields.items() if value is not None}
    code = INVALID_PARAMS if error.status in (404, 422) else REFUSED
    return code, error.message, [_error_info(error.code, OWN_DOMAIN, told)]


def _error_info(reason: str, domain: str, metadata: dict[str, str]) -> dict[str, Any]:
    kind = "type.googleapis.com/google.rpc.ErrorInfo"
    return {"@type": kind, "reason": reason, "domain": domain, "metadata": metadata}
