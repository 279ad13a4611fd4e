"""What every request passes through."""

import random
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from leasehub.api import logs

# Nothing inline and nothing from elsewhere: text that an agent sent cannot become code. The style sheet of Pico CSS
# has its pictures as data: addresses.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
# The schema's page comes with a script of its own.
UNDER_NO_POLICY = "/v1/docs"


def content_security_policy(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """What a page may load."""

    def guarded(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        if not request.path.startswith(UNDER_NO_POLICY):
            response.headers.setdefault("Content-Security-Policy", PAGE_POLICY)
        return response

    return guarded


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
