"""What Django itself refuses, in the API's shape under /v1 and as a page elsewhere."""

import logging
from collections.abc import Iterable, Mapping

from django.http import HttpRequest, HttpResponse
from django.views import defaults
from rest_framework import exceptions
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

from leasehub.api.rendering import error_response
from leasehub.errors import DomainError, MethodNotAllowed, NotFound, ValidationError

logger = logging.getLogger(__name__)

JSON_ADDRESSES = ("/v1/", "/a2a/", "/mcp/")


class InternalError(DomainError):
    """The server failed: the log has more under this request's id."""


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    if not _wants_json(request):
        return defaults.page_not_found(request, exception)
    if f"{request.path}/".startswith("/v1/"):
        return error_response(NotFound("There is no such address: GET /v1/schema has every one."))
    return error_response(NotFound())


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    if not _wants_json(request):
        return defaults.bad_request(request, exception)
    return error_response(ValidationError("The request is malformed.", request="is malformed"))


def server_error(request: HttpRequest) -> HttpResponse:
    if not _wants_json(request):
        return defaults.server_error(request)
    return error_response(InternalError())


def of_rest_framework(exception: Exception, context: Mapping[str, object]) -> HttpResponse | None:
    """What the views of others refuse, in the API's shape."""
    if isinstance(exception, exceptions.MethodNotAllowed):
        return error_response(MethodNotAllowed("This address takes GET.", allow="GET, HEAD"))
    if isinstance(exception, exceptions.APIException):
        return error_response(ValidationError("The request is malformed.", request="is malformed"))
    return None


class AnyAccept(BaseContentNegotiation):
    """One format for whoever asks."""

    def select_parser(self, request: Request, parsers: Iterable[BaseParser]) -> BaseParser:
        return next(iter(parsers))

    def select_renderer(
        self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        only = next(iter(renderers))
        return only, only.media_type or ""


def _wants_json(request: HttpRequest) -> bool:
    return f"{request.path}/".startswith(JSON_ADDRESSES)
