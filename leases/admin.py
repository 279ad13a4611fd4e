"""Leases and resources, as they are. What an operator may do to a lease is done by the services, and recorded."""

import re
import uuid
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.safestring import SafeString

from leasehub.admin import NOTHING, MachineWritten, ago, at_database_time, link, pretty, span
from leasehub.db import clock
from leasehub.errors import DomainError
from leasehub.events.admin import timeline
from leasehub.events.queries import readings
from leasehub.identity.admin import OrganizationFilter
from leasehub.identity.models import Organization, Principal
from leases import services
from leases.models import Lease, Resource, public_lease_id

# One confirmation names every lease; more than this nobody reads.
MOST_AT_ONCE = 100
LONGEST_REASON = 3500
# Organization, lease, fencing token.
NAMED = re.compile(r"([0-9]{1,18}):([0-9a-f]{32}):([0-9]{1,16})")


class StateFilter(admin.SimpleListFilter):
    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        states = [("held", "held"), ("unknown", "unknown (ran out)")]
        return states if model_admin.model is Lease else [("free", "free"), *states]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        now = clock.now()
        if self.value() == "free":
            return queryset.filter(lease_id=None)
        if self.value() == "held":
            return queryset.filter(expires_at__gt=now)
        if self.value() == "unknown":
            # What ran out is due, and what is due is in an index.
            return queryset.filter(lease_id__isnull=False, check_at__lte=now, expires_at__lte=now)
        return queryset


class Leased(MachineWritten):
    """What the pages of a lease and of its resource share: one row shows both."""

    list_filter = (StateFilter, OrganizationFilter)
    list_select_related = ("organization", "principal")
    search_fields = ("holder",)
    search_help_text = "lease_…, the type/id of a resource, or a holder."
    sortable_by = ()

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return at_database_time(super().get_queryset(request))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        return (queryset.filter(meant_by(search_term)) if search_term else queryset), False

    @admin.display(description="state")
    def state(self, row: Any) -> str:
        if row.expires_at is None:
            return "free"
        return "held" if row.expires_at > row.now else "unknown"

    @admin.display(description="time left")
    def time_left(self, row: Any) -> str:
        if row.expires_at is None:
            return NOTHING
        if row.expires_at > row.now:
            return span(row.expires_at - row.now)
        return f"ran out {ago(row.expires_at, row.now)}"

    @admin.display(description="acquired")
    def acquired(self, row: Any) -> str:
        return ago(row.acquired_at, row.now)

    @admin.display(description="heartbeat")
    def heartbeat(self, row: Any) -> str:
        return ago(row.heartbeat_at, row.now)

    @admin.display(description="held by")
    def handle(self, row: Any) -> str:
        return NOTHING if row.principal is None else row.principal.handle

    @admin.display(description="token")
    def token(self, row: Any) -> int:
        token: int = row.last_token
        return token

    @admin.display(description="payload")
    def shown_payload(self, row: Any) -> SafeString | str:
        return pretty(row.payload)

    @admin.display(description="events")
    def events(self, row: Any) -> SafeString:
        return link(timeline(f"{row.resource_type}/{row.resource_id}"), "the resource's timeline")


@admin.register(Resource)
class ResourceAdmin(Leased):
    list_display = ("__str__", "state", "holder", "time_left", "organization", "token")
    ordering = ("-pk",)
    fields = ("organization", "resource_type", "resource_id", "state", "lease", "time_left", "last_token", "events")

    @admin.display(description="lease")
    def lease(self, row: Resource) -> SafeString | str:
        if row.lease_id is None:
            return NOTHING
        return link(reverse("admin:leases_lease_change", args=[row.pk]), public_lease_id(row.lease_id))


class ForceReleaseForm(forms.Form):
    reason = forms.CharField(
        max_length=LONGEST_REASON, widget=forms.Textarea(attrs={"rows": 3, "cols": 60, "autofocus": True})
    )


