"""What a session is told when its request is granted or has failed."""

import json
from typing import Any

from leasehub.client.slots import grant_record
from leasehub.db import clock
from pools.answers import grants_of
from pools.models import CommandRun, Request, public_request_id
from pools.poolfile import Declaration


def payload_line(run: CommandRun) -> str:
    """The nudge as it stands on the command's stdin: one line of JSON, made when the command starts."""
    request = run.request
    if request is None:
        return "{}\n"
    return json.dumps(payload(request), ensure_ascii=False) + "\n"


def payload(request: Request) -> dict[str, Any]:
    body: dict[str, Any] = {
        "event": Declaration(request.pool.declaration).nudge_event,
        "session": request.session,
        "request_id": public_request_id(request.request_id),
    }
    if request.state == Request.State.READY:
        # Behind the record what else the API says of a grant.
        grants = [{**grant_record(grant), **grant} for grant in grants_of(request)]
        return {**body, "grant": grants[0] if grants else None, "state": request.state, "grants": grants}
    return {
        **body,
        "state": request.state,
        "slot_id": request.failed_slot,
        "reason": request.reason,
        "error": request.error,
        "at": clock.iso(request.ended_at) if request.ended_at else None,
    }
