"""The web server's way in: a lean path for the API, Django's full one for pages and admin."""

import gc
import os
from collections.abc import Callable, Iterable
from functools import lru_cache
from time import perf_counter
from typing import Any, cast

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "leasehub.settings")

import django  # noqa: E402

django.setup(set_prefix=False)

from django.conf import settings  # noqa: E402
from django.core.exceptions import BadRequest  # noqa: E402
from django.core.handlers.wsgi import LimitedStream, WSGIHandler, WSGIRequest  # noqa: E402
from django.http import HttpRequest, HttpResponse  # noqa: E402
from django.urls import ResolverMatch, get_resolver  # noqa: E402
from django.utils.http import parse_header_parameters  # noqa: E402

from leasehub import detached, supervised, unread, urls  # noqa: E402, F401
from leasehub.api.parsing import MAX_BODY_BYTES  # noqa: E402
from leasehub.api.streams import watch  # noqa: E402
from leasehub.api.timing import OTHER, note  # noqa: E402
from leasehub.db import functions  # noqa: E402

API_PREFIXES = ("/v1/", "/mcp", "/a2a", "/healthz", "/readyz", "/metrics")
# The schema's page carries a script, so it wants the headers of a page.
PAGES = ("/v1/docs",)
MAX_REMEMBERED_ADDRESS = 300
KNOWN_METHODS = frozenset(("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"))


class Request(WSGIRequest):
    """Django's request, in any transfer encoding and always UTF-8.

    Django decodes the query by the charset that the body claims, and falls over some.
    """

    def __init__(self, environ: dict[str, Any]) -> None:
        super().__init__(environ)
        if "HTTP_TRANSFER_ENCODING" in environ:
            # In chunks, of unknown length: without a length Django reads nothing and takes the body for empty.
            self._stream: Any = LimitedStream(environ["wsgi.input"], MAX_BODY_BYTES + 1)

    def _set_content_type_params(self, meta: dict[str, Any]) -> None:
        given = meta.get("CONTENT_TYPE", "")
        try:
            self.content_type, self.content_params = parse_header_parameters(given)
        except (ValueError, LookupError):
            # A parameter in a character set that nobody knows, or that is none of its.
            self.content_type, self.content_params = parse_header_parameters(given.partition(";")[0])


class PageHandler(WSGIHandler):
    request_class = Request

    def resolve_request(self, request: HttpRequest) -> ResolverMatch:
        functions.leave_what_hung_up()
        if "%00" in request.META.get("QUERY_STRING", ""):
            # Filters of the admin go to the database as they come, and PostgreSQL takes no NUL.
            raise BadRequest("The query has NUL.")
        return super().resolve_request(request)


class ApiHandler(PageHandler):
    """Django's handler with the API's short list of middleware, and without the signals around a request.

    Only Django itself listens to them, and of what it does then the API needs one thing: that a connection which
    broke is not used again.
    """

    def resolve_request(self, request: HttpRequest) -> ResolverMatch:
        address = request.path_info
        # Whoever sends long addresses must not fill the memory with them.
        known = view_of if len(address) <= MAX_REMEMBERED_ADDRESS else view_of.__wrapped__
        request.resolver_match = found = known(address)
        return found

    def __call__(  # type: ignore[override]
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        began = perf_counter()
        connection = functions.leave_what_hung_up()
        request = self.request_class(environ)
        response = self.get_response(request)
        start_response(f"{response.status_code} {response.reason_phrase}", list(response.items()))
        if connection.errors_occurred and not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()
        operation = getattr(request, "operation", OTHER)
        note(operation, _method(request.method), response.status_code, perf_counter() - began)
        if isinstance(response, HttpResponse):
            return [] if request.method == "HEAD" else [response.content]
        if request.method == "HEAD":
            # A stream that nobody reads would go on.
            response.close()
            return []
        # A stream ends later; then it sends the signal itself.
        stream = cast(Iterable[bytes], response)
        return detached.send(stream, status=response.status_code, headers=list(response.items()))

    def load_middleware(self, is_async: bool = False) -> None:
        everything = settings.MIDDLEWARE
        settings.MIDDLEWARE = settings.API_MIDDLEWARE
        try:
            super().load_middleware(is_async)
        finally:
            settings.MIDDLEWARE = everything


def _method(given: str | None) -> str:
    # Anybody can make up a method, and each would be a series for ever.
    return given if given in KNOWN_METHODS else OTHER


@lru_cache(maxsize=4096)
def view_of(address: str) -> ResolverMatch:
    """Raises Resolver404. A live lease's address is beaten on again and again."""
    return get_resolver().resolve(address)


supervised.end_with_parent(supervised.at_once)
supervised.when_asked_to_end(watch.close)
unread.hang_up_after(settings.LEASEHUB_UNREAD_SECONDS)

api = ApiHandler()
pages = PageHandler()
# What is loaded by now stays: the collector need not go through it in the middle of a request.
gc.collect()
gc.freeze()


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    address = environ["PATH_INFO"]
    if address.startswith(API_PREFIXES) and not address.startswith(PAGES):
        return api(environ, start_response)
    return pages(environ, start_response)
