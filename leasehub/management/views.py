"""The page of the admin that checks the invariants."""

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse

from leasehub.management import inspections


def invariants(request: HttpRequest) -> HttpResponse:
    """The last report; POST makes a new one. For superusers: it tells of every organization."""
    user = request.user
    if not (user.is_active and user.is_superuser):
        raise PermissionDenied
    if request.method == "POST":
        try:
            report = inspections.inspect(by=user.get_username()).report
        except inspections.CannotInspect as refusal:
            messages.error(request, str(refusal))
        else:
            level = messages.SUCCESS if report["ok"] else messages.ERROR
            messages.add_message(request, level, f"{report['found']} findings in {report['took_ms'] / 1000:.1f} s.")
        return HttpResponseRedirect(reverse("invariants"))
    context = {
        **admin.site.each_context(request),
        "title": "Check the invariants",
        "inspection": inspections.last(),
        "most_events": inspections.MOST_EVENTS,
    }
    return render(request, "admin/invariants.html", context)
