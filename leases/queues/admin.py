"""Queues with what waits in them, and tasks as they are. What an operator may do to them is done by the services."""

import uuid
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.safestring import SafeString

from leasehub.admin import NOTHING, MachineWritten, Operated, ago, at_database_time, link, pretty, span
from leasehub.errors import DomainError
from leasehub.events.admin import timeline
from leasehub.identity.admin import OrganizationFilter
from leases.admin import acting
from leases.models import Resource
from leases.queues import queries, services
from leases.queues.models import TASK, Queue, Task

MOST_AT_ONCE = 1000
#: No more claims than this are looked up for the filter by state.
MOST_LEASED = 2000


class QueueList(ChangeList):
    """The queues of a page with their figures, which are read for all of them together."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list = with_figures(list(self.result_list))


def with_figures(queues: list[Any]) -> list[Any]:
    for queue, figures in zip(queues, queries.figures(queues=queues), strict=True):
        queue.figures = figures
    return queues


@admin.register(Queue)
class QueueAdmin(Operated):
    """Its settings may be changed; a queue is made by the first task that is put into it."""

    list_display = ("name", "organization", "ready", "delayed", "leased", "dead", "oldest", "per_minute", "tasks")
    list_filter = (OrganizationFilter,)
    list_select_related = ("organization",)
    search_fields = ("name",)
    ordering = ("name", "pk")
    sortable_by = ("name",)
    actions = ("purge_dead",)
    settings = ("max_attempts", "backoff_base_seconds", "backoff_max_seconds", "keep_days")
    figures = ("ready", "delayed", "leased", "dead", "oldest", "per_minute")
    readonly_fields = ("name", "organization", "created_at", "tasks", *figures)
    fieldsets = (
        (None, {"fields": ("name", "organization", "created_at", "tasks")}),
        ("Now", {"fields": figures}),
        ("Settings", {"fields": settings}),
    )

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return QueueList

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        found = super().get_object(request, object_id, from_field)
        return None if found is None else with_figures([found])[0]

    def has_purge_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("leases.purge_task")

    @admin.action(description="Purge the dead tasks", permissions=["purge"])
    def purge_dead(self, request: HttpRequest, queryset: QuerySet[Queue]) -> None:
        purged = 0
        for queue in queryset[:MOST_AT_ONCE]:
            dead = Task.objects.filter(queue=queue, state="dead").order_by("finished_at")
            named = list(dead.values_list("pk", flat=True)[:MOST_AT_ONCE])
            purged += services.purge(organization=queue.organization_id, task_ids=named)
        messages.success(request, f"{purged} purged.")

    @admin.display(description="ready")
    def ready(self, queue: Any) -> int:
        return int(queue.figures.ready)

    @admin.display(description="delayed")
    def delayed(self, queue: Any) -> int:
        return int(queue.figures.delayed)

    @admin.display(description="leased")
    def leased(self, queue: Any) -> int:
        return int(queue.figures.leased)

    @admin.display(description="dead")
    def dead(self, queue: Any) -> int:
        return int(queue.figures.dead)

    @admin.display(description="oldest")
    def oldest(self, queue: Any) -> str:
        return ago(queue.figures.oldest, queue.figures.at)

    @admin.display(description="claims a minute")
    def per_minute(self, queue: Any) -> int:
        return int(queue.figures.claims_per_minute)

    @admin.display(description="tasks")
    def tasks(self, queue: Queue) -> SafeString:
        return link(f"{reverse('admin:leases_task_changelist')}?queue={queue.pk}", "its tasks")


class TaskState(admin.SimpleListFilter):
    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(state, state) for state in ("ready", "delayed", "leased", "done", "dead")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Task]) -> QuerySet[Task]:
        match self.value():
            case "ready":
                return queryset.filter(state="ready", ready_at=None)
            case "delayed":
                return of_every_queue(queryset).filter(state="ready", ready_at__isnull=False)
            case "leased":
                # Those that are held are in an index of the leases, and in none of the tasks.
                return queryset.filter(state="leased", pk__in=leased())
            case "done" | "dead":
                return of_every_queue(queryset).filter(state=self.value())
        return queryset


def of_every_queue(tasks: QuerySet[Task]) -> QuerySet[Task]:
    """The same rows: the indexes of what is rare begin with the queue."""
    return tasks.filter(queue__in=list(Queue.objects.values_list("pk", flat=True)))


def leased() -> list[uuid.UUID]:
    held = Resource.objects.filter(resource_type=TASK, lease_id__isnull=False).order_by("check_at")
    return [queries.parse_task_id(name) for name in held.values_list("resource_id", flat=True)[:MOST_LEASED]]


class OfQueue(OrganizationFilter):
    path = "queue__organization"


class QueueFilter(admin.SimpleListFilter):
    """One queue, by a link from its own page: there may be thousands."""

    title = "queue"
    parameter_name = "queue"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        chosen = request.GET.get("queue", "")
        found = Queue.objects.filter(pk=int(chosen)) if number(chosen) else Queue.objects.none()
        return [(str(queue.pk), queue.name) for queue in found]

    def has_output(self) -> bool:
        return True

    def queryset(self, request: HttpRequest, queryset: QuerySet[Task]) -> QuerySet[Task]:
        value = self.value()
        if value is None:
            return queryset
        return queryset.filter(queue=int(value)) if number(value) else queryset.none()


def number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19


@admin.register(Task)
class TaskAdmin(MachineWritten):
    list_display = ("task_id", "queue", "state_now", "priority", "tries", "put_ago", "organization")
    list_filter = (TaskState, QueueFilter, OfQueue)
    list_select_related = ("queue__organization",)
    search_fields = ("dedupe_key",)
    search_help_text = "t_… or a live dedupe key."
    # The ids grow with time: the newest first, in the order of an index.
    ordering = ("-pk",)
    sortable_by = ()
    actions = ("retry", "purge")
    fields = (
        "task_id", "queue_link", "organization", "put_by", "state_now", "priority", "tries", "created_at",
        "finished_at", "dedupe_key", "holder", "shown_payload", "shown_result", "error", "events",
    )  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[Task]:
        return at_database_time(super().get_queryset(request))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Task], search_term: str
    ) -> tuple[QuerySet[Task], bool]:
        if not search_term:
            return queryset, False
        task_id = queries.parsed_task_id(search_term.strip())
        if task_id is not None:
            return queryset.filter(pk=task_id), False
        live = Q(dedupe_key=search_term, state__in=["ready", "leased"])
        return of_every_queue(queryset).filter(live), False

    def has_retry_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("leases.retry_task")

    def has_purge_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("leases.purge_task")

    @admin.action(description="Retry those that are dead", permissions=["retry"])
    def retry(self, request: HttpRequest, queryset: QuerySet[Task]) -> None:
        retried, refused = 0, 0
        for task in queryset[:MOST_AT_ONCE]:
            actor, _ = acting(request, task.queue.organization_id, "")
            try:
                services.retry(actor=actor, task_id=task.pk)
                retried += 1
            except DomainError:
                refused += 1
        messages.success(request, f"{retried} retried.")
        if refused:
            messages.warning(request, f"{refused} not: they are not dead, or a live task has their key.")

    @admin.action(description="Purge those that are dead", permissions=["purge"])
    def purge(self, request: HttpRequest, queryset: QuerySet[Task]) -> None:
        by_organization: dict[int, list[uuid.UUID]] = {}
        for task in queryset[:MOST_AT_ONCE]:
            by_organization.setdefault(task.queue.organization_id, []).append(task.pk)
        purged = sum(
            services.purge(organization=organization, task_ids=named) for organization, named in by_organization.items()
        )
        messages.success(request, f"{purged} purged.")

    @admin.display(description="task")
    def task_id(self, task: Task) -> str:
        return task.task_id

    @admin.display(description="queue")
    def queue_link(self, task: Task) -> SafeString:
        return link(reverse("admin:leases_queue_change", args=[task.queue_id]), task.queue)

    @admin.display(description="organization")
    def organization(self, task: Task) -> str:
        return str(task.queue.organization)

    @admin.display(description="put by")
    def put_by(self, task: Task) -> str:
        return task.principal.handle

    @admin.display(description="state")
    def state_now(self, task: Any) -> str:
        if task.ready_at is None or task.ready_at <= task.now:
            return str(task.state)
        return f"ready in {span(task.ready_at - task.now)}"

    @admin.display(description="attempts")
    def tries(self, task: Task) -> str:
        return f"{task.attempts} of {task.max_attempts}"

    @admin.display(description="put")
    def put_ago(self, task: Any) -> str:
        return ago(task.created_at, task.now)

    @admin.display(description="held by")
    def holder(self, task: Task) -> SafeString | str:
        held = queries.claim(organization=task.queue.organization_id, task_id=task.pk)
        if held is None or held.principal is None:
            return NOTHING
        return link(reverse("admin:leases_lease_change", args=[held.pk]), f"{held.holder} ({held.principal.handle})")

    @admin.display(description="payload")
    def shown_payload(self, task: Task) -> SafeString | str:
        return pretty(content(task, "payload"))

    @admin.display(description="result")
    def shown_result(self, task: Task) -> SafeString | str:
        return pretty(content(task, "result"))

    @admin.display(description="last error")
    def error(self, task: Task) -> str:
        return task.last_error or NOTHING

    @admin.display(description="events")
    def events(self, task: Task) -> SafeString:
        return link(timeline(f"task/{task.task_id}"), "the task's timeline")


def content(task: Task, name: str) -> Any:
    return getattr(getattr(task, "content", None), name, None)
