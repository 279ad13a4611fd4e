"""Pools with their slots and queue on one screen; what an operator may do to them is done by the services."""

import json
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError as FormError
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from leasehub.admin import NOTHING, MachineWritten, ago, at_database_time, link, pretty, span
from leasehub.api.parsing import MAX_BODY_BYTES
from leasehub.db import clock
from leasehub.errors import DomainError
from leasehub.identity.admin import OrganizationFilter
from leasehub.identity.models import Organization
from leases.admin import acting
from leases.services import Actor
from pools import answers, queries, services
from pools.errors import Busy
from pools.models import CommandRun, Pool, Request, Slot, public_request_id, public_run_id

MOST_AT_ONCE = 200
RECENT_RUNS = 10


class OfPool(OrganizationFilter):
    path = "pool__organization"


def may_operate(request: HttpRequest) -> bool:
    return request.user.has_perm("pools.operate_pool")


class DeclareForm(forms.Form):
    """A pool file, uploaded or pasted."""

    organization = forms.ModelChoiceField(Organization.objects.order_by("name"))
    name = forms.CharField(required=False, help_text="Empty: the name in the file.")
    file = forms.FileField(required=False)
    text = forms.CharField(required=False, widget=forms.Textarea(attrs={"rows": 20, "cols": 80}))

    def clean(self) -> dict[str, Any]:
        given = super().clean() or {}
        upload = given.get("file")
        if upload is not None and upload.size > MAX_BODY_BYTES:
            raise FormError(f"The file is larger than {MAX_BODY_BYTES} bytes.")
        try:
            text = upload.read().decode() if upload is not None else given.get("text", "")
            given["document"] = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise FormError(f"The pool file is not valid JSON: {error}") from error
        return given


@admin.register(Pool)
class PoolAdmin(MachineWritten):
    list_display = ("name", "organization", "slots_total", "slots_held", "slots_free", "slots_out", "waiting", "worker")
    list_filter = (OrganizationFilter,)
    list_select_related = ("organization",)
    search_fields = ("name",)
    ordering = ("name", "pk")
    sortable_by = ("name",)
    change_form_template = "admin/pools/pool/change_form.html"
    fields = ("name", "organization", "worker", "served", "average", "declared_at", "shown_declaration", "all_runs")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Pool]:
        return super().get_queryset(request).select_related("organization")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return may_operate(request)

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if not self.has_add_permission(request):
            return super().add_view(request, form_url, extra_context)
        form = DeclareForm(request.POST or None, request.FILES or None)
        if form.is_valid() and (pool := self._declared(request, form)) is not None:
            return HttpResponseRedirect(reverse("admin:pools_pool_change", args=[pool.pk]))
        context = {
            **self.admin_site.each_context(request), "opts": self.opts, "title": "Declare a pool", "form": form,
        }  # fmt: skip
        return TemplateResponse(request, "admin/pools/pool/declare.html", context)

    def _declared(self, request: HttpRequest, form: DeclareForm) -> Pool | None:
        given = form.cleaned_data
        document = given["document"]
        named = document.get("name") if isinstance(document, dict) else None
        actor, _ = acting(request, given["organization"].pk, "")
        try:
            pool, _ = services.declare(actor=actor, name=given["name"] or named or "pool", document=document)
        except DomainError as refusal:
            form.add_error(None, refusal.message)
            return None
        messages.success(request, f"Declared {pool.name}.")
        return pool

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        pool = self.get_object(request, object_id)
        shown = {} if pool is None else self._screen(request, pool)
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), **shown})

    def _screen(self, request: HttpRequest, pool: Pool) -> dict[str, Any]:
        at = clock.now()
        waiting = queries.queue(pool=pool, at=at)
        estimates = queries.estimates(pool=pool, positions=range(1, len(waiting) + 1), at=at)
        runs = CommandRun.objects.filter(pool=pool).select_related("slot").order_by("-pk")[:RECENT_RUNS]
        return {
            "may_operate": may_operate(request),
            "may_force_release": request.user.has_perm("leases.force_release_lease"),
            "slots": [slot_row(held, at) for held in queries.shown_slots(pool=pool)],
            "queue": [queue_row(row, estimate, at) for row, estimate in zip(waiting, estimates, strict=True)],
            "runs": [(run, run_link(run), ago(run.created_at, at)) for run in runs],
        }

    @admin.display(description="slots")
    def slots_total(self, pool: Pool) -> int:
        return self._counts(pool)["slots_total"]

    @admin.display(description="held")
    def slots_held(self, pool: Pool) -> int:
        return self._counts(pool)["slots_held"]

    @admin.display(description="free")
    def slots_free(self, pool: Pool) -> int:
        return self._counts(pool)["slots_free"]

    @admin.display(description="out")
    def slots_out(self, pool: Pool) -> int:
        return self._counts(pool)["slots_out"]

    @admin.display(description="waiting")
    def waiting(self, pool: Pool) -> int:
        return self._counts(pool)["waiting"]

    def _counts(self, pool: Pool) -> dict[str, int]:
        counted: dict[str, int] | None = getattr(pool, "counted", None)
        if counted is None:
            counted = queries.counts(pools=[pool])[pool.pk]
            pool.counted = counted  # type: ignore[attr-defined]
        return counted

    @admin.display(description="commands")
    def served(self, pool: Pool) -> str:
        served = queries.served(pool)
        return NOTHING if served is None else "a worker serves them" if served else "NO WORKER serves this queue"

    @admin.display(description="moving average")
    def average(self, pool: Pool) -> str:
        return f"{queries.moving_average(pool) / 60_000:.1f} min, of the last {len(pool.durations_ms)} leases"

    @admin.display(description="pool file")
    def shown_declaration(self, pool: Pool) -> SafeString | str:
        return pretty(pool.declaration)

    @admin.display(description="command runs")
    def all_runs(self, pool: Pool) -> SafeString:
        return link(f"{reverse('admin:pools_commandrun_changelist')}?pool={pool.pk}", "all of this pool")


