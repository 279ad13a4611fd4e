"""What anybody may read, written with the name under which this server was reached."""

import functools
import hashlib
from collections.abc import Callable
from typing import Concatenate, ParamSpec

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.cache import get_conditional_response
from django.views.decorators.csrf import csrf_exempt

from leasehub.api.rendering import error_response
from leasehub.errors import MethodNotAllowed

Named = ParamSpec("Named")

MAX_AGE_SECONDS = 300


def published(
    view: Callable[Concatenate[HttpRequest, Named], HttpResponse],
) -> Callable[Concatenate[HttpRequest, Named], HttpResponse]:
    """A view that is only read: any other method is told so, rather than that it lacks a page's cookie."""

    @csrf_exempt
    @functools.wraps(view)
    def read(request: HttpRequest, /, *args: Named.args, **kwargs: Named.kwargs) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            return error_response(MethodNotAllowed("This address takes GET.", allow="GET, HEAD"))
        return view(request, *args, **kwargs)

    return read


def address(request: HttpRequest) -> str:
    """Scheme and host of the request. Raises DisallowedHost, a 400, for a name that is not this server's."""
    return f"{request.scheme}://{request.get_host()}"


def answer(request: HttpRequest, content: str, *, media_type: str) -> HttpResponse:
    """The content for caches: whoever has it already is told so."""
    encoded = content.encode()
    response = HttpResponse(encoded, content_type=media_type)
    etag = f'"{hashlib.sha256(encoded).hexdigest()[:32]}"'
    response.headers["ETag"] = etag
    response.headers["Cache-Control"] = f"public, max-age={MAX_AGE_SECONDS}"
    response.headers["Content-Length"] = str(len(encoded))
    found: HttpResponseBase | None = get_conditional_response(request, etag=etag, response=response)
    assert isinstance(found, HttpResponse)
    return found
