"""From the journal to the state: what the events alone say about who holds what and where everything stands.

``apply`` takes one event after another, in the order of the feed, and keeps a small state for each subject. States are
JSON, because retention stores them: what the events that were moved out came to (leasehub.management.retention).

=========  ==============================  ==========================================================
kind       subject                         state
=========  ==============================  ==========================================================
resource   (resource_type, resource_id)    lease, token, principal, holder, since when; a task's queue, state
                                           and attempts; a slot's request and flags
request    (pool, request id)              state, count, leases
handoff    ("", handoff id)                status, giver, addressee
=========  ==============================  ==========================================================
"""

from collections.abc import Callable, Iterator, MutableMapping
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from leasehub.db import clock
from leasehub.events.models import Event
from pools.models import resource_id
from pools.templates import text_of

TASK, SLOT, POOL = "task", "slot", "pool"
RESOURCE, REQUEST, HANDOFF = "resource", "request", "handoff"

#: Kind, and the two parts of the subject's name.
Key = tuple[str, str, str]
State = dict[str, Any]
States = MutableMapping[Key, State]

STARTS = ("lease.acquired", "lease.taken_over", "lease.transferred", "task.claimed", "pool.granted")
ENDS = (
    "lease.released", "lease.reaped", "lease.force_released", "task.completed", "task.failed", "task.returned",
    "task.dead", "pool.released", "pool.grant_failed",
)  # fmt: skip
UNCLEAN = ("queued", "provisioning")
OPEN = (*UNCLEAN, "ready")
RESOLVED = {
    "handoff.accepted": "accepted",
    "handoff.rejected": "rejected",
    "handoff.withdrawn": "withdrawn",
    "handoff.expired": "expired",
}


class Past(NamedTuple):
    """An event as far as it is replayed."""

    id: int
    position: int | None
    type: str
    at: datetime
    resource_type: str
    resource_id: str
    lease_id: UUID | None
    previous_lease_id: UUID | None
    fencing_token: int | None
    actor_id: int | None
    key_id: int | None
    principal_id: int | None
    addressee_id: int | None
    holder: str
    data: dict[str, Any]

    @classmethod
    def of(cls, event: Event) -> "Past":
        return cls(*(getattr(event, name) for name in cls._fields))

    @property
    def subject(self) -> tuple[str, str]:
        return (self.resource_type, self.resource_id)

    @property
    def lease(self) -> str | None:
        return None if self.lease_id is None else self.lease_id.hex


Findings = Iterator[tuple[str, str]]


def apply(states: States, event: Past) -> Findings:
    """Takes an event over into the states; yields (code, what is wrong) for a transition that cannot be."""
    if concerns_leases(event):
        yield from apply_to_resource(states, event)
    if event.resource_type in (POOL, SLOT):
        yield from apply_to_pool(states, event)
    if event.type.startswith("handoff."):
        yield from apply_to_handoff(states, event)


def concerns_leases(event: Past) -> bool:
    return event.type in STARTS or event.type in ENDS or event.type == "task.queued"


# --- resources, and the tasks and slots that they are ------------------------------------------------------------


def apply_to_resource(states: States, event: Past) -> Findings:
    key = (RESOURCE, *event.subject)
    state = states.get(key) or {}
    if event.resource_type == TASK:
        yield from _apply_to_task(state, event)
    if event.type in STARTS:
        yield from _start(state, event)
    elif event.type in ENDS:
        yield from _end(state, event)
    states[key] = state


def _start(state: State, event: Past) -> Findings:
    lease = state.get("lease")
    previous = None if event.previous_lease_id is None else event.previous_lease_id.hex
    if lease != previous:
        yield "two_leases", f"{event.type} of {event.lease} over {lease}, though it says over {previous}"
    same = (state.get("principal"), state.get("holder")) == (event.principal_id, event.holder)
    if event.type == "lease.acquired" and lease is not None and not same:
        yield "two_leases", f"{event.lease} was acquired while {lease} was another holder's"
    if event.type == "lease.taken_over":
        expiry = (event.data.get("previous") or {}).get("expires_at")
        if lease is None or expiry is None or expiry > clock.iso(event.at):
            yield "live_lease_taken", f"{event.lease} took over {lease}, which ran until {expiry}"
    token = event.fencing_token or 0
    if token <= state.get("token", 0):
        yield "token_did_not_grow", f"{event.type} with token {token} after token {state.get('token')}"
    state.update(lease=event.lease, token=token, principal=event.principal_id, holder=event.holder)
    state["since"] = clock.iso(event.at)