def slot_row(held: queries.Held, at: Any) -> dict[str, Any]:
    slot, lease = held.slot, held.lease
    return {
        "slot": slot,
        "link": link(reverse("admin:pools_slot_change", args=[slot.pk]), slot.slot_id),
        "condition": answers.condition(slot),
        "state": state_of(held, at),
        "lease": lease,
        "time_left": span(lease.expires_at - at) if lease and lease.expires_at and lease.expires_at > at else NOTHING,
    }


def state_of(held: queries.Held, at: Any) -> str:
    if held.lease is None or held.lease.expires_at is None:
        return "command runs" if held.slot.is_busy else "free"
    if held.lease.expires_at <= at:
        return "ran out"
    return "held" if held.slot.is_clean else "being prepared"


def queue_row(row: Request, estimate: Any, at: Any) -> dict[str, Any]:
    return {
        "request": row,
        "link": link(reverse("admin:pools_request_change", args=[row.pk]), f"#{row.ticket}"),
        "position": estimate.position,
        "eta": f"{estimate.eta_better_ms / 60_000:.1f} min",
        "waited": ago(row.created_at, at),
        "seen": ago(row.seen_at, at),
        "wish": ", ".join(f"{path}={json.dumps(value)}" for path, value in row.selector.items()) or NOTHING,
    }


def run_link(run: CommandRun) -> SafeString:
    return link(reverse("admin:pools_commandrun_change", args=[run.pk]), run.purpose)


class ConditionFilter(admin.SimpleListFilter):
    title = "condition"
    parameter_name = "condition"
    conditions = {  # noqa: RUF012
        "enabled": Q(is_declared=True, is_draining=False, is_broken=False),
        "draining": Q(is_declared=True, is_draining=True, is_broken=False),
        "broken": Q(is_declared=True, is_broken=True),
        "removed": Q(is_declared=False),
    }

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in self.conditions]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Slot]) -> QuerySet[Slot]:
        condition = self.conditions.get(self.value() or "")
        return queryset if condition is None else queryset.filter(condition)


