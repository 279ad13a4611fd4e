"""A handoff as a task of A2A, through the eyes of who gave it."""

from datetime import datetime
from typing import Any

from django.db.models import Q, QuerySet

from handoffs import queries
from handoffs.api import CONTENT, handoff_views
from handoffs.models import LAST_UPDATE, Handoff
from leasehub.db import clock
from leasehub.errors import NotFound
from leasehub.identity.authentication import Caller

Status = Handoff.Status
STATES = {
    Status.PENDING: "TASK_STATE_SUBMITTED",
    Status.ACCEPTED: "TASK_STATE_WORKING",
    Status.COMPLETED: "TASK_STATE_COMPLETED",
    Status.REJECTED: "TASK_STATE_REJECTED",
    Status.WITHDRAWN: "TASK_STATE_CANCELED",
    Status.EXPIRED: "TASK_STATE_FAILED",
}


def sent(*, caller: Caller, at: datetime, state: str | None = None) -> QuerySet[Any]:
    """What the caller gave: its tasks, in one state. ``updated`` is when the status was set.

    No handoff is ever in a state that waits for input or authentication.
    """
    statuses = {name: str(status) for status, name in STATES.items()}
    found = queries.sent(principal=caller.principal, at=at, status=None if state is None else statuses.get(state, ""))
    return found.annotate(updated=LAST_UPDATE)


def one(*, caller: Caller, task_id: str, at: datetime) -> Handoff:
    """Raises NotFound, for the addressee too: to it the work is a handoff in its inbox."""
    named = sent(caller=caller, at=at).filter(public_id=queries.parse_handoff_id(task_id))
    found: Handoff | None = queries.whole(named).first()
    if found is None:
        raise NotFound
    return found


def view(
    caller: Caller, handoffs: list[Handoff], *, history: bool = True, artifacts: bool = True
) -> list[dict[str, Any]]:
    return [
        _task(handoff, shown, history=history, artifacts=artifacts)
        for handoff, shown in zip(handoffs, handoff_views(caller.principal, handoffs), strict=True)
    ]


def _task(handoff: Any, shown: dict[str, Any], *, history: bool, artifacts: bool) -> dict[str, Any]:
    task = {
        "id": shown["handoff_id"],
        "contextId": context_of(handoff),
        "status": _status(handoff, shown),
        "metadata": {
            name: shown[name]
            for name in ("from_principal", "to_principal", "subject_id", "accept_by", "parent_id", "leases")
        },
    }
    if history:
        task["history"] = [_message(handoff, "offer", "ROLE_USER", _parts_of(shown))]
    if artifacts:
        task["artifacts"] = _artifacts(shown)
    return task


def context_of(handoff: Handoff) -> str:
    """One that was sent at another door without a context is one by itself."""
    return handoff.context_id or handoff.handoff_id


def in_context(context_id: str) -> Q:
    """The tasks of which ``context_of`` says this."""
    try:
        alone = Q(context_id="", public_id=queries.parse_handoff_id(context_id))
    except NotFound:
        alone = Q(pk=None)
    return Q(context_id=context_id) | alone


def _status(handoff: Any, shown: dict[str, Any]) -> dict[str, Any]:
    # Past accept_by it is expired, whether the scan has been there or not.
    expired = shown["status"] == Status.EXPIRED and handoff.resolved_at is None
    timestamp = shown["accept_by"] if expired else clock.iso(handoff.updated)
    status: dict[str, Any] = {"state": STATES[shown["status"]], "timestamp": timestamp}
    if shown["reason"] and shown["status"] != Status.WITHDRAWN:
        status["message"] = _message(handoff, shown["status"], "ROLE_AGENT", [{"text": shown["reason"]}])
    return status


def _message(handoff: Handoff, name: str, role: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "messageId": f"{handoff.handoff_id}-{name}",
        "contextId": context_of(handoff),
        "taskId": handoff.handoff_id,
        "role": role,
        "parts": parts,
    }


def _parts_of(shown: dict[str, Any]) -> list[dict[str, Any]]:
    text = [{"text": shown["message"]}] if shown["message"] else []
    members = {name: shown[name] for name in ("next_action", *CONTENT) if shown[name]}
    return [*text, {"data": members, "mediaType": "application/json"}] if members or not text else text


def _artifacts(shown: dict[str, Any]) -> list[dict[str, Any]]:
    result = shown["result"]
    if result is None:
        return []
    part = {"text": result} if isinstance(result, str) else {"data": result, "mediaType": "application/json"}
    return [{"artifactId": "result", "name": "result", "parts": [part]}]
