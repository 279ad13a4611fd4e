"""One shape for success, one for failure."""

import json
import math
from collections.abc import Mapping
from typing import Any

import orjson
from django.http import HttpResponse

from leasehub.errors import DomainError

JSON = "application/json"


def json_response(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> HttpResponse:
    return bytes_response(encoded(body), status, headers)


def encoded(body: Any) -> bytes:
    """As JSON, in one line."""
    try:
        return orjson.dumps(body)
    except TypeError:
        # PostgreSQL gives a payload's 1e300 back as an integer of 301 digits, which orjson does not write.
        return json.dumps(body).encode()


def bytes_response(content: bytes, status: int, headers: Mapping[str, str] | None = None) -> HttpResponse:
    response = HttpResponse(content, content_type=JSON, status=status)
    # Without a length the web server sends chunks.
    response.headers["Content-Length"] = str(len(content))
    response.headers["Cache-Control"] = "no-store"
    for name, value in (headers or {}).items():
        response.headers[name] = value
    return response


def data(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> HttpResponse:
    return json_response({"data": body}, status, headers)


def no_content(*, retry_after_ms: int | None = None) -> HttpResponse:
    response = HttpResponse(status=204)
    del response.headers["Content-Type"]
    response.headers["Cache-Control"] = "no-store"
    if retry_after_ms is not None:
        response.headers["Retry-After"] = whole_seconds(retry_after_ms)
    return response


def error_body(error: DomainError) -> dict[str, object]:
    return {"code": error.code, "message": error.message, **error.fields}


def error_response(error: DomainError) -> HttpResponse:
    headers: dict[str, str] = {}
    retry_after_ms = error.fields.get("retry_after_ms")
    if isinstance(retry_after_ms, int):
        headers["Retry-After"] = whole_seconds(retry_after_ms)
    if error.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="LeaseHub"'
    if error.status == 405 and isinstance(allow := error.fields.get("allow"), str):
        headers["Allow"] = allow
    return json_response({"error": error_body(error)}, error.status, headers)


def whole_seconds(retry_after_ms: int) -> str:
    """Rounded up: a client that waits so long does not come too early."""
    return str(max(1, math.ceil(retry_after_ms / 1000)))
