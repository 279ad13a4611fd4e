"""What Django itself refuses, in the API's shape under /v1 and as a page elsewhere."""

import logging

from django.http import HttpRequest, HttpResponse
from django.views import defaults

from leasehub.api.rendering import error_response
from leasehub.errors import DomainError, NotFound, ValidationError

logger = logging.getLogger(__name__)


class InternalError(DomainError):
    """The server failed: the log has more under this request's id."""


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    if not _wants_json(request):
        return defaults.page_not_found(request, exception)
    return error_response(NotFound())


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    if not _wants_json(request):
        return defaults.bad_request(request, exception)
    return error_response(ValidationError("The request is malformed.", request="is malformed"))


def server_error(request: HttpRequest) -> HttpResponse:
    if not _wants_json(request):
        return defaults.server_error(request)
    return error_response(InternalError())


def _wants_json(request: HttpRequest) -> bool:
    return request.path.startswith("/v1/")
