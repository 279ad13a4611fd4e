"""/v1/schema: the OpenAPI document, open to everybody."""

from functools import cache
from typing import Literal

from django.http import HttpRequest, HttpResponse
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiJsonRenderer, OpenApiYamlRenderer

from leasehub.api.parsing import Body, parse_query
from leasehub.api.rendering import error_response
from leasehub.errors import DomainError, MethodNotAllowed

RENDERERS = {"json": OpenApiJsonRenderer, "yaml": OpenApiYamlRenderer}
MEDIA_TYPES = {"json": "application/vnd.oai.openapi+json", "yaml": "application/vnd.oai.openapi"}


class DocumentQuery(Body):
    format: Literal["json", "yaml"] | None = None


def openapi(request: HttpRequest) -> HttpResponse:
    try:
        if request.method not in ("GET", "HEAD"):
            raise MethodNotAllowed("This address takes GET.", allow="GET, HEAD")
        wanted = parse_query(request, DocumentQuery).format
    except DomainError as error:
        return error_response(error)
    wanted = wanted or ("json" if "json" in request.META.get("HTTP_ACCEPT", "") else "yaml")
    content = _rendered(wanted)
    headers = {"Content-Length": str(len(content))}
    return HttpResponse(content, content_type=f"{MEDIA_TYPES[wanted]}; charset=utf-8", headers=headers)


@cache
def _rendered(wanted: str) -> bytes:
    # The same for every caller, and worth half a second of work.
    document = SchemaGenerator().get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
    rendered = RENDERERS[wanted]().render(document, renderer_context={})
    return rendered if isinstance(rendered, bytes) else rendered.encode()