def _end(state: State, event: Past) -> Findings:
    held = (state.get("lease"), state.get("token"), state.get("principal"), state.get("holder"))
    ended = (event.lease, event.fencing_token, event.principal_id, event.holder)
    if held != ended:
        yield "end_of_another_lease", f"{event.type} of {ended}, though {held} was on it"
    expired_at = event.data.get("expired_at")
    if event.type == "lease.reaped" and expired_at is not None and expired_at > clock.iso(event.at):
        yield "live_lease_reaped", f"{event.lease} was reaped before its expiry at {expired_at}"
    state.update(lease=None, principal=None, holder=None, since=None)


def _apply_to_task(state: State, event: Past) -> Findings:
    data = event.data
    task = state.get("task")
    if event.type == "task.queued":
        wanted = "dead" if data.get("retried") else None
        if (task["state"] if task else None) != wanted:
            yield "task_queued_twice", f"put again after {task}"
        state["task"] = {
            "state": "ready", "attempts": 0, "most": data.get("max_attempts"), "queue": data.get("queue")
        }  # fmt: skip
        return
    if task is None:
        yield "task_without_beginning", f"{event.type} of a task that nobody put"
        task = state["task"] = {"state": "ready", "attempts": data.get("attempt", 1) - 1, "most": None}
    if event.type == "task.claimed":
        if task["state"] != "ready" or data["attempt"] != task["attempts"] + 1:
            yield "task_claimed_wrongly", f"claimed for attempt {data['attempt']} after {task}"
        if task["most"] is not None and data["attempt"] > task["most"]:
            yield "task_loops", f"attempt {data['attempt']} of {task['most']}"
        task.update(state="leased", attempts=data["attempt"])
    elif event.type in ENDS:
        if task["state"] != "leased":
            yield "task_ended_twice", f"{event.type} of a task that was {task['state']}"
        task["state"] = data.get("task_state", "done" if event.type == "task.completed" else "ready")


# --- pools -------------------------------------------------------------------------------------------------------


def apply_to_pool(states: States, event: Past) -> Findings:
    """Requests and the flags of slots; the lease on a slot is any resource's."""
    if event.resource_type == SLOT:
        yield from _apply_to_slot(states, event)
        return
    pool, data = event.resource_id, event.data
    if event.type == "pool.declared":
        for slot in data.get("added", []):
            _slot(states, slot_name(pool, slot))["declared"] = True
        for slot in data.get("removed", []):
            _slot(states, slot_name(pool, slot))["declared"] = False
        return
    if event.type not in ("pool.queued", "pool.ready", "pool.dropped"):
        return
    key = (REQUEST, pool, data["request_id"])
    request = states.get(key)
    if event.type == "pool.queued":
        if request is not None:
            yield "request_queued_twice", f"{key[2]} was {request['state']}"
        states[key] = {"state": "queued", "count": data.get("count", 1), "leases": []}
        return
    if request is None or request["state"] not in OPEN:
        yield "request_ended_twice", f"{event.type} of {key[2]}, which was {request}"
        return
    request["state"] = "ready" if event.type == "pool.ready" else data["state"]
    states[key] = request


def _apply_to_slot(states: States, event: Past) -> Findings:
    slot = _slot(states, event.resource_id)
    match event.type:
        case "pool.slot_drained" | "pool.slot_undrained":
            slot["draining"] = event.type == "pool.slot_drained"
        case "pool.slot_broken" | "pool.slot_repaired":
            slot["broken"] = event.type == "pool.slot_broken"
        case "pool.granted":
            yield from _granted(states, slot, event)
        case "lease.transferred":
            _part(states, slot, event, event.previous_lease_id)
        case type if type in ENDS:
            _part(states, slot, event, event.lease_id)


