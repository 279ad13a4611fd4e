"""Organizations, principals and API keys. A key's secret is shown on the page that answers its making, never again."""

from typing import Any, cast

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError as FormError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from leasehub.admin import NOTHING, Operated, ago, at_database_time, link
from leasehub.errors import DomainError
from leasehub.identity import rings, services
from leasehub.identity.models import ApiKey, Organization, Principal
from leasehub.identity.sign_in import AdminSignInForm

MOST_ORGANIZATIONS = 50

admin.site.login_form = AdminSignInForm


class OrganizationFilter(admin.SimpleListFilter):
    """The first few by name; the page of an organization leads to the lists of any."""

    title = "organization"
    parameter_name = "organization"
    #: From the listed model to the organization.
    path = "organization"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        some = Organization.objects.order_by("name").values_list("pk", "name")[:MOST_ORGANIZATIONS]
        return [(str(pk), name) for pk, name in some]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value is None:
            return queryset
        return queryset.filter(**{self.path: int(value)}) if value.isascii() and value.isdigit() else queryset.none()


class OfPrincipal(OrganizationFilter):
    path = "principal__organization"


def organization_links(organization: Organization) -> SafeString:
    """To everything that is the organization's."""
    lists = (
        "identity_principal", "identity_apikey", "leases_lease", "leases_resource", "leases_queue", "events_event",
        "events_webhookendpoint",
    )  # fmt: skip
    names = ("principals", "keys", "leases", "resources", "queues", "events", "webhooks")
    links = [
        link(f"{reverse(f'admin:{address}_changelist')}?organization={organization.pk}", name)
        for address, name in zip(lists, names, strict=True)
    ]
    return format_html(" · ".join(["{}"] * len(links)), *links)


@admin.register(Organization)
class OrganizationAdmin(Operated):
    list_display = ("name", "created_at", "shortcuts")
    search_fields = ("name",)
    ordering = ("name",)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return ("name",) if obj is None else ("name", "created_at", "shortcuts")

    # Keys and callers carry the name with them.
    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        _become(obj, services.create_organization(name=obj.name))

    @admin.display(description="see its")
    def shortcuts(self, organization: Organization) -> SafeString:
        return organization_links(organization)


class PrincipalForm(forms.ModelForm):  # type: ignore[type-arg]
    def clean_handle(self) -> str:
        handle: str = self.cleaned_data["handle"]
        if not services.HANDLE.fullmatch(handle):
            raise FormError(f"must match {services.HANDLE.pattern}")
        return handle


@admin.register(Principal)
class PrincipalAdmin(Operated):
    form = PrincipalForm
    list_display = ("handle", "organization", "kind", "display_name", "user", "state")
    list_filter = (OrganizationFilter, "kind")
    list_select_related = ("organization", "user")
    search_fields = ("handle", "display_name")
    autocomplete_fields = ("organization", "user")
    ordering = ("handle", "pk")
    actions = ("retire",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Principal]:
        return super().get_queryset(request).select_related("organization")

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        fields = ("organization", "handle", "kind", "display_name", "user")
        return fields if obj is None else (*fields, "created_at", "retired_at", "its_keys")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        # Running processes remember organization, handle and kind.
        return () if obj is None else ("organization", "handle", "kind", "created_at", "retired_at", "its_keys")

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        if change:
            # What the form does not show may have changed meanwhile.
            obj.save(update_fields=[name for name in form.changed_data if name in ("display_name", "user")])
            return
        made = services.create_principal(
            organization=obj.organization_id,
            handle=obj.handle,
            kind=obj.kind,
            display_name=obj.display_name,
            user=obj.user,
        )
        _become(obj, made)

    @admin.display(description="state")
    def state(self, principal: Principal) -> str:
        return "retired" if principal.retired_at else "active"

    @admin.display(description="keys")
    def its_keys(self, principal: Principal) -> SafeString:
        return link(f"{reverse('admin:identity_apikey_changelist')}?principal={principal.pk}", "its keys")

    @admin.action(description="Retire: none of their keys works from the next call on", permissions=["change"])
    def retire(self, request: HttpRequest, queryset: QuerySet[Principal]) -> None:
        for principal in queryset:
            services.retire_principal(organization=principal.organization_id, handle=principal.handle)
            self.log_change(request, principal, "Retired.")
        messages.success(request, "Retired.")


class KeyForm(forms.ModelForm):  # type: ignore[type-arg]
    class Meta:
        model = ApiKey
        fields = ("principal", "label", "observes", "acts", "operates", "holder_pattern", "expires_at")
        help_texts = {
            "observes": "reads",
            "acts": "claims, heartbeats, releases, hands off",
            "operates": "forces, declares pools and webhooks, makes keys",
            "holder_pattern": "The holder fence: the whole of a holder's name must match.",
            "expires_at": "UTC; empty: never.",
        }
        labels = {"expires_at": "Expires at", "holder_pattern": "Holder pattern"}

    def clean_principal(self) -> Principal:
        principal: Principal = self.cleaned_data["principal"]
        if principal.retired_at is not None:
            raise FormError("This principal is retired.")
        return principal

    def clean_holder_pattern(self) -> str:
        pattern: str = self.cleaned_data["holder_pattern"]
        try:
            services.check_pattern(pattern)
        except DomainError as refusal:
            raise FormError(cast(dict[str, str], refusal.fields["fields"])["holder_pattern"]) from refusal
        return pattern

    def clean(self) -> dict[str, Any]:
        given = super().clean() or {}
        if not any(given.get(ring) for ring in ("observes", "acts", "operates")):
            raise FormError("A key carries at least one ring.")
        return given


