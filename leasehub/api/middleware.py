"""What every request passes through."""

import uuid
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from leasehub.api import logs


def request_id(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Names the request in its answer and in every log line about it."""

    def named(request: HttpRequest) -> HttpResponse:
        name = f"req_{uuid.uuid4().hex}"
        token = logs.request_id.set(name)
        try:
            response = get_response(request)
        finally:
            logs.request_id.reset(token)
        response.headers["X-Request-Id"] = name
        return response

    return named
