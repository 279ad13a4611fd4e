"""The guides, open to everybody. They say nothing of any organization."""

from django.http import Http404, HttpRequest, HttpResponse
from django.template.loader import render_to_string

from leasehub import __version__
from leasehub.api import published

GUIDES = ("leases", "queues", "pools", "handoffs", "glossary")


@published.published
def overview(request: HttpRequest) -> HttpResponse:
    return _page(request, "llms.txt", media_type="text/plain")


@published.published
def guide(request: HttpRequest, name: str) -> HttpResponse:
    if name not in GUIDES:
        raise Http404
    return _page(request, f"{name}.md", media_type="text/markdown")


def _page(request: HttpRequest, template: str, *, media_type: str) -> HttpResponse:
    # Without the request: a page of nobody in particular, which may be kept by caches.
    text = render_to_string(f"guides/{template}", {"address": published.address(request), "version": __version__})
    return published.answer(request, text, media_type=f"{media_type}; charset=utf-8")
