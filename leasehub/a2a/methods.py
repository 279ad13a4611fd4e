"""The four methods that the card promises, and the refusal of those that it does not."""

import hashlib
import json
import re
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from django.db.models import Q
from pydantic import Field

from handoffs import queries, services
from handoffs.api import SendHandoff, offer
from handoffs.models import Handoff
from leasehub.a2a import tasks
from leasehub.a2a.rpc import (
    CONTENT_TYPE_NOT_SUPPORTED,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    PUSH_NOT_SUPPORTED,
    TASK_NOT_CANCELABLE,
    TASK_NOT_FOUND,
    UNSUPPORTED_OPERATION,
    Call,
    Params,
    Refusal,
)
from leasehub.api.parsing import MAX_INTEGER, Identifier, Instant, validated
from leasehub.db import clock
from leasehub.errors import NotFound, ValidationError
from leasehub.identity import idempotency
from leasehub.identity.authentication import Caller
from leasehub.identity.rings import ACT
from leases.services import Actor

LARGEST_PAGE = 100
# A handoff is resolved when somebody gets to it, which may be tomorrow: nobody is kept waiting for that.
STREAMING = ("SendStreamingMessage", "SubscribeToTask", "GetExtendedAgentCard")
PUSHING = tuple(
    f"{verb}TaskPushNotificationConfig{plural}"
    for verb, plural in (("Create", ""), ("Get", ""), ("List", "s"), ("Delete", ""))
)
#: What the metadata may say besides the data part: whom and what it is about.
ADDRESS = ("to_principal", "subject_id")

State = Literal[
    "TASK_STATE_UNSPECIFIED",
    "TASK_STATE_SUBMITTED",
    "TASK_STATE_WORKING",
    "TASK_STATE_COMPLETED",
    "TASK_STATE_FAILED",
    "TASK_STATE_CANCELED",
    "TASK_STATE_REJECTED",
    "TASK_STATE_INPUT_REQUIRED",
    "TASK_STATE_AUTH_REQUIRED",
]
# A messageId is remembered as an Idempotency-Key, whose length has a bound.
MessageId = Annotated[str, Field(min_length=1, max_length=190, pattern=r"^[!-~]+$")]
HistoryLength = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
Name = Annotated[str, Field(max_length=200)]


class Part(Params):
    text: str | None = None
    raw: str | None = None
    url: str | None = None
    data: Any = None
    filename: str | None = None
    media_type: str | None = None


class Message(Params):
    message_id: MessageId
    role: Literal["ROLE_USER"]
    parts: Annotated[list[Part], Field(min_length=1, max_length=100)]
    context_id: Name = ""
    task_id: Name = ""
    metadata: dict[str, Any] = {}


class Configuration(Params):
    task_push_notification_config: dict[str, Any] | None = None
    history_length: HistoryLength | None = None


class SendMessage(Params):
    message: Message
    configuration: Configuration = Configuration()
    metadata: dict[str, Any] = {}


class GetTask(Params):
    id: Identifier
    history_length: HistoryLength | None = None


class CancelTask(Params):
    id: Identifier


class ListTasks(Params):
    context_id: Name = ""
    status: State = "TASK_STATE_UNSPECIFIED"
    page_size: Annotated[int, Field(ge=1, le=LARGEST_PAGE)] = 50
    page_token: Name = ""
    history_length: HistoryLength | None = None
    status_timestamp_after: Instant | None = None
    include_artifacts: bool = False


def carry_out(caller: Caller, call: Call) -> Any:
    """Raises Refusal and what the services raise."""
    if call.method in STREAMING:
        raise Refusal(UNSUPPORTED_OPERATION, f"The card does not offer {call.method}: poll with GetTask.")
    if call.method in PUSHING:
        raise Refusal(PUSH_NOT_SUPPORTED, "The card does not offer push notifications: poll with GetTask.")
    method = METHODS.get(call.method)
    if method is None:
        raise Refusal(METHOD_NOT_FOUND, "There is no method of that name.")
    if not isinstance(call.params, dict):
        raise Refusal(INVALID_PARAMS, "params must be an object.")
    return method(caller, call.params)


def send_message(caller: Caller, params: dict[str, Any]) -> dict[str, Any]:
    caller.require(ACT)
    given = validated(SendMessage, params)
    if given.configuration.task_push_notification_config is not None:
        raise Refusal(PUSH_NOT_SUPPORTED, "The card does not offer push notifications: poll with GetTask.")
    if given.message.task_id:
        _refuse_more_messages(caller, given.message)
    handoff = _handed_over(caller, given, params)
    return {"task": _shown(caller, handoff.handoff_id, given.configuration.history_length)}


def get_task(caller: Caller, params: dict[str, Any]) -> dict[str, Any]:
    given = validated(GetTask, params)
    return _shown(caller, given.id, given.history_length)


def list_tasks(caller: Caller, params: dict[str, Any]) -> dict[str, Any]:
    """The most recently updated first."""
    given = validated(ListTasks, params)
    state = None if given.status == "TASK_STATE_UNSPECIFIED" else given.status
    found = tasks.sent(caller=caller, at=clock.now(), state=state)
    if given.context_id:
        found = found.filter(tasks.in_context(_plain(given.context_id, "contextId")))
    if given.status_timestamp_after is not None:
        found = found.filter(updated__gte=given.status_timestamp_after)
    total = found.count()
    if given.page_token:
        found = found.filter(_after(given.page_token))
    rows: list[Any] = list(queries.whole(found.order_by("-updated", "-pk"))[: given.page_size + 1])
    page = rows[: given.page_size]
    return {
        "tasks": tasks.view(caller, page, history=given.history_length != 0, artifacts=given.include_artifacts),
        "nextPageToken": _token(page[-1]) if len(rows) > given.page_size else "",
        "pageSize": given.page_size,
        "totalSize": total,
    }