class RotateForm(forms.Form):
    overlap_seconds = forms.TypedChoiceField(
        label="The old secret works for",
        coerce=int,
        choices=[(0, "no longer"), (3600, "another hour"), (86400, "another day")],
        initial=3600,
    )


@admin.register(ApiKey)
class ApiKeyAdmin(Operated):
    form = KeyForm
    list_display = ("shown_prefix", "handle", "organization", "label", "shown_rings", "state", "used")
    list_filter = (OfPrincipal, "operates")
    list_select_related = ("principal__organization",)
    search_fields = ("prefix", "label", "principal__handle")
    search_help_text = "The first characters of the secret, a label, or a principal's handle."
    autocomplete_fields = ("principal",)
    ordering = ("-pk",)
    actions = ("revoke", "rotate")

    def get_queryset(self, request: HttpRequest) -> QuerySet[ApiKey]:
        return at_database_time(super().get_queryset(request).select_related("principal__organization"))

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return self.form.Meta.fields
        return (
            "key_id", "shown_prefix", "principal", "label", "shown_rings", "holder_pattern",
            "state", "created_at", "expires_at", "revoked_at", "last_used_at", "rotated_from",
        )  # fmt: skip

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        form = super().get_form(request, obj, change, **kwargs)
        if obj is None and "principal" in form.base_fields:
            # A principal is made on its own page: one made in passing would be forgotten there.
            form.base_fields["principal"].widget.can_add_related = False
            form.base_fields["principal"].widget.can_change_related = False
            form.base_fields["principal"].widget.can_view_related = False
        return form

    # What a key may do never changes: processes remember it.
    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_rotate_permission(self, request: HttpRequest) -> bool:
        # It shows a secret, as making a key does.
        return self.has_add_permission(request)

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("identity.revoke_apikey")

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        made, plain = services.issue_key(
            principal=obj.principal,
            label=obj.label,
            rings=obj.rings,
            holder_pattern=obj.holder_pattern,
            expires_at=obj.expires_at,
        )
        _become(obj, made)
        form.issued = [(made, plain)]

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        super().save_related(request, form, formsets, change)
        # The one way from the form to the answer that passes through no session and no cookie.
        request.issued = form.issued  # type: ignore[attr-defined]

    def response_add(self, request: HttpRequest, obj: Any, post_url_continue: str | None = None) -> HttpResponse:
        return self._show(request, request.issued)  # type: ignore[attr-defined]

    def _show(self, request: HttpRequest, issued: list[tuple[ApiKey, str]]) -> HttpResponse:
        """The answer itself shows the secrets: nothing keeps them, and every admin page tells the browser not to."""
        context = {**self.admin_site.each_context(request), "opts": self.opts, "title": "New key", "issued": issued}
        return TemplateResponse(request, "admin/identity/apikey/secret.html", context)

    @admin.action(description="Revoke: refused from the next call on", permissions=["revoke"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        for key in queryset:
            services.revoke_key(organization=key.principal.organization_id, key=key)
            self.log_change(request, key, "Revoked.")
        messages.success(request, "Revoked.")

    @admin.action(description="Rotate: a new secret with the same rights…", permissions=["rotate"])
    def rotate(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> HttpResponse | None:
        form = RotateForm(request.POST if "confirmed" in request.POST else None)
        if not form.is_valid():
            context = {
                **self.admin_site.each_context(request), "opts": self.opts, "title": "Rotate keys",
                "keys": queryset, "form": form,
            }  # fmt: skip
            return TemplateResponse(request, "admin/identity/apikey/rotate.html", context)
        issued = []
        for key in queryset:
            try:
                made = services.rotate_key(
                    organization=key.principal.organization_id,
                    granting=rings.NAMES,
                    key=key,
                    overlap_seconds=form.cleaned_data["overlap_seconds"],
                )
            except DomainError:
                messages.error(request, f"{key} works no more, so it was not rotated.")
                continue
            self.log_change(request, key, "Rotated.")
            issued.append(made)
        return self._show(request, issued) if issued else None

    @admin.display(description="key", ordering="prefix")
    def shown_prefix(self, key: ApiKey) -> str:
        return f"{key.prefix}…"

    @admin.display(description="principal", ordering="principal__handle")
    def handle(self, key: ApiKey) -> str:
        return key.principal.handle

    @admin.display(description="organization", ordering="principal__organization__name")
    def organization(self, key: ApiKey) -> str:
        return key.principal.organization.name

    @admin.display(description="rings")
    def shown_rings(self, key: ApiKey) -> str:
        return ", ".join(str(ring) for ring in key.rings)

    @admin.display(description="state")
    def state(self, key: Any) -> str:
        if key.revoked_at is not None:
            return "revoked"
        if key.principal.retired_at is not None:
            return "principal retired"
        if key.expires_at is not None and key.expires_at <= key.now:
            return "expired"
        return "works"

    @admin.display(description="last used", ordering="last_used_at")
    def used(self, key: Any) -> str:
        return ago(key.last_used_at, key.now) if key.last_used_at else NOTHING


def _become(empty: Any, made: Any) -> None:
    """The form's instance becomes the row that a service made."""
    empty.__dict__.update(made.__dict__)
