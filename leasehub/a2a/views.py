"""POST /a2a, and the card that leads there."""

import json
from typing import Any

from django.db import InterfaceError, InternalError, OperationalError
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt

from leasehub import __version__
from leasehub.a2a import methods, rpc
from leasehub.api import published
from leasehub.db import failures
from leasehub.errors import DomainError, MethodNotAllowed
from leasehub.identity.authentication import authenticate

PATH = "/a2a"
PROTOCOL_VERSION = "1.0"


@csrf_exempt
def endpoint(request: HttpRequest) -> HttpResponse:
    """One JSON-RPC call. Who calls is told by the key alone."""
    call = None
    # Under which name /metrics counts it (leasehub.wsgi).
    request.operation = "a2a"  # type: ignore[attr-defined]
    try:
        if request.method != "POST":
            raise MethodNotAllowed("This address takes POST.", allow="POST")
        caller = authenticate(request.META.get("HTTP_AUTHORIZATION"))
        call = rpc.call_of(request)
        _require_version(request)
        return rpc.result(call, methods.carry_out(caller, call))
    except (rpc.Refusal, DomainError) as error:
        return rpc.failure(call, error)
    except (OperationalError, InterfaceError, InternalError) as error:
        if isinstance(error, InternalError) and not failures.is_read_only(error):
            raise
        return rpc.failure(call, failures.unavailable(error))


def _require_version(request: HttpRequest) -> None:
    """An old client says nothing, which the protocol takes for 0.3."""
    asked = request.META.get("HTTP_A2A_VERSION", "") or request.GET.get("A2A-Version", "")
    if asked.strip() != PROTOCOL_VERSION:
        wanted = f"This server speaks A2A {PROTOCOL_VERSION}: send the header A2A-Version."
        raise rpc.Refusal(rpc.VERSION_NOT_SUPPORTED, wanted, supported=PROTOCOL_VERSION)


@published.published
def card(request: HttpRequest) -> HttpResponse:
    """/.well-known/agent-card.json"""
    content = json.dumps(agent_card(published.address(request)), indent=2, ensure_ascii=False)
    return published.answer(request, content + "\n", media_type="application/json")


def agent_card(address: str) -> dict[str, Any]:
    """What this server says of itself to agents that speak A2A: no more than it does."""
    return {
        "name": "LeaseHub",
        "description": (
            "Coordinates fleets of coding agents, CI jobs and people: who may touch this now, and who takes it next. "
            "A message to one of its principals becomes a handoff in that principal's inbox; the work itself is done "
            "by the addressee. Leases, pools and queues are offered over HTTP: see the documentation."
        ),
        "supportedInterfaces": [
            {"url": f"{address}{PATH}", "protocolBinding": "JSONRPC", "protocolVersion": PROTOCOL_VERSION}
        ],
        "version": __version__,
        "documentationUrl": f"{address}/llms.txt",
        "capabilities": {"streaming": False, "pushNotifications": False, "extendedAgentCard": False},
        "securitySchemes": {"apiKey": {"httpAuthSecurityScheme": {"scheme": "Bearer", "bearerFormat": "lh_…"}}},
        "securityRequirements": [{"schemes": {"apiKey": {"list": []}}}],
        "defaultInputModes": ["text/plain", "application/json"],
        "defaultOutputModes": ["text/plain", "application/json"],
        "skills": [
            {
                "id": "handoff",
                "name": "Hand work over to a principal",
                "description": (
                    "Name the addressee's handle as to_principal in the message's metadata. Text parts are the "
                    "message, parts with a url are artifacts (never fetched), and one data part may have the other "
                    "members of a handoff: subject_id, next_action, done, decisions, failed_approaches, blockers, "
                    "state, lease_ids, checkpoint_id, accept_by, parent_id. The answer comes at once with a task that "
                    "is submitted; it is working when accepted, completed with the result as an artifact, rejected "
                    "with a reason, canceled when taken back, failed when nobody accepted it in time. "
                    "The messageId makes repeating a message safe."
                ),
                "tags": ["handoff", "coordination", "leases"],
                "examples": ["Six of eight hosts run release 41: drain web-07 and web-08, then go on."],
            }
        ],
    }
