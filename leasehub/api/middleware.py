"""What every request passes through."""

import random
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from leasehub.api import logs


def request_id(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Names the request in its answer and in every log line about it."""

    def named(request: HttpRequest) -> HttpResponse:
        # Needs to be unique, not secret: no system call.
        name = f"req_{random.getrandbits(128):032x}"
        token = logs.request_id.set(name)
        try:
            response = get_response(request)
        finally:
            logs.request_id.reset(token)
        response.headers["X-Request-Id"] = name
        return response

    return named