@admin.register(Slot)
class SlotAdmin(MachineWritten):
    list_display = ("__str__", "organization", "condition", "use", "failures", "error")
    list_filter = (ConditionFilter, OfPool)
    list_select_related = ("pool__organization",)
    search_fields = ("slot_id", "pool__name")
    ordering = ("pk",)
    actions = ("drain", "undrain", "repair", "reprovision", "check_health")
    fields = (
        "pool", "slot_id", "kind", "condition", "use", "request_link", "failures", "error",
        "shown_attributes", "runs",
    )  # fmt: skip

    def has_operate_permission(self, request: HttpRequest) -> bool:
        return may_operate(request)

    @admin.action(description="Drain: no more grants", permissions=["operate"])
    def drain(self, request: HttpRequest, queryset: QuerySet[Slot]) -> None:
        self._each(request, queryset, lambda slot, actor: services.drain(actor=actor, **named(slot)))

    @admin.action(description="Undrain", permissions=["operate"])
    def undrain(self, request: HttpRequest, queryset: QuerySet[Slot]) -> None:
        self._each(request, queryset, lambda slot, actor: services.undrain(actor=actor, **named(slot)))

    @admin.action(description="Repair: it works again", permissions=["operate"])
    def repair(self, request: HttpRequest, queryset: QuerySet[Slot]) -> None:
        self._each(request, queryset, lambda slot, actor: services.repair(actor=actor, **named(slot)))

    @admin.action(description="Reprovision: reset a free slot", permissions=["operate"])
    def reprovision(self, request: HttpRequest, queryset: QuerySet[Slot]) -> None:
        self._each(
            request,
            queryset,
            lambda slot, actor: services.reprovision(
                actor=actor, holder="admin", pool=slot.pool.name, slot_id=slot.slot_id
            ),
        )

    @admin.action(description="Ask for its health", permissions=["operate"])
    def check_health(self, request: HttpRequest, queryset: QuerySet[Slot]) -> None:
        self._each(request, queryset, lambda slot, actor: services.health(actor=actor, **named(slot)))

    def _each(self, request: HttpRequest, queryset: QuerySet[Slot], act: Any) -> None:
        done = 0
        for slot in queryset.select_related("pool")[:MOST_AT_ONCE]:
            actor, _ = acting(request, slot.pool.organization_id, "")
            try:
                act(slot, actor)
                done += 1
            except DomainError as refusal:
                messages.warning(request, f"{slot}: {refusal.message}")
        if done:
            messages.success(request, f"{done} done.")

    def response_action(self, request: HttpRequest, queryset: Any, *args: Any) -> HttpResponse | None:
        return back_to_pool(request, super().response_action(request, queryset, *args))

    @admin.display(description="organization")
    def organization(self, slot: Slot) -> str:
        return slot.pool.organization.name

    @admin.display(description="condition")
    def condition(self, slot: Slot) -> str:
        return answers.condition(slot)

    @admin.display(description="state")
    def use(self, slot: Slot) -> str:
        in_use = "leased" if slot.lease_id is not None else "free"
        return f"{in_use}, a command runs" if slot.is_busy else in_use

    @admin.display(description="request")
    def request_link(self, slot: Slot) -> SafeString | str:
        if slot.request is None:
            return NOTHING
        return link(reverse("admin:pools_request_change", args=[slot.request.pk]), slot.request)

    @admin.display(description="attributes")
    def shown_attributes(self, slot: Slot) -> SafeString | str:
        return pretty(slot.attributes)

    @admin.display(description="command runs")
    def runs(self, slot: Slot) -> SafeString:
        return link(f"{reverse('admin:pools_commandrun_changelist')}?slot={slot.pk}", "of this slot")


def named(slot: Slot) -> dict[str, str]:
    return {"pool": slot.pool.name, "slot_id": slot.slot_id}


def back_to_pool(request: HttpRequest, response: HttpResponse | None) -> HttpResponse | None:
    """An action that was chosen on a pool's screen leads back to it."""
    pool = request.POST.get("pool", "")
    if isinstance(response, HttpResponseRedirect) and pool.isascii() and pool.isdigit():
        return HttpResponseRedirect(reverse("admin:pools_pool_change", args=[int(pool)]))
    return response


