"""The MCP endpoint: django-mcpz speaks the protocol of both eras; identity, arguments and refusals are LeaseHub's.

Stateless: every request stands alone, and who calls comes from its key, never from an argument.
"""

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import Any, TypeVar, get_type_hints
from urllib.parse import urlsplit

import msgspec
from django.conf import settings
from django.db import Error, InterfaceError, InternalError, OperationalError
from django.http import HttpRequest, HttpResponse
from django_mcpz.elicitation import Elicitation
from django_mcpz.jsonrpc import INVALID_REQUEST, PARSE_ERROR, error_response
from django_mcpz.server import MCPServer, Tool

import leasehub
from leasehub.api import parsing, rendering
from leasehub.api.failures import InternalError as Failed
from leasehub.api.views import BEFORE_THE_SERVICE
from leasehub.db import failures, functions
from leasehub.errors import DomainError, MethodNotAllowed, Unauthenticated, ValidationError
from leasehub.identity.authentication import Caller, authenticate, check_key, recognize
from leasehub.mcp import notices, refusals
from leasehub.mcp.schemas import Answer, Arguments, input_schema, output_schema

logger = logging.getLogger(__name__)

INSTRUCTIONS = inspect.cleandoc(
    """
    LeaseHub says who may touch what. Before you work on something that others may touch too, take its lease; stop when
    it is lost. The loop: lease_acquire, work with lease_heartbeat before half of ttl_seconds is over, lease_release.
    Work from a queue: task_claim, task_heartbeat, then task_complete or task_fail. A slot of a pool: pool_acquire,
    pool_wait until it is granted, lease_heartbeat, pool_release. Pass unfinished work on, with its leases, by
    handoff_offer; what waits for you is in handoff_inbox.
    Keep the lease_id and the fencing_token of each grant: they name it in every later call. STALE_TOKEN or LEASE_LOST
    means: stop writing at once, the resource may be another's. Not granted is no error: the answer says until when it
    is taken; wait, or do something else. "pending": true means: call the same wait again. Any result may carry notices
    about what has changed for you; pass its notices_cursor in your next call, so that they are not repeated. explain
    says why you wait, why you were refused, how a lease ended.
    """
)

# A tool call is recognized before it is parsed: what says these words and is none costs nothing but a query later.
TOOL_CALL = b'"tools/call"'
LOOPBACK = ("localhost", "127.0.0.1", "::1")
HOLDER_HEADER = "HTTP_LEASEHUB_HOLDER"


@dataclass(slots=True)
class Call:
    """Who calls a tool."""

    caller: Caller
    #: The holder of the client's process, when it names one in the LeaseHub-Holder header.
    session: str | None
    #: Whether the database was asked, in this request, if the key still works.
    is_checked: bool = False

    def check_key(self) -> None:
        """Raises Unauthenticated."""
        check_key(self.caller)
        self.is_checked = True

    def holder(self, given: str | None) -> str:
        """The holder to act as: the given one, the session's or the handle. Raises ValidationError, OutsideFence."""
        if given is None and self.session is not None and not _can_be_a_holder(self.session):
            raise ValidationError("LeaseHub-Holder is no holder's name.", holder="is not a holder's name")
        return self.caller.fenced(self.session if given is None else given)

    def reader(self, arguments: dict[str, Any]) -> str:
        """The holder that notices are kept for: the one that it acts as, where the key may."""
        for holder in (arguments.get("holder"), self.session):
            if isinstance(holder, str) and _can_be_a_holder(holder) and self.caller.may_hold_as(holder):
                return holder
        return self.caller.handle


