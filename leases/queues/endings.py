"""What happens to a task when the lease on it ends, whichever way: it goes on in the same transaction.

The task is this app's own, so ``leases.endings.end`` asks here; the hot verbs on PostgreSQL do it in
leases/sql/task_functions.sql.
"""

import uuid
from datetime import datetime
from typing import Any

from leasehub.db.locks import lock_rows
from leases.models import Resource
from leases.queues import waiting
from leases.queues.models import TASK, Task

# A lease's ending, by the name it has for a task. The reaper's keeps its own: GET /v1/leases/reaped lists it.
EVENTS = {"lease.released": "task.returned"}
ENDED_BY = {"lease.released": "released", "lease.reaped": "reaped", "lease.force_released": "force_released"}


class TaskOwner:
    """Tells ``leases.owners`` what to lock before a task's resource row; nothing is kept of who holds a task."""

    def lock(self, rows: list[Resource]) -> None:
        list(lock_rows(Task.objects.filter(pk__in=[task_of(row) for row in rows])))

    def event_of(self, event: str) -> str:
        return event

    def ended(self, row: Resource, event: str, data: dict[str, Any]) -> None:
        """Done by ``give_up`` before the event is written, because the task decides its type."""

    def moved(self, before: Resource, after: Resource) -> None:
        """A task goes with its lease: its row does not say who has it."""


def task_of(row: Resource) -> uuid.UUID:
    return uuid.UUID(hex=row.resource_id.removeprefix("t_"))


def is_claim(row: Resource) -> bool:
    return row.resource_type == TASK


def give_up(row: Resource, event: str, *, at: datetime, data: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The claim ends without a result: the task is ready again, or dead when its attempts are used up.

    The caller has locked the task and its resource row. Answers the one event of the transition, and its data.
    """
    task = Task.objects.select_related("queue").get(pk=task_of(row))
    state = "dead" if task.attempts >= task.max_attempts else "ready"
    move_on([task], state, at=at)
    told = {**data, **described(task, state), "ended_by": ENDED_BY[event]}
    return "task.dead" if state == "dead" else EVENTS.get(event, event), told


def move_on(tasks: list[Task], state: str, *, at: datetime, ready_at: datetime | None = None) -> None:
    """Leased tasks, locked by the caller, take their next state."""
    Task.objects.filter(pk__in=[task.pk for task in tasks], state="leased").update(
        state=state,
        ready_at=ready_at,
        out_of_turn=True,
        finished_at=at if state in ("done", "dead") else None,
    )
    if state == "ready" and ready_at is None and tasks:
        waiting.ring({task.queue_id for task in tasks})


def described(task: Task, state: str) -> dict[str, Any]:
    """What an event says of a task that took a state."""
    return {"queue": task.queue.name, "attempt": task.attempts, "task_state": state}