@admin.register(Request)
class RequestAdmin(MachineWritten):
    list_display = ("__str__", "organization", "state", "holder", "mode", "count", "created_at", "reason")
    list_filter = ("state", OfPool)
    list_select_related = ("pool__organization", "principal")
    search_fields = ("holder", "session", "pool__name")
    ordering = ("-pk",)
    sortable_by = ()
    actions = ("drop",)
    fields = (
        "request", "pool", "ticket", "principal", "holder", "session", "mode", "no_wait", "count", "shown_selector",
        "ttl_seconds", "state", "reason", "failures", "error", "failed_slot", "created_at", "seen_at", "ready_at",
        "fetched_at", "ended_at", "its_slots",
    )  # fmt: skip

    def has_operate_permission(self, request: HttpRequest) -> bool:
        return may_operate(request)

    @admin.action(description="Drop: end a request that waits", permissions=["operate"])
    def drop(self, request: HttpRequest, queryset: QuerySet[Request]) -> None:
        dropped = 0
        for row in queryset.select_related("pool")[:MOST_AT_ONCE]:
            actor: Actor = acting(request, row.pool.organization_id, "")[0]
            try:
                dropped += services.drop_waiter(actor=actor, request_id=row.request_id)
            except Busy as refused:
                messages.error(request, f"{row}: {refused.message}")
        messages.success(request, f"{dropped} dropped.")

    def response_action(self, request: HttpRequest, queryset: Any, *args: Any) -> HttpResponse | None:
        return back_to_pool(request, super().response_action(request, queryset, *args))

    @admin.display(description="request")
    def request(self, row: Request) -> str:
        return public_request_id(row.request_id)

    @admin.display(description="organization")
    def organization(self, row: Request) -> str:
        return row.pool.organization.name

    @admin.display(description="selector")
    def shown_selector(self, row: Request) -> SafeString | str:
        return pretty(row.selector)

    @admin.display(description="slots")
    def its_slots(self, row: Request) -> SafeString | str:
        slots = Slot.objects.filter(request=row).select_related("pool")
        links = ((link(reverse("admin:pools_slot_change", args=[slot.pk]), slot),) for slot in slots)
        return format_html_join(", ", "{}", links) or NOTHING


@admin.register(CommandRun)
class CommandRunAdmin(MachineWritten):
    list_display = ("purpose", "where", "state", "outcome", "error", "created", "worker_name")
    list_filter = ("state", "purpose", "outcome", OfPool)
    list_select_related = ("pool", "slot")
    ordering = ("-pk",)
    sortable_by = ()
    fields = (
        "run", "where", "purpose", "state", "outcome", "failed_action", "error", "worker", "worker_name", "cwd",
        "created_at", "started_at", "deadline", "ended_at", "commands", "output",
    )  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return at_database_time(super().get_queryset(request))

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        return lookup in ("pool", "slot") or super().lookup_allowed(lookup, value, request)  # type: ignore[arg-type]

    @admin.display(description="run")
    def run(self, row: CommandRun) -> str:
        return public_run_id(row.run_id)

    @admin.display(description="slot")
    def where(self, row: CommandRun) -> str:
        return row.pool.name if row.slot is None else f"{row.pool.name}/{row.slot.slot_id}"

    @admin.display(description="created")
    def created(self, row: Any) -> str:
        return ago(row.created_at, row.now)

    @admin.display(description="commands")
    def commands(self, row: CommandRun) -> SafeString:
        return format_html_join("", "<p>{}</p><pre>{}</pre>", ((s["action"], s["command"]) for s in row.steps))

    @admin.display(description="output")
    def output(self, row: CommandRun) -> SafeString | str:
        """What the commands printed: untrusted, so it is escaped, and was stripped of controls when it was stored."""
        shown = ((how_it_ended(result), result.get("output") or NOTHING) for result in row.results)
        return format_html_join("", "<p>{}</p><pre>{}</pre>", shown) or NOTHING


def how_it_ended(result: dict[str, Any]) -> SafeString:
    status = f"exit {result['exit_status']}" if result.get("exit_status") is not None else result.get("ended")
    return format_html("{}: {}, {} ms", result["action"], status, result.get("took_ms"))