def _granted(states: States, slot: State, event: Past) -> Findings:
    request_id = event.data.get("request_id")
    if request_id is None:
        # An operator's, to make it clean.
        return
    unusable = [flag for flag in ("draining", "broken") if slot.get(flag)]
    if unusable or not slot.get("declared", True):
        yield "unusable_slot_granted", f"granted though {' and '.join(unusable) or 'removed'}"
    key = (REQUEST, _pool_of(event), request_id)
    request = states.get(key) or {"state": "queued", "count": event.data.get("count", 1), "leases": []}
    if request["state"] not in OPEN:
        yield "ended_request_granted", f"{request_id} was {request['state']}"
    if len(request["leases"]) >= request["count"]:
        yield "too_many_grants", f"{request_id} has {len(request['leases'])} slots of {request['count']} already"
    request["leases"].append(event.lease)
    request["state"] = event.data.get("state", "ready")
    states[key] = request
    slot["request"] = request_id


def _part(states: States, slot: State, event: Past, lease: UUID | None) -> None:
    """A lease of a request has ended, or was handed on: what becomes of the request (pools.endings)."""
    request_id = slot.pop("request", None)
    key = (REQUEST, _pool_of(event), request_id or "")
    request = states.get(key)
    if request is None or lease is None:
        return
    request["leases"] = [kept for kept in request["leases"] if kept != lease.hex]
    if event.type == "pool.grant_failed":
        request["state"] = event.data.get("state", "queued")
    elif request["state"] in UNCLEAN:
        request["state"] = "lease_lost_during_reset"
    elif request["state"] == "ready" and not request["leases"]:
        request["state"] = "lease_lost"
    states[key] = request


def _slot(states: States, resource_id: str) -> State:
    key = (RESOURCE, SLOT, resource_id)
    state = states.get(key) or {}
    flags: State = state.setdefault("slot", {})
    states[key] = state
    return flags


def slot_name(pool: str, id_value: Any) -> str:
    """The resource id of a slot, whose id an event carries as it was declared: text or a number."""
    return resource_id(pool, text_of(id_value))


def _pool_of(event: Past) -> str:
    return event.resource_id.partition("/")[0]


# --- handoffs ----------------------------------------------------------------------------------------------------


def apply_to_handoff(states: States, event: Past) -> Findings:
    key = (HANDOFF, "", event.data["handoff_id"])
    state = states.get(key)
    status = state["status"] if state else None
    parties = {"giver": event.principal_id, "addressee": event.addressee_id}
    if state and any(state.get(party, said) != said for party, said in parties.items()):
        yield "handoff_differs", f"{event.type} between {parties}, which was {state}"
    if event.type == "handoff.created":
        if status is not None:
            yield "handoff_made_twice", f"{key[2]} was {status}"
        states[key] = {"status": "pending", **parties}
    elif event.type in RESOLVED:
        if status != "pending":
            yield "handoff_resolved_twice", f"{event.type} of {key[2]}, which was {status}"
        states[key] = {**parties, **(state or {}), "status": RESOLVED[event.type]}
    elif event.type == "handoff.completed":
        if status != "accepted":
            yield "handoff_completed_wrongly", f"{key[2]} was {status}"
        states[key] = {**parties, **(state or {}), "status": "completed"}


# --- what is over ------------------------------------------------------------------------------------------------


def is_over(key: Key, state: State) -> bool:
    """Whether nothing can come of it any more but from a new beginning: it need not be kept."""
    over: Callable[[State], bool] = {RESOURCE: _resource_is_over, REQUEST: _request_is_over, HANDOFF: _handoff_is_over}[
        key[0]
    ]
    return over(state)


def _resource_is_over(state: State) -> bool:
    task = state.get("task")
    # A slot that was taken out of its pool keeps its flags.
    flagged = any((state.get("slot") or {}).values())
    return not state.get("lease") and not flagged and (task is None or task["state"] == "done")


def _request_is_over(state: State) -> bool:
    return state["state"] not in OPEN and not state["leases"]


def _handoff_is_over(state: State) -> bool:
    return state["status"] not in ("pending", "accepted")