@dataclass(frozen=True)
class Act:
    """A tool: the operation of the API that it is, and what carries it out."""

    name: str
    operation: str
    ring: int | None
    arguments: type[Arguments]
    answers: type[Answer]
    carry: Callable[[Call, Any], dict[str, Any]]
    service_checks_key: bool

    def __call__(self, call: Call, arguments: dict[str, Any]) -> dict[str, Any]:
        """Raises DomainError."""
        if not self.service_checks_key:
            call.check_key()
        try:
            given = parsing.validated(self.arguments, arguments)
            if given.notices_cursor is not None:
                notices.acknowledge(call.caller, call.reader(arguments), given.notices_cursor)
            if call.session is not None:
                # Every tool uses it, if only for the notices: a wrong one is told at once, not at the first lease.
                call.holder(getattr(given, "holder", None))
            answer = self.carry(call, given)
        except BEFORE_THE_SERVICE:
            # A key that works no more is told so first.
            call.check_key()
            raise
        # By the service, in its one round trip.
        call.is_checked = True
        return answer

    def is_for(self, request: HttpRequest) -> bool:
        caller: Caller = request.mcp.caller  # type: ignore[attr-defined]
        return self.ring is None or self.ring in caller.rings


class LeaseHubServer(MCPServer):
    """django-mcpz's server with results of LeaseHub's shape: refusals are structured too, and notices ride along."""

    def __init__(self) -> None:
        super().__init__(
            name="leasehub",
            title="LeaseHub",
            version=leasehub.__version__,
            description="Leases, queues, pools and handoffs for fleets of agents",
            instructions=INSTRUCTIONS,
            auth=_identify,
        )
        self.acts: dict[str, Act] = {}

    def add(self, act: Act, *, reads: bool, destroys: bool, repeatable: bool) -> None:
        self.acts[act.name] = act
        self.tool(
            name=act.name,
            description=" ".join((inspect.getdoc(act.carry) or "").split()),
            input_schema=input_schema(act.arguments),
            output_schema=output_schema(act.answers),
            read_only=reads,
            destructive=destroys,
            idempotent=repeatable,
            open_world=False,
            permission=act.is_for,
        )(act)

    def _origin_allowed(self, request: HttpRequest) -> bool:
        """A page in a browser must not reach a server on its user's machine: only loopback and named hosts may."""
        origin = request.META.get("HTTP_ORIGIN")
        if origin is None:
            return True
        if origin in settings.CSRF_TRUSTED_ORIGINS:
            return True
        try:
            host = urlsplit(origin).hostname
        except ValueError:
            return False
        return host in LOOPBACK or (
            host is not None and "*" not in settings.ALLOWED_HOSTS and super()._origin_allowed(request)
        )

    def _run_tool(
        self,
        request: HttpRequest,
        request_id: str | int,
        tool: Tool,
        arguments: dict[str, Any],
        elicitation: Elicitation,
    ) -> tuple[HttpResponse, str]:
        call: Call = request.mcp  # type: ignore[attr-defined]
        answer, refused = _carried_out(self.acts[tool.name], call, arguments)
        content = rendering.encoded(answer)
        result = {
            "isError": refused,
            "content": [{"type": "text", "text": content.decode()}],
            "structuredContent": msgspec.Raw(content),
        }
        return self._result(request, request_id, result), "refused" if refused else "ok"


