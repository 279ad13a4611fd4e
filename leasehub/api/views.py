"""The base of every operation: authenticate, check the ring, parse, call a service, render.

``dispatch`` replaces REST framework's: no request wrapper, no negotiation, one format. What the schema needs of
an operation stands in its ``@operation``.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from django.db import InterfaceError, InternalError, OperationalError
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.views import APIView

from leasehub.api import parsing
from leasehub.api.rendering import JSON, bytes_response, error_response, json_response
from leasehub.api.schema import IDEMPOTENCY_KEY, described, enveloped, error_responses, query_parameters
from leasehub.db import failures
from leasehub.errors import (
    DomainError,
    Forbidden,
    IdempotencyMismatch,
    InProgress,
    MethodNotAllowed,
    NotFound,
    PayloadTooLarge,
    UnsupportedMediaType,
    ValidationError,
)
from leasehub.identity import idempotency
from leasehub.identity.authentication import Caller, authenticate, recognize

Handler = TypeVar("Handler", bound=Callable[..., HttpResponseBase])
METHODS = ("get", "post", "put", "delete")
ALLOWED = {"get": "GET, HEAD", "post": "POST", "put": "PUT", "delete": "DELETE"}
# Raised before a service has asked the database whether the key still works.
BEFORE_THE_SERVICE = (ValidationError, Forbidden, PayloadTooLarge, UnsupportedMediaType)


def operation(
    name: str,
    *,
    ring: int | None = None,
    query: type[parsing.Body] | None = None,
    body: type[parsing.Body] | None = None,
    answers: Mapping[int, Any],
    errors: Sequence[type[DomainError]] = (),
    service_checks_key: bool = False,
    remembers: bool = True,
    shows_secret: bool = False,
    replayed: Callable[[Caller, dict[str, Any]], dict[str, Any]] | None = None,
    settled: Callable[[Caller, HttpRequest, HttpResponse], HttpResponse] | None = None,
    is_bare: bool = False,
    media_type: str = JSON,
    parameters: Sequence[OpenApiParameter] = (),
    summary: str,
) -> Callable[[Handler], Handler]:
    """One verb of the API: its name at every door, its ring, its contract.

    ``service_checks_key``: the hot path, whose one round trip checks the key too. ``remembers``: whether an
    Idempotency-Key counts (not for what is idempotent by nature). ``replayed`` brings a remembered answer up to
    date. ``settled`` makes the answer out of the effect's, after its transaction: this is where a call may wait.
    ``answers`` maps a status to the model of what stands under ``data``, or to None; ``is_bare``: it stands alone.
    An answer of another ``media_type`` than JSON is text. ``parameters``: those beside the query's.
    """

    def decorate(handler: Handler) -> Handler:
        marked = cast(Any, handler)
        marked.operation = name
        marked.ring = ring
        marked.reads_query = query is not None
        marked.reads_body = body is not None
        marked.service_checks_key = service_checks_key
        marked.remembers = remembers
        marked.shows_secret = shows_secret
        marked.replayed = replayed
        marked.settled = settled
        responses: dict[Any, Any] = {
            (status, media_type): OpenApiResponse(
                _shown(name, model, is_bare or media_type != JSON), description=summary
            )
            for status, model in answers.items()
        }
        repeatable = remembers and handler.__name__ in ("post", "put")
        marked.description = described(summary, ring, repeatable=repeatable)
        responses.update(error_responses([*errors, *_usual_errors(body, repeatable)]))
        schema = extend_schema(
            operation_id=name,
            summary=summary,
            request=body,
            examples=_examples(summary, body),
            responses=responses,
            parameters=[*query_parameters(query), *parameters, *([IDEMPOTENCY_KEY] if repeatable else [])],
        )
        return schema(handler)

    return decorate


def _examples(summary: str, body: type[parsing.Body] | None) -> list[OpenApiExample]:
    example = body.EXAMPLE if body else None
    return [OpenApiExample(summary, value=dict(example), request_only=True)] if example else []


def _shown(name: str, model: Any, is_bare: bool) -> Any:
    return enveloped(name, model) if model and not is_bare else model


def _usual_errors(body: type[parsing.Body] | None, repeatable: bool) -> list[type[DomainError]]:
    of_body = [PayloadTooLarge, UnsupportedMediaType] if body else []
    return [*of_body, *([InProgress, IdempotencyMismatch] if repeatable else [])]


class Operation(APIView):
    """A path of the API with its verbs as methods."""

    caller: Caller

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            handler = self._handler(request)
            # Under which name /metrics counts it (leasehub.wsgi).
            request.operation = handler.operation  # type: ignore[attr-defined]
            response = self._answer(handler, request, kwargs)
            return response if handler.settled is None else handler.settled(self.caller, request, response)
        except DomainError as error:
            return error_response(error)
        except (OperationalError, InterfaceError) as error:
            return error_response(failures.unavailable(error))
        except InternalError as error:
            if not failures.is_read_only(error):
                raise
            return error_response(failures.unavailable(error))

    def _answer(self, handler: Any, request: HttpRequest, kwargs: dict[str, Any]) -> HttpResponse:
        authorization = request.META.get("HTTP_AUTHORIZATION")
        if any("\0" in name for name in kwargs.values()):
            # No database has such a name, and PostgreSQL fails when asked for it.
            authenticate(authorization)
            raise NotFound
        key = request.META.get("HTTP_IDEMPOTENCY_KEY") if handler.remembers else None
        if key is None and handler.service_checks_key:
            self.caller = recognize(authorization)
            try:
                return self._carry_out(handler, request, kwargs)
            except BEFORE_THE_SERVICE:
                # A key that works no more is told so first.
                authenticate(authorization)
                raise
        self.caller = authenticate(authorization)
        if key is None or request.method not in ("POST", "PUT"):
            return self._carry_out(handler, request, kwargs)
        # Before a replay too: another key of the principal may have made the request.
        self._admit(handler, request)
        return self._carry_out_once(handler, request, kwargs, key)

    def _handler(self, request: HttpRequest) -> Any:
        method = (request.method or "").lower()
        # What GET would answer, of which the web's handler sends the head alone.
        method = "get" if method == "head" else method
        handler = getattr(self, method, None) if method in METHODS else None
        if handler is None:
            allowed = ", ".join(ALLOWED[name] for name in METHODS if hasattr(self, name))
            raise MethodNotAllowed(f"This address takes {allowed}.", allow=allowed)
        return handler

    def _admit(self, handler: Any, request: HttpRequest) -> None:
        if handler.ring is not None:
            self.caller.require(handler.ring)
        parsing.refuse_surplus(request, query=handler.reads_query, body=handler.reads_body)

    def _carry_out(self, handler: Any, request: HttpRequest, kwargs: dict[str, Any]) -> HttpResponse:
        self._admit(handler, request)
        response: HttpResponse = handler(request, **kwargs)
        return response

    def _carry_out_once(self, handler: Any, request: HttpRequest, kwargs: dict[str, Any], key: str) -> HttpResponse:
        answer, replayed = idempotency.once(
            caller=self.caller,
            key=key,
            request_sha256=_fingerprint(request, self.caller),
            is_secret=handler.shows_secret,
            effect=lambda: _remembered(self._carry_out(handler, request, kwargs)),
        )
        if not replayed or handler.replayed is None:
            return bytes_response(answer.body, answer.status, answer.headers)
        body = handler.replayed(self.caller, json.loads(answer.body))
        return json_response(body, answer.status, answer.headers)


def _remembered(response: HttpResponse) -> idempotency.Answer:
    headers = {name: response.headers[name] for name in ("Location",) if name in response.headers}
    return idempotency.Answer(response.status_code, headers, response.content)


def _fingerprint(request: HttpRequest, caller: Caller) -> str:
    """Two requests are the same when method, address, If-Match and the body's JSON are, and what their keys may do.

    Otherwise a key of the same principal with fewer rights would be shown what another one was answered.
    """
    try:
        body = json.dumps(parsing.json_object(request), sort_keys=True)
    except RecursionError:
        raise ValidationError("The body is nested too deeply.", body="is nested too deeply") from None
    rights = f"{sorted(caller.rings)} {caller.holder_pattern}"
    condition = request.META.get("HTTP_IF_MATCH", "")
    text = f"{request.method} {request.get_full_path()}\n{rights}\n{condition}\n{body}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