@admin.register(Lease)
class LeaseAdmin(Leased):
    list_display = ("resource", "holder", "handle", "time_left", "heartbeat", "organization", "token")
    # The order of the index of leases: soonest due first.
    ordering = ("check_at",)
    change_form_template = "admin/leases/lease/change_form.html"
    actions = ("force_release", "reap")
    fields = (
        "lease", "organization", "resource_link", "principal", "holder", "state", "time_left", "expires_at",
        "acquired_at", "heartbeat_at", "ttl", "lifetime_ends_at", "last_token", "purpose", "shown_payload",
        "lease_events", "events",
    )  # fmt: skip

    def has_force_release_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("leases.force_release_lease")

    def has_reap_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("leases.reap_lease")

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        context["may_force_release"] = self.has_force_release_permission(request)
        context["may_reap"] = self.has_reap_permission(request)
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.action(description="Force-release, with a reason…", permissions=["force_release"])
    def force_release(self, request: HttpRequest, queryset: QuerySet[Lease]) -> HttpResponse | None:
        form = ForceReleaseForm(request.POST if "confirmed" in request.POST else None)
        if form.is_valid():
            self._end(request, form.cleaned_data["reason"])
            return None
        chosen = list(queryset[: MOST_AT_ONCE + 1])
        if len(chosen) > MOST_AT_ONCE:
            messages.error(request, f"Choose at most {MOST_AT_ONCE} leases at once.")
            return None
        context = {
            **self.admin_site.each_context(request), "opts": self.opts, "title": "Force-release",
            "leases": [(row, named(row), self.time_left(row)) for row in chosen], "form": form,
        }  # fmt: skip
        return TemplateResponse(request, "admin/leases/lease/force_release.html", context)

    def _end(self, request: HttpRequest, reason: str) -> None:
        """Ends the acquisitions that the page named, which need not be those that hold the resources by now."""
        ended, gone = 0, 0
        for meant in filter(None, map(NAMED.fullmatch, request.POST.getlist("lease"))):
            actor, told = acting(request, int(meant[1]), reason)
            try:
                services.force_release(
                    actor=actor, lease_id=uuid.UUID(hex=meant[2]), fencing_token=int(meant[3]), reason=told
                )
                ended += 1
            except DomainError:
                gone += 1
        if ended:
            messages.success(request, f"{ended} force-released.")
        if gone:
            messages.warning(request, f"{gone} had ended already.")

    @admin.action(description="Reap those that ran out", permissions=["reap"])
    def reap(self, request: HttpRequest, queryset: QuerySet[Lease]) -> None:
        reaped, refused = 0, 0
        for row in queryset[:MOST_AT_ONCE]:
            actor, _ = acting(request, row.organization_id, "")
            try:
                services.reap(actor=actor, resource_type=row.resource_type, resource_id=row.resource_id)
                reaped += 1
            except DomainError:
                refused += 1
        messages.success(request, f"{reaped} reaped.")
        if refused:
            messages.warning(request, f"{refused} not: they live, or ended already.")

    @admin.display(description="resource")
    def resource(self, row: Lease) -> str:
        return f"{row.resource_type}/{row.resource_id}"

    @admin.display(description="resource")
    def resource_link(self, row: Lease) -> SafeString:
        return link(reverse("admin:leases_resource_change", args=[row.pk]), self.resource(row))

    @admin.display(description="lease")
    def lease(self, row: Lease) -> str:
        return str(row)

    @admin.display(description="time to live")
    def ttl(self, row: Lease) -> str:
        return NOTHING if row.ttl_ms is None else f"{row.ttl_ms / 1000:g} s"

    @admin.display(description="events")
    def lease_events(self, row: Lease) -> SafeString:
        return link(timeline(str(row)), "the lease's events")


def named(row: Lease) -> str:
    """The acquisition that is meant, whoever holds the resource when the form comes back."""
    assert row.lease_id is not None
    return f"{row.organization_id}:{row.lease_id.hex}:{row.last_token}"


def acting(request: HttpRequest, organization: int, reason: str) -> tuple[services.Actor, str]:
    """Who the journal says it was, and the reason with the user's name when no principal stands for it.

    A principal of another organization is none here: its handle is not for this one to see.
    """
    principal = Principal.objects.filter(user=request.user.pk, organization=organization, retired_at=None).first()
    if principal is not None:
        return services.Actor(organization, principal.pk), reason
    return services.Actor(organization, None), f"{reason} (admin user {request.user.get_username()})"


def meant_by(text: str) -> Q:
    """What a search means: a lease, a resource, or a holder, which is in no index but among leases alone."""
    try:
        return Q(lease_id=uuid.UUID(hex=text.removeprefix("lease_")))
    except ValueError:
        pass
    if "/" not in text:
        return Q(lease_id__isnull=False, holder=text)
    # Every organization, because the index of resources begins with it.
    found = Q(organization__in=list(Organization.objects.values_list("pk", flat=True)))
    named = Q()
    for resource_type, resource_id in readings(text):
        named |= Q(resource_type=resource_type, resource_id=resource_id)
    return found & named


# The admin looks for this module alone.
from leases.queues import admin as queues  # noqa: E402, F401