def _carried_out(act: Act, call: Call, arguments: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """The answer, and whether it is a refusal. Raises Unauthenticated alone."""
    reader = call.reader(arguments)
    with notices.looked_up_along(call.caller, reader) as aside:
        try:
            answer, refused = act(call, arguments), False
        except Unauthenticated:
            raise
        except DomainError as error:
            answer, refused = refusals.told(error), True
        except (OperationalError, InterfaceError) as error:
            return refusals.told(failures.unavailable(error)), True
        except InternalError as error:
            if failures.is_read_only(error):
                return refusals.told(failures.unavailable(error)), True
            raise
        except Exception:
            logger.exception("the tool %s failed", act.name)
            return refusals.told(Failed()), True
    return {**answer, **_noticed(call.caller, reader, aside)}, refused


def _noticed(caller: Caller, reader: str, aside: functions.Aside | None) -> dict[str, Any]:
    """The notices; none when they cannot be had just now: the tool has been carried out and must be answered for."""
    try:
        return notices.told(caller, reader, aside)
    except Error as error:
        logger.warning("no notices: %s", str(error).strip().splitlines()[:1])
        return {}


class _Named(parsing.Body):
    holder: parsing.Holder


@lru_cache(maxsize=1000)
def _can_be_a_holder(text: str) -> bool:
    try:
        parsing.validated(_Named, {"holder": text})
    except ValidationError:
        return False
    return True


def _identify(request: HttpRequest) -> None:
    """Who calls. Raises Unauthenticated."""
    authorization = request.META.get("HTTP_AUTHORIZATION")
    # Of a tool's call its service asks whether the key still works, or Act does.
    is_call = TOOL_CALL in request.body
    caller = recognize(authorization) if is_call else authenticate(authorization)
    # An empty header names nobody.
    session = request.META.get(HOLDER_HEADER) or None
    request.mcp = Call(caller, session, is_checked=not is_call)  # type: ignore[attr-defined]


class Headers:
    """The request's headers for those who ask for a few by name: Django's own gathers them all first."""

    __slots__ = ("_meta",)

    def __init__(self, meta: dict[str, Any]) -> None:
        self._meta = meta

    def get(self, name: str, default: str | None = None) -> str | None:
        found: str | None = self._meta.get(f"HTTP_{name.upper().replace('-', '_')}", default)
        return found


server = LeaseHubServer()
Carrying = TypeVar("Carrying", bound=Callable[..., dict[str, Any]])


def tool(
    operation: str,
    *,
    answers: type[Answer],
    ring: int | None = None,
    reads: bool = False,
    destroys: bool = False,
    repeatable: bool = True,
    service_checks_key: bool = False,
) -> Callable[[Carrying], Carrying]:
    """Registers a function under its own name. Its docstring is what the model reads.

    ``operation``: the API's own name for the verb. ``service_checks_key``: the hot verbs, whose one round trip
    checks the key too. The others are annotated for the client: reads, destroys, repeatable.
    """

    def register(carry: Carrying) -> Carrying:
        hints = get_type_hints(carry)
        arguments: type[Arguments] = hints["given"]
        act = Act(carry.__name__, operation, ring, arguments, answers, carry, service_checks_key)
        server.add(act, reads=reads, destroys=destroys, repeatable=repeatable or reads)
        return carry

    return register


def endpoint(request: HttpRequest) -> HttpResponse:
    """The view of /mcp."""
    try:
        if request.method != "POST":
            raise MethodNotAllowed("This address takes POST: MCP, as one JSON-RPC message a request.", allow="POST")
        parsing.body_bytes(request)
        request.__dict__["headers"] = Headers(request.META)
        response = server(request)
        call: Call | None = getattr(request, "mcp", None)
        if call is not None and not call.is_checked:
            # It looked like a tool's call, and no tool has asked: there is none, or it was refused before.
            call.check_key()
    except DomainError as error:
        response = rendering.error_response(error)
        if error.status == HTTPStatus.UNAUTHORIZED and "HTTP_AUTHORIZATION" in request.META:
            response.headers["WWW-Authenticate"] = 'Bearer realm="LeaseHub", error="invalid_token"'
    except RecursionError:
        response = error_response(None, PARSE_ERROR, "Nested too deeply", status=HTTPStatus.BAD_REQUEST)
    except OverflowError:
        # An id beyond what any client counts to, which cannot be written back.
        response = error_response(None, INVALID_REQUEST, "The id is too large", status=HTTPStatus.BAD_REQUEST)
    except (OperationalError, InterfaceError) as error:
        response = rendering.error_response(failures.unavailable(error))
    response.headers["Content-Length"] = str(len(response.content))
    response.headers["Cache-Control"] = "no-store"
    return response


endpoint.csrf_exempt = True  # type: ignore[attr-defined]


def lean(view: dict[str, Any]) -> dict[str, Any]:
    """Without the members that say nothing: results are read by models, word by word."""
    return {name: value for name, value in view.items() if value is not None}
