"""How a resource stands for a caller, what became of the caller's last lease on it, and what happened to it lately."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from leasehub.db import clock
from leasehub.errors import NotFound
from leasehub.events.models import Event
from leasehub.events.queries import View
from leasehub.identity.authentication import Caller
from leases import queries as leases
from leases.api import lease_view
from leases.models import Resource, public_lease_id
from leases.queries import Ending
from leases.queues import queries as tasks
from leases.queues.models import TASK, Task
from pools import queries as pools
from pools.answers import condition
from pools.models import RESOURCE_TYPE as SLOT
from pools.models import Slot

HISTORY = 10
#: How many of the newest events of a resource are looked at: of some there are millions, few of them the caller's.
LOOKED_AT = 10_000
#: The events that give somebody a resource.
STARTS = ("lease.acquired", "lease.taken_over", "lease.transferred", "task.claimed", "pool.granted")

ENDINGS = {
    "expired": "it ran out without a heartbeat",
    "reaped": "it ran out without a heartbeat and was reaped",
    "taken_over": "it ran out without a heartbeat and was taken over",
    "reacquired": "the same holder acquired the resource anew",
    "released": "it was released",
    "completed": "its task was completed",
    "failed": "what it was for has failed",
    "force_released": "an operator ended it",
    "transferred": "it was handed on",
    "max_lifetime": "its max_lifetime was over",
}


#: What nobody acquires, and how it is had instead.
GIVEN_BY = {
    TASK: "Tasks are given by their queue alone: claim one from it (task_claim, POST /v1/leases/hot-claim).",
    SLOT: "Slots are given by their pool alone: ask it for one (pool_acquire, POST /v1/pools/{pool}/requests).",
}


@dataclass(slots=True)
class Explanation:
    """A word for programs, sentences for readers, and the facts that they are made of."""

    reason: str
    facts: dict[str, Any]
    sentences: list[str] = field(default_factory=list)
    #: What to do now.
    advice: str = ""

    def body(self) -> dict[str, Any]:
        return {
            "reason": self.reason,
            "explanation": " ".join([*self.sentences, self.advice]).strip(),
            "sentences": self.sentences,
            "advice": self.advice,
            **self.facts,
        }


def explain(*, caller: Caller, resource_type: str, resource_id: str) -> Explanation:
    """Of a resource that nobody knows it says that it is free; of what happened long ago it says nothing."""
    found = leases.resource(caller=caller, resource_type=resource_type, resource_id=resource_id)
    row = found or Resource(resource_type=resource_type, resource_id=resource_id)
    at = clock.now()
    view = lease_view(caller, row, at)
    answer = Explanation(_reason(view), {**{name: view[name] for name in SHOWN}, "last_lease": None, "history": []})
    _say_how_it_stands(answer, caller, view)
    if resource_type == TASK:
        _say_of_task(answer, caller, resource_id, at)
    elif resource_type == SLOT and caller.observes:
        _say_of_slot(answer, caller, resource_id)
    lately = _lately(caller, resource_type, resource_id)
    start = lately.filter(principal=caller.principal, type__in=STARTS).order_by("-pk").first()
    if start is not None and start.lease_id is not None and start.lease_id != row.lease_id:
        _say_of_last_lease(answer, caller, start)
    history = lately.select_related("actor", "principal").order_by("-pk")[:HISTORY]
    answer.facts["history"] = [_happened(event) for event in history]
    return answer


SHOWN = (
    "resource_type", "resource_id", "state", "mine", "expires_at", "expires_in_ms", "lease_id", "principal", "holder",
    "purpose", "acquired_at", "heartbeat_at", "lifetime_ends_at",
)  # fmt: skip


def _reason(view: dict[str, Any]) -> str:
    if view["state"] == "held":
        return "held_by_you" if view["mine"] else "held_by_another"
    return "free" if view["state"] == "free" else "ran_out"


def _say_how_it_stands(answer: Explanation, caller: Caller, view: dict[str, Any]) -> None:
    name = f"{view['resource_type']}/{view['resource_id']}"
    if view["state"] == "free":
        answer.sentences.append(f"{name} is free: nobody holds it.")
        answer.advice = GIVEN_BY.get(view["resource_type"], "It can be acquired.")
        return
    if view["state"] == "unknown":
        answer.sentences.append(f"The lease on {name} ran out at {view['expires_at']}: it blocks nobody.")
        answer.advice = GIVEN_BY.get(view["resource_type"], "It can be acquired, which takes it over.")
        return
    until = f"until {view['expires_at']} ({span(view['expires_in_ms'])} from now) unless its holder renews"
    if view["mine"]:
        answer.sentences.append(f"{name} is held by yourself, under the holder {view['holder']}, {until}.")
        answer.advice = "Go on with the lease and the token that you have; another process of yours may have it."
        return
    if view["holder"] is None:
        answer.sentences.append(f"{name} is taken {until}.")
    else:
        purpose = f", for: {view['purpose']}" if view["purpose"] else ""
        answer.sentences.append(f"{name} is held by {view['holder']} ({view['principal']}), {until}{purpose}.")
        answer.sentences.append(
            f"Held since {view['acquired_at']}, its last sign of life was at {view['heartbeat_at']}."
        )
    if view["lifetime_ends_at"]:
        answer.sentences.append(f"No heartbeat prolongs it beyond {view['lifetime_ends_at']}.")
    wait = "Wait until then and ask again, or do something else meanwhile."
    answer.advice = GIVEN_BY.get(view["resource_type"], wait)


def _say_of_task(answer: Explanation, caller: Caller, task_id: str, at: datetime) -> None:
    try:
        task: Task = tasks.task(caller=caller, task_id=tasks.parse_task_id(task_id))
    except NotFound:
        return
    tried = f"after {task.attempts} of {task.max_attempts} attempts"
    later = task.state == "ready" and task.ready_at is not None and task.ready_at > at
    when = f"claimable from {clock.iso(task.ready_at)}" if later and task.ready_at else task.state
    answer.sentences.append(f"The task is {when}, {tried}, in the queue {task.queue.name}.")
    answer.facts["task_state"] = task.state
    if task.state == "dead":
        answer.advice = "Nobody is given it any more, until an operator has it tried again."
    elif task.state == "done":
        answer.advice = "There is nothing left to do."


def _say_of_slot(answer: Explanation, caller: Caller, resource_id: str) -> None:
    pool, _, slot_id = resource_id.partition("/")
    slot = (
        Slot.objects.filter(pool__in=pools.pools(organization=caller.organization), pool__name=pool, slot_id=slot_id)
        .select_related("pool")
        .first()
    )
    if slot is None:
        return
    answer.facts["slot_condition"] = condition(slot)
    words = {
        "removed": "The pool file names the slot no more: it goes when its lease ends.",
        "broken": f"The slot is broken: {slot.error or 'a command failed too often'}.",
        "draining": "The slot is drained: nobody is given it any more.",
    }
    if condition(slot) in words:
        answer.sentences.append(words[condition(slot)])
    if slot.is_busy:
        answer.sentences.append("A command runs on the slot, or is about to: nobody is given it meanwhile.")


def _lately(caller: Caller, resource_type: str, resource_id: str) -> QuerySet[Event]:
    """What the caller may see of the newest events of the resource."""
    events = View.of(caller, resources=((resource_type, resource_id),)).events()
    newest = Event.objects.filter(
        organization_id=caller.organization, resource_type=resource_type, resource_id=resource_id
    ).order_by("-pk")
    older = newest.values_list("pk", flat=True)[LOOKED_AT : LOOKED_AT + 1].first()
    return events if older is None else events.filter(pk__gt=older)


def _say_of_last_lease(answer: Explanation, caller: Caller, start: Event) -> None:
    assert start.lease_id is not None
    ending = leases.ending(organization=caller.organization, lease_id=start.lease_id)
    if ending is None:
        return
    by = _who_ended_it(caller, ending)
    answer.facts["last_lease"] = {
        "lease_id": public_lease_id(start.lease_id),
        "fencing_token": start.fencing_token,
        "holder": start.holder,
        "ended_by": ending.ended_by,
        "ended_at": clock.iso(ending.ended_at),
        "by": by,
        "reason_given": ending.reason,
        "handoff_id": ending.handoff_id,
    }
    words = {"taken_over": f" by {by}", "force_released": f" by {by}", "transferred": f" to {by}"}
    who = words.get(ending.ended_by, "") if by else ""
    given = f": {ending.reason}" if ending.reason else ""
    answer.sentences.append(
        f"Your last lease on it (holder {start.holder}, token {start.fencing_token}) ended at"
        f" {clock.iso(ending.ended_at)}: {ENDINGS.get(ending.ended_by, ending.ended_by)}{who}{given}."
    )


def _who_ended_it(caller: Caller, ending: Ending) -> str | None:
    """Of a takeover the one who took over, to those who may see it."""
    return ending.by if ending.ended_by != "taken_over" or caller.observes else None


def _happened(event: Event) -> dict[str, Any]:
    return {
        "type": event.type,
        "at": clock.iso(event.at),
        "by": None if event.actor is None else event.actor.handle,
        "principal": None if event.principal is None else event.principal.handle,
        "holder": event.holder or None,
        "lease_id": None if event.lease_id is None else public_lease_id(event.lease_id),
        "reason": event.data.get("reason"),
    }


def span(milliseconds: int) -> str:
    seconds = round(milliseconds / 1000)
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"
