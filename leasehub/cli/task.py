"""leasehub task put|claim|heartbeat|complete|fail|return|show|retry, and leasehub queue status."""

import math

from leasehub.cli import flags
from leasehub.cli.lease import outside_fence
from leasehub.cli.output import emit
from leasehub.cli.signals import Signals, Watchful, granted
from leasehub.client import credentials, jsontext
from leasehub.client.acquiring import Once
from leasehub.client.clock import boot_clock
from leasehub.client.failures import Refused, Usage
from leasehub.client.wire import TIMEOUT_SECONDS, Connection, Members, fresh_key, quoted

# How long one call waits at the server; a longer wait is made of several. A signal has to wait for its answer, which
# may be a claim that is to be given back; and the server may give a task to a call whose process has been killed.
CLAIM_WAIT_SECONDS = 5
CROWDED_SECONDS = 1.0
CLAIM = ("queue", "holder", "ttl-seconds", "wait-seconds", "count")


def put(arguments: list[str]) -> int:
    given = flags.read(
        "task put",
        arguments,
        values=("queue", "payload", "priority", "delay-seconds", "max-attempts", "dedupe-key"),
        switches=("pretty",),
    )
    given.required("queue")
    body: dict[str, object] = {}
    if "payload" in given:
        body["payload"] = json_of("payload", given["payload"])
    if "priority" in given:
        body["priority"] = _signed("priority", given["priority"])
    for name in ("delay-seconds", "max-attempts"):
        if name in given:
            body[name.replace("-", "_")] = flags.whole(name, given[name])
    if "dedupe-key" in given:
        body["dedupe_key"] = given["dedupe-key"]
    answer = connection().call("POST", f"/v1/queues/{quoted(given['queue'])}/tasks", body, key=fresh_key())
    return _ok("queued", answer, given)


def claim(arguments: list[str]) -> int:
    given = flags.read("task claim", arguments, values=CLAIM, switches=("pretty",))
    given.required("queue")
    body, wait_seconds, server = _claim_body(given), _wait_of(given), connection()
    signals = Signals()
    once, patience = Once(server, "/v1/leases/hot-claim"), Watchful(wait_seconds, signals)
    try:
        answer = granted(lambda: _claim_within(once, body, patience), server, signals, "before a task was claimed")
    except Refused as refused:
        raise outside_fence(refused) from None
    if not answer:
        message = f"queue {given['queue']} has no task to claim"
        return emit({"ok": False, "code": "empty", "message": message}, pretty="pretty" in given)
    return _ok("claimed", answer, given)


def _claim_body(given: flags.Flags) -> dict[str, object]:
    body: dict[str, object] = {"queue": given["queue"]}
    if "holder" in given:
        body["holder"] = given["holder"]
    for name in ("ttl-seconds", "count"):
        if name in given:
            body[name.replace("-", "_")] = flags.whole(name, given[name], least=1)
    return body


def _wait_of(given: flags.Flags) -> int:
    return flags.whole("wait-seconds", given.get("wait-seconds", "0"), most=86400)


def _claim_within(once: Once, body: dict[str, object], patience: Watchful) -> Members:
    """A claim, or nothing when there was nothing to claim for so long."""
    while True:
        asked = min(max(0, math.ceil(patience.left())), CLAIM_WAIT_SECONDS)
        once.connection.timeout = TIMEOUT_SECONDS + asked
        began = boot_clock()
        answer = once.ask({**body, "wait_seconds": asked})
        if answer or patience.left() <= 0:
            return answer
        # So many wait at the server that this call could not.
        is_crowded = boot_clock() - began < asked
        if is_crowded and not patience.sleep(CROWDED_SECONDS):
            return answer


def heartbeat(arguments: list[str]) -> int:
    given = _of_task("task heartbeat", arguments, values=("ttl-seconds",))
    body: dict[str, object] = {"fencing_token": _token(given)}
    if "ttl-seconds" in given:
        body["ttl_seconds"] = flags.whole("ttl-seconds", given["ttl-seconds"], least=1)
    return _ok("refreshed", connection().call("POST", f"/v1/leases/{quoted(given['task'])}/heartbeat", body), given)


def complete(arguments: list[str]) -> int:
    given = _of_task("task complete", arguments, values=("result",))
    body: dict[str, object] = {"fencing_token": _token(given)}
    if "result" in given:
        body["result"] = json_of("result", given["result"])
    return _ok("completed", _finish(given, "complete", body), given)


def fail(arguments: list[str]) -> int:
    given = _of_task("task fail", arguments, values=("error", "retry-in-seconds"), switches=("final",))
    given.required("error")
    body: dict[str, object] = {"fencing_token": _token(given), "error": given["error"], "final": "final" in given}
    if "retry-in-seconds" in given:
        body["retry_in_seconds"] = flags.whole("retry-in-seconds", given["retry-in-seconds"])
    return _ok("failed", _finish(given, "fail", body), given)


def return_task(arguments: list[str]) -> int:
    given = _of_task("task return", arguments)
    path = f"/v1/leases/{quoted(given['task'])}?fencing_token={_token(given)}"
    return _ok("returned", connection().call("DELETE", path), given)


def show(arguments: list[str]) -> int:
    given = flags.read("task show", arguments, values=("task",), switches=("pretty",))
    given.required("task")
    return _ok("shown", connection().call("GET", f"/v1/tasks/{quoted(given['task'])}"), given)


def retry(arguments: list[str]) -> int:
    given = flags.read("task retry", arguments, values=("task",), switches=("pretty",))
    given.required("task")
    return _ok("queued", _finish(given, "retry", {}), given)


def queue_status(arguments: list[str]) -> int:
    given = flags.read("queue status", arguments, values=("queue",), switches=("pretty",))
    server = connection()
    if "queue" in given:
        return _ok("shown", server.call("GET", f"/v1/queues/{quoted(given['queue'])}"), given)
    queues: list[Members] = []
    after = ""
    while True:
        page = server.call("GET", f"/v1/queues?limit=200{after}")
        queues += page["queues"]
        if page["next"] is None:
            return _ok("listed", {"queues": queues}, given)
        after = f"&after={quoted(str(page['next']))}"


def connection() -> Connection:
    known = credentials.find()
    return Connection(known.url, known.token)


def json_of(name: str, text: str) -> object:
    try:
        value: object = jsontext.parse(text)
        jsontext.compact(value)
    except (ValueError, RecursionError) as error:
        raise Usage(f"--{name} is not valid JSON: {error}") from None
    return value


def _of_task(
    verb: str, arguments: list[str], *, values: tuple[str, ...] = (), switches: tuple[str, ...] = ()
) -> flags.Flags:
    given = flags.read(verb, arguments, values=("task", "token", *values), switches=("pretty", *switches))
    given.required("task", "token")
    return given


def _token(given: flags.Flags) -> int:
    return flags.whole("token", given["token"], least=1)


def _signed(name: str, text: str) -> int:
    number = flags.whole(name, text.removeprefix("-"))
    return -number if text.startswith("-") else number


def _finish(given: flags.Flags, verb: str, body: dict[str, object]) -> Members:
    return connection().call("POST", f"/v1/tasks/{quoted(given['task'])}/{verb}", body, key=fresh_key())


def _ok(code: str, answer: Members, given: flags.Flags) -> int:
    return emit({"ok": True, "code": code, **answer}, pretty="pretty" in given)
