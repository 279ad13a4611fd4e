"""Refusals as results: what happened, what to do next, and when to try again."""

import math
from typing import Any

from leasehub.api.rendering import error_body
from leasehub.errors import DomainError

#: What to do next. Nothing here says how to get at what another one holds.
HINTS = {
    "VALIDATION_ERROR": "Correct the members named in fields and call again; the input schema says what each may be.",
    "FORBIDDEN": "This key may not do that. Leave holder out or give one that matches the key's fence (agent_whoami), "
    "or ask the operator of the organization for a key that may.",
    "NOT_FOUND": "Nothing of yours has that name: check the id. What has ended cannot be named again; explain says how "
    "a resource stands.",
    "CONFLICT": "Wait until then and call again, or do something else meanwhile.",
    "STALE_TOKEN": "Stop working on the resource: this token is not the current one. Call explain to see what "
    "happened; acquire again before you go on, and then look at what has changed.",
    "LEASE_LOST": "Stop working on the resource: it may be another's by now. Acquire again before you go on, and then "
    "look at what has changed.",
    "SATURATED": "No slot is free. Call again later, or without no_wait to take a place in the queue.",
    "UNSATISFIABLE": "This can never be granted as asked for: change the selector or the count.",
    "QUOTA_EXCEEDED": "There are too many already: finish or give back some first.",
    "PAYLOAD_TOO_LARGE": "Send less: keep the data elsewhere and send a reference.",
    "CURSOR_EXPIRED": "Events after this cursor are not on file any more: call again without a cursor.",
    # Perhaps it was the answer that was lost.
    "UNAVAILABLE": "Call again soon. What must not be done twice may have been done: look first (lease_status, "
    "handoff_inbox, explain).",
    "IN_PROGRESS": "Call again soon.",
    "INTERNAL": "The server failed; an operator finds more in its log. Look at the state before you repeat the call.",
}


def told(error: DomainError) -> dict[str, Any]:
    """One JSON object that an agent can act on."""
    body = error_body(error)
    retry_after_ms = body.pop("retry_after_ms", None)
    if isinstance(retry_after_ms, int):
        body["retry_after_s"] = seconds(retry_after_ms)
    return {**body, "hint": HINTS.get(error.code, "Read the message, correct the call and repeat it.")}


def seconds(milliseconds: int) -> int:
    """Rounded up: whoever waits so long does not come too early."""
    return max(1, math.ceil(milliseconds / 1000))
