"""Webhook endpoints and their log. What an operator may do to them is done by the services."""

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.safestring import SafeString

from leasehub.admin import NOTHING, MachineWritten, ago, at_database_time, link, span
from leasehub.errors import DomainError
from leasehub.events.models import Event
from leasehub.events.webhooks import services
from leasehub.events.webhooks.models import WebhookDelivery, WebhookEndpoint
from leasehub.identity.admin import OrganizationFilter

MOST_AT_ONCE = 100
LONGEST_SHOWN = 32


class OfEndpoint(OrganizationFilter):
    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() is None:
            return queryset
        # By the endpoints themselves: their log has an index, their organization's has none.
        theirs = super().queryset(request, WebhookEndpoint.objects.all())
        return queryset.filter(endpoint__in=list(theirs.values_list("pk", flat=True)))


def each(request: HttpRequest, rows: QuerySet[Any], act: Callable[[Any], object]) -> None:
    """Does it to each of the chosen rows; what a service refuses becomes a message."""
    done = 0
    for row in rows[:MOST_AT_ONCE]:
        try:
            act(row)
            done += 1
        except DomainError as refusal:
            messages.warning(request, f"{row}: {refusal.message}")
    if done:
        messages.success(request, f"{done} done.")


def without_scheme(url: str) -> str:
    shown = url.partition("://")[2]
    return shown if len(shown) <= LONGEST_SHOWN else f"{shown[: LONGEST_SHOWN - 1]}…"


def named(row: WebhookEndpoint) -> dict[str, Any]:
    return {"organization": row.organization_id, "webhook_id": row.webhook_id}


@admin.register(WebhookEndpoint)
class WebhookEndpointAdmin(MachineWritten):
    list_display = ("address", "organization", "told_of", "shown_state", "failing", "last", "log")
    list_filter = ("state", OrganizationFilter)
    list_select_related = ("organization",)
    search_fields = ("url", "description")
    ordering = ("pk",)
    sortable_by = ()
    actions = ("pause", "resume", "send_test", "delete_for_good")
    fields = (
        "webhook_id", "organization", "principal", "key", "url", "description", "shown_types", "shown_state",
        "reason", "disabled_at", "cursor", "failures", "failing", "next_attempt_at", "last", "last_delivered_at",
        "old_secret_until", "created_at", "log",
    )  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[WebhookEndpoint]:
        return at_database_time(super().get_queryset(request).filter(deleted_at=None))

    def has_operate_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("events.operate_webhookendpoint")

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if request.method == "GET" and self.has_view_permission(request):
            stopped = WebhookEndpoint.objects.filter(deleted_at=None, state=WebhookEndpoint.State.DISABLED)
            for row in stopped.select_related("organization").order_by("-disabled_at")[:5]:
                messages.warning(request, f"An endpoint of {row.organization} is disabled: {row.reason} ({row}).")
        return super().changelist_view(request, extra_context)

    @admin.action(description="Pause: nothing is sent, nothing lost", permissions=["operate"])
    def pause(self, request: HttpRequest, queryset: QuerySet[WebhookEndpoint]) -> None:
        each(request, queryset, lambda row: services.pause(**named(row)))

    @admin.action(description="Resume from where it was", permissions=["operate"])
    def resume(self, request: HttpRequest, queryset: QuerySet[WebhookEndpoint]) -> None:
        each(request, queryset, lambda row: services.resume(**named(row)))

    @admin.action(description="Send a test", permissions=["operate"])
    def send_test(self, request: HttpRequest, queryset: QuerySet[WebhookEndpoint]) -> None:
        each(request, queryset, lambda row: services.test(**named(row)))

    @admin.action(description="Delete, with the log", permissions=["operate"])
    def delete_for_good(self, request: HttpRequest, queryset: QuerySet[WebhookEndpoint]) -> None:
        each(request, queryset, lambda row: services.delete(**named(row)))

    @admin.display(description="endpoint")
    def address(self, row: WebhookEndpoint) -> str:
        return without_scheme(row.url)

    @admin.display(description="types")
    def told_of(self, row: WebhookEndpoint) -> str:
        return "all" if not row.types else row.types[0] if len(row.types) == 1 else f"{len(row.types)} types"

    @admin.display(description="types")
    def shown_types(self, row: WebhookEndpoint) -> str:
        return ", ".join(row.types) or "all"

    @admin.display(description="state")
    def shown_state(self, row: WebhookEndpoint) -> str:
        return "DISABLED" if row.state == WebhookEndpoint.State.DISABLED else row.state

    @admin.display(description="last answer")
    def last(self, row: Any) -> str:
        return f"{row.last_status or 'none'}; delivered {ago(row.last_delivered_at, row.now)}"

    @admin.display(description="failing for")
    def failing(self, row: Any) -> str:
        return NOTHING if row.failing_since is None else f"{span(row.now - row.failing_since)}, {row.failures}×"

    @admin.display(description="deliveries")
    def log(self, row: WebhookEndpoint) -> SafeString:
        return link(f"{reverse('admin:events_webhookdelivery_changelist')}?endpoint={row.pk}", "its deliveries")


@admin.register(WebhookDelivery)
class WebhookDeliveryAdmin(MachineWritten):
    list_display = ("made", "type", "purpose", "result", "to")
    list_filter = ("state", OfEndpoint)
    list_select_related = ("endpoint__organization",)
    ordering = ("-pk",)
    sortable_by = ()
    actions = ("replay",)
    fields = (
        "delivery_id", "to", "purpose", "type", "message_id", "position", "event", "state", "attempts",
        "response_status", "error", "created_at", "attempted_at", "next_attempt_at", "ended_at", "took_ms",
    )  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[WebhookDelivery]:
        # No join, which would be made before the end of the log is looked for.
        gone = list(WebhookEndpoint.objects.filter(deleted_at__isnull=False).values_list("pk", flat=True))
        return super().get_queryset(request).exclude(endpoint__in=gone)

    def has_replay_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("events.replay_webhookdelivery")

    @admin.action(description="Replay: send the message again", permissions=["replay"])
    def replay(self, request: HttpRequest, queryset: QuerySet[WebhookDelivery]) -> None:
        rows = queryset.select_related("endpoint").order_by("pk")
        each(
            request,
            rows,
            lambda row: services.replay_delivery(**named(row.endpoint), delivery_id=row.delivery_id),
        )

    @admin.display(description="made (UTC)")
    def made(self, row: WebhookDelivery) -> str:
        return f"{row.created_at:%Y-%m-%d %H:%M:%S}"

    @admin.display(description="result")
    def result(self, row: WebhookDelivery) -> str:
        tries = f", attempt {row.attempts}" if row.attempts > 1 else ""
        return f"{row.state}{tries}{': ' if row.error else ''}{row.error}"

    @admin.display(description="endpoint")
    def to(self, row: WebhookDelivery) -> SafeString:
        address = reverse("admin:events_webhookendpoint_change", args=[row.endpoint_id])
        return link(address, f"{row.endpoint.organization}: {without_scheme(row.endpoint.url)}")

    @admin.display(description="event")
    def event(self, row: WebhookDelivery) -> SafeString | str:
        found = None
        if row.position is not None:
            organization = row.endpoint.organization_id
            found = Event.objects.filter(organization=organization, position=row.position).first()
        return NOTHING if found is None else link(reverse("admin:events_event_change", args=[found.pk]), found)