def cancel_task(caller: Caller, params: dict[str, Any]) -> dict[str, Any]:
    caller.require(ACT)
    given = validated(CancelTask, params)
    handoff = _task(caller, given.id)
    try:
        services.withdraw(actor=Actor.of(caller), handoff_id=handoff.public_id)
    except NotFound:
        raise Refusal(TASK_NOT_CANCELABLE, "It is decided already: only what waits is taken back.") from None
    return _shown(caller, given.id, None)


METHODS: dict[str, Callable[[Caller, dict[str, Any]], dict[str, Any]]] = {
    "SendMessage": send_message,
    "GetTask": get_task,
    "ListTasks": list_tasks,
    "CancelTask": cancel_task,
}


def _task(caller: Caller, task_id: str) -> Handoff:
    try:
        return tasks.one(caller=caller, task_id=task_id, at=clock.now())
    except NotFound:
        raise Refusal(TASK_NOT_FOUND, "There is no such task.") from None


def _shown(caller: Caller, task_id: str, history_length: int | None) -> dict[str, Any]:
    return tasks.view(caller, [_task(caller, task_id)], history=history_length != 0)[0]


def _refuse_more_messages(caller: Caller, message: Message) -> None:
    """A handoff says everything at once."""
    handoff = _task(caller, message.task_id)
    if message.context_id and message.context_id != tasks.context_of(handoff):
        raise ValidationError("The task is of another context.", **{"message.contextId": "is not the task's"})
    raise Refusal(UNSUPPORTED_OPERATION, "A handoff takes no further messages: cancel it, and send a new one.")


def _handed_over(caller: Caller, given: SendMessage, params: dict[str, Any]) -> Handoff:
    """One message, one handoff, however often it is sent."""
    made: list[Handoff] = []

    def effect() -> idempotency.Answer:
        made.append(offer(caller, _handoff_of(given)))
        return idempotency.Answer(200, {}, made[0].handoff_id.encode())

    answer, _ = idempotency.once(
        caller=caller,
        key=f"a2a:{given.message.message_id}",
        request_sha256=_fingerprint(caller, params),
        is_secret=False,
        effect=effect,
    )
    return _task(caller, answer.body.decode())


def _fingerprint(caller: Caller, params: dict[str, Any]) -> str:
    """What the message says, and what its key may do."""
    said = {name: params.get(name) for name in ("message", "metadata")}
    rights = f"{sorted(caller.rings)} {caller.holder_pattern}"
    try:
        text = json.dumps({"SendMessage": said, "rights": rights}, sort_keys=True)
    except RecursionError:
        raise ValidationError("The message is nested too deeply.", message="is nested too deeply") from None
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _handoff_of(given: SendMessage) -> SendHandoff:
    message = given.message
    members = _members(message.parts)
    for name in ADDRESS:
        for metadata in (message.metadata, given.metadata):
            if name in metadata:
                members.setdefault(name, metadata[name])
    members.setdefault("context_id", message.context_id or f"ctx_{uuid.uuid4().hex}")
    members.setdefault("subject_id", members["context_id"])
    if message.context_id and members["context_id"] != message.context_id:
        raise ValidationError("The data part names another context.", context_id="is not the message's contextId")
    return validated(SendHandoff, members)


def _members(parts: list[Part]) -> dict[str, Any]:
    """The members of the handoff that the parts say: text is its message, a link an artifact, data the rest."""
    texts = [_text(part) for part in parts if part.text is not None]
    links = [
        {"kind": "file", "uri": part.url, **({"note": part.filename} if part.filename else {})}
        for part in parts
        if part.url is not None
    ]
    blocks = [_data(part) for part in parts if part.text is None and part.url is None]
    if len(blocks) > 1:
        raise ValidationError("A message has at most one data part.", **{"message.parts": "has several data parts"})
    members = dict(blocks[0]) if blocks else {}
    for name, value in (("message", "\n\n".join(texts)), ("artifacts", links)):
        if value and name in members:
            wrong = {"message.parts": f"says {name} twice"}
            raise ValidationError(f"The parts of the message say {name} twice.", **wrong)
        if value:
            members[name] = value
    return members


def _text(part: Part) -> str:
    if part.media_type and not part.media_type.startswith("text/"):
        raise Refusal(CONTENT_TYPE_NOT_SUPPORTED, "A text part is of type text/plain.")
    return part.text or ""


def _data(part: Part) -> dict[str, Any]:
    if part.raw is not None or (part.media_type or "application/json") != "application/json":
        raise Refusal(CONTENT_TYPE_NOT_SUPPORTED, "Files are handed over as links: a part with a url.")
    if not isinstance(part.data, dict):
        raise ValidationError("A data part is an object.", **{"message.parts": "data must be an object"})
    return part.data


def _plain(text: str, name: str) -> str:
    if not text.isprintable():
        raise ValidationError(f"{name} must be printable.", **{name: "must be printable"})
    return text


def _token(handoff: Any) -> str:
    return f"{(handoff.updated - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)}-{handoff.pk}"


def _after(token: str) -> Q:
    """Raises ValidationError for a token that no page gave out."""
    matched = re.fullmatch(r"([0-9]{1,16})-([0-9]{1,18})", token, re.ASCII)
    if matched is None:
        raise ValidationError("The pageToken is not one of this list.", pageToken="is not one of this list")
    updated = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(matched[1]))
    # The first condition says where in the index to begin.
    return Q(updated__lte=updated) & (Q(updated__lt=updated) | Q(pk__lt=int(matched[2])))
