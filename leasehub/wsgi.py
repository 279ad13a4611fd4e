"""The web server's way in: a lean path for the API, Django's full one for pages and admin."""

import os
from collections.abc import Callable, Iterable
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "leasehub.settings")

import django  # noqa: E402

django.setup(set_prefix=False)

from django.conf import settings  # noqa: E402
from django.core.handlers.wsgi import LimitedStream, WSGIHandler, WSGIRequest  # noqa: E402
from django.utils.http import parse_header_parameters  # noqa: E402

from leasehub import supervised  # noqa: E402
from leasehub.api.parsing import MAX_BODY_BYTES  # noqa: E402

API_PREFIXES = ("/v1/", "/healthz", "/readyz")
# The schema's page carries a script, so it wants the headers of a page.
PAGES = ("/v1/docs",)


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
        self.content_type, self.content_params = parse_header_parameters(meta.get("CONTENT_TYPE", ""))


class PageHandler(WSGIHandler):
    request_class = Request


class ApiHandler(PageHandler):
    """Django's handler with the API's short list of middleware."""

    def load_middleware(self, is_async: bool = False) -> None:
        everything = settings.MIDDLEWARE
        settings.MIDDLEWARE = settings.API_MIDDLEWARE
        try:
            super().load_middleware(is_async)
        finally:
            settings.MIDDLEWARE = everything


supervised.end_with_parent(supervised.at_once)

api = ApiHandler()
pages = PageHandler()


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    address = environ["PATH_INFO"]
    if address.startswith(API_PREFIXES) and not address.startswith(PAGES):
        return api(environ, start_response)
    return pages(environ, start_response)
