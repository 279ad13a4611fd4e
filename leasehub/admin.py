"""The operator's site: what the admins of the apps stand on, and the schedule.

It belongs to whoever runs the server: who may look sees every organization.
"""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from django.contrib import admin, messages
from django.core.paginator import Paginator
from django.db.models import DateTimeField, Model, QuerySet, Value
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django_celery_beat.admin import PeriodicTaskAdmin
from django_celery_beat.models import ClockedSchedule, PeriodicTask, SolarSchedule

from leasehub.db import clock
from leasehub.errors import DomainError

admin.site.site_title = "LeaseHub"
admin.site.site_header = "LeaseHub"
admin.site.index_title = "Operate the server"
admin.site.site_url = None
# Its width is wanted for the columns; the index has the same links.
admin.site.enable_nav_sidebar = False

NOTHING = "–"


class BoundedPaginator(Paginator):  # type: ignore[type-arg]
    """Counts no further than anybody turns pages: an exact count of a million rows takes longer than the page."""

    MOST = 10_000

    @cached_property
    def count(self) -> int:
        return min(self._counted, self.MOST)

    @property
    def has_more(self) -> bool:
        return self._counted > self.MOST

    @cached_property
    def _counted(self) -> int:
        # In the page's own order: it is the order that finds the first rows quickly.
        rows: QuerySet[Any] = self.object_list  # type: ignore[assignment]
        return rows.values("pk")[: self.MOST + 1].count()


class Operated(admin.ModelAdmin):  # type: ignore[type-arg]
    """Rows that are written by services alone; what a service refuses becomes a message on the page."""

    paginator = BoundedPaginator
    show_full_result_count = False
    list_per_page = 50
    list_max_show_all = 0
    actions_selection_counter = False
    # A count beside every choice of a filter would be a read of the table each.
    show_facets = admin.ShowFacets.NEVER

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            return super().changeform_view(request, *args, **kwargs)
        except DomainError as refusal:
            messages.error(request, refusal.message)
            return HttpResponseRedirect(request.get_full_path())

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        # One way to save: what follows it is the page's own business.
        context.update(show_save_and_add_another=False, show_save_and_continue=False)
        return super().render_change_form(request, context, *args, **kwargs)


class MachineWritten(Operated):
    """Rows that only show what happened."""

    change_form_template = "admin/machine_written.html"

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


def at_database_time(rows: QuerySet[Any]) -> QuerySet[Any]:
    """The rows with the database's time as ``now``, the same for all of a page."""
    timed: QuerySet[Any] = rows.annotate(now=Value(clock.now(), output_field=DateTimeField()))
    return timed


def link(address: str, text: object) -> SafeString:
    return format_html('<a href="{}">{}</a>', address, text)


def pretty(document: Any) -> SafeString | str:
    if document in (None, {}):
        return NOTHING
    return format_html('<pre class="json">{}</pre>', json.dumps(document, indent=2, ensure_ascii=False))


def span(length: timedelta) -> str:
    """The two largest units of a length of time: 3 d 4 h, 2 min 5 s."""
    seconds = int(length.total_seconds())
    units: Sequence[tuple[str, int]] = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    for (name, size), (smaller, part) in zip(units, units[1:], strict=False):
        if seconds >= size:
            rest = seconds % size // part
            return f"{seconds // size} {name} {rest} {smaller}" if rest else f"{seconds // size} {name}"
    return f"{seconds} s"


def ago(at: datetime | None, now: datetime) -> str:
    return NOTHING if at is None else f"{span(now - at)} ago"


class Schedule(PeriodicTaskAdmin):  # type: ignore[misc]
    """The interval of a scan, and whether it runs.

    Without the package's "run now": the web server does not speak to the broker (`manage.py reap` runs by hand).
    """

    # The package's own has a script inline, which the policy refuses.
    change_form_template = "admin/change_form.html"
    actions = ("enable_tasks", "disable_tasks")
    list_display = ("name", "enabled", "scheduler", "last_run_at")
    list_filter = ("enabled",)
    show_facets = admin.ShowFacets.NEVER
    date_hierarchy = None
    fieldsets = (
        (None, {"fields": ("name", "regtask", "task", "enabled", "description")}),
        ("Schedule", {"fields": ("interval", "crontab", "crontab_translation", "last_run_at")}),
        ("Message", {"fields": ("expire_seconds", "queue")}),
    )


admin.site.unregister((PeriodicTask, SolarSchedule, ClockedSchedule))
admin.site.register(PeriodicTask, Schedule)
