"""People: principals of kind human who come by a session instead of a key."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from typing import Any

from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import resolve_url
from django.views.decorators.cache import never_cache

from leasehub.db.clock import DatabaseNow
from leasehub.errors import NotFound
from leasehub.identity.models import Principal

SIGN_IN = "sign_in"


@dataclass(frozen=True, slots=True)
class Person:
    """Whose session it is."""

    principal: int
    handle: str
    organization: int
    organization_name: str
    operates: bool
    #: Database time at which the person was looked up: the page's time.
    at: datetime

    @classmethod
    def of(cls, request: HttpRequest) -> "Person | None":
        """The person behind a session, asked of the database at every request; None for a retired one."""
        user = request.user
        if not user.is_authenticated:
            return None
        alive = Principal.objects.filter(user=user.pk, retired_at=None).annotate(at=DatabaseNow())
        principal = alive.select_related("organization").first()
        if principal is None:
            return None
        return cls(
            principal=principal.pk,
            handle=principal.handle,
            organization=principal.organization_id,
            organization_name=principal.organization.name,
            operates=user.is_staff,
            at=principal.at,
        )


def for_people(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """A page for whoever is signed in and is a principal: the view gets the person.

    What the person may not see is not found, like what does not exist.
    """

    @wraps(view)
    def page(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if not request.user.is_authenticated:
            return _to_sign_in(request)
        person = Person.of(request)
        if person is None:
            raise PermissionDenied
        request.person = person  # type: ignore[attr-defined]
        try:
            return view(request, person, *args, **kwargs)
        except NotFound as error:
            raise Http404 from error

    return never_cache(page)


def _to_sign_in(request: HttpRequest) -> HttpResponse:
    """A page that updates itself goes there as a whole: the form must not land inside it."""
    if request.headers.get("HX-Request") == "true":
        return HttpResponse(status=401, headers={"HX-Redirect": resolve_url(SIGN_IN)})
    return redirect_to_login(request.get_full_path(), SIGN_IN)
