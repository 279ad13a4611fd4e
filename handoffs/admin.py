"""Handoffs and checkpoints, as they are. An operator can take an offer back, which the service records."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.safestring import SafeString

from handoffs import services
from handoffs.models import Checkpoint, CheckpointVersion, Handoff, OfferedLease
from handoffs.queries import parse_checkpoint_id, parse_handoff_id
from leasehub.admin import NOTHING, MachineWritten, ago, at_database_time, pretty, span
from leasehub.errors import DomainError, NotFound
from leasehub.identity.admin import OrganizationFilter
from leases.admin import acting
from leases.models import public_lease_id

# One confirmation names every handoff; more than this nobody reads.
MOST_AT_ONCE = 100
LONGEST_REASON = 3500


class ReasonForm(forms.Form):
    reason = forms.CharField(
        max_length=LONGEST_REASON, widget=forms.Textarea(attrs={"rows": 3, "cols": 60, "autofocus": True})
    )


class Written(MachineWritten):
    """What the pages of a handoff and of a checkpoint share."""

    sortable_by = ()
    ordering = ("-pk",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return at_database_time(super().get_queryset(request))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        return (self.found(queryset, search_term.strip()) if search_term else queryset), False

    def found(self, queryset: QuerySet[Any], text: str) -> QuerySet[Any]:
        raise NotImplementedError


class OfferedLeases(admin.TabularInline):  # type: ignore[type-arg]
    model = OfferedLease
    verbose_name_plural = "offered leases"
    fields = readonly_fields = ("lease", "resource", "outcome", "fencing_token")
    extra = 0
    can_delete = False

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("handoffs.view_handoff")

    @admin.display(description="lease")
    def lease(self, row: OfferedLease) -> str:
        return public_lease_id(row.moved_to or row.lease_id)

    @admin.display(description="resource")
    def resource(self, row: OfferedLease) -> str:
        return f"{row.resource_type}/{row.resource_id}"


@admin.register(Handoff)
class HandoffAdmin(Written):
    list_display = ("subject_id", "state", "from_", "to", "created", "accept_within", "organization")
    list_filter = ("status", OrganizationFilter)
    list_select_related = ("organization", "giver", "addressee")
    search_fields = ("subject_id",)
    search_help_text = "hoff_…, or the handle of giver or addressee."
    inlines = (OfferedLeases,)
    actions = ("withdraw",)
    fields = (
        "name", "organization", "from_", "to", "state", "subject_id", "message", "next_action", "carried",
        "state_hash", "checkpoint", "checkpoint_version", "context_id", "parent", "hop", "created_at", "accept_by",
        "resolved_at", "reason", "holder", "observed_commit", "completed_at", "shown_result",
    )  # fmt: skip

    def has_withdraw_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("handoffs.withdraw_handoff")

    def found(self, queryset: QuerySet[Any], text: str) -> QuerySet[Any]:
        try:
            return queryset.filter(public_id=parse_handoff_id(text))
        except NotFound:
            return queryset.filter(giver__handle=text) | queryset.filter(addressee__handle=text)

    @admin.action(description="Withdraw, with a reason…", permissions=["withdraw"])
    def withdraw(self, request: HttpRequest, queryset: QuerySet[Handoff]) -> HttpResponse | None:
        form = ReasonForm(request.POST if "confirmed" in request.POST else None)
        chosen = list(queryset[: MOST_AT_ONCE + 1])
        if len(chosen) > MOST_AT_ONCE:
            messages.error(request, f"Choose at most {MOST_AT_ONCE} handoffs at once.")
            return None
        if form.is_valid():
            self._withdraw(request, chosen, form.cleaned_data["reason"])
            return None
        context = {
            **self.admin_site.each_context(request), "opts": self.opts, "title": "Withdraw", "handoffs": chosen,
            "form": form,
        }  # fmt: skip
        return TemplateResponse(request, "admin/handoffs/handoff/withdraw.html", context)

    def _withdraw(self, request: HttpRequest, chosen: list[Handoff], reason: str) -> None:
        withdrawn, refused = 0, 0
        for handoff in chosen:
            actor, told = acting(request, handoff.organization_id, reason)
            try:
                services.withdraw(actor=actor, handoff_id=handoff.public_id, reason=told, as_operator=True)
                withdrawn += 1
            except DomainError:
                refused += 1
        if withdrawn:
            messages.success(request, f"{withdrawn} withdrawn.")
        if refused:
            messages.warning(
                request, f"{refused} not: they are decided already, or the reason looks like a credential."
            )

    @admin.display(description="handoff")
    def name(self, row: Handoff) -> str:
        return row.handoff_id

    @admin.display(description="status")
    def state(self, row: Any) -> str:
        return str(row.status_at(row.now))

    @admin.display(description="from")
    def from_(self, row: Handoff) -> str:
        return row.giver.handle

    @admin.display(description="to")
    def to(self, row: Handoff) -> str:
        return row.addressee.handle

    @admin.display(description="created")
    def created(self, row: Any) -> str:
        return ago(row.created_at, row.now)

    @admin.display(description="to be accepted in")
    def accept_within(self, row: Any) -> str:
        waits = row.accept_by is not None and row.status_at(row.now) == Handoff.Status.PENDING
        return span(row.accept_by - row.now) if waits else NOTHING

    @admin.display(description="content")
    def carried(self, row: Handoff) -> SafeString | str:
        return pretty(row.content)

    @admin.display(description="result")
    def shown_result(self, row: Handoff) -> SafeString | str:
        return pretty(row.result)


class Versions(admin.TabularInline):  # type: ignore[type-arg]
    model = CheckpointVersion
    verbose_name_plural = "versions that are kept"
    fields = readonly_fields = ("version", "created_at", "author", "fencing_token", "shown_state")
    ordering = ("-version",)
    extra = 0
    can_delete = False

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("handoffs.view_checkpoint")

    def get_queryset(self, request: HttpRequest) -> QuerySet[CheckpointVersion]:
        return super().get_queryset(request).select_related("written_by")

    @admin.display(description="written by")
    def author(self, row: CheckpointVersion) -> str:
        return row.written_by.handle

    @admin.display(description="state")
    def shown_state(self, row: CheckpointVersion) -> SafeString | str:
        return pretty(row.state)


@admin.register(Checkpoint)
class CheckpointAdmin(Written):
    list_display = ("subject_id", "kind", "version", "belongs_to", "updated", "organization")
    list_filter = (OrganizationFilter,)
    list_select_related = ("organization", "principal")
    search_fields = ("subject_id",)
    search_help_text = "ckpt_…, or the handle of a principal."
    inlines = (Versions,)
    fields = (
        "name", "organization", "belongs_to", "subject_id", "kind", "version", "state_hash", "run_id", "ttl_seconds",
        "expires_at", "created_at", "updated_at",
    )  # fmt: skip

    def found(self, queryset: QuerySet[Any], text: str) -> QuerySet[Any]:
        try:
            return queryset.filter(public_id=parse_checkpoint_id(text))
        except NotFound:
            return queryset.filter(principal__handle=text)

    @admin.display(description="checkpoint")
    def name(self, row: Checkpoint) -> str:
        return row.checkpoint_id

    @admin.display(description="belongs to")
    def belongs_to(self, row: Checkpoint) -> str:
        return f"{row.resource_type}/{row.resource_id}" if row.resource_type else row.principal.handle

    @admin.display(description="updated")
    def updated(self, row: Any) -> str:
        return ago(row.updated_at, row.now)
