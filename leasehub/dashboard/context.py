"""What every page of a person shows."""

from typing import Any

from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

from handoffs import queries


def page(request: HttpRequest) -> dict[str, Any]:
    person = getattr(request, "person", None)
    partial = request.headers.get("HX-Request") == "true"
    context: dict[str, Any] = {
        "person": person,
        # A page that updates itself asks for its live part alone.
        "frame": "partial.html" if partial else "page.html",
        "section": request.path.split("/")[1],
    }
    if person is not None and not partial:
        context["waiting"] = SimpleLazyObject(lambda: queries.count_pending(principal=person.principal, at=person.at))
    return context
