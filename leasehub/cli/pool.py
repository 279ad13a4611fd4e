"""leasehub pool acquire|request|claim|cancel and the verbs on a slot that one holds."""

import os

from leasehub.cli import flags, grants
from leasehub.cli.lease import (
    COMMON,
    NO_TOKEN,
    connect,
    force_release_at,
    heartbeat_at,
    outside_fence,
    owner_of,
    owner_pattern,
    release_at,
    token_of,
)
from leasehub.cli.output import emit, say, write
from leasehub.cli.signals import Signals, interrupted
from leasehub.cli.slots import how_it_went, place_of, pool_of, run_on_slot, slot_of
from leasehub.cli.task import json_of
from leasehub.cli.ticket import (
    Ended,
    Interrupted,
    Ticket,
    ended,
    eta,
    patience_of,
    saturated,
    ttl_seconds_of,
)
from leasehub.client import jsontext
from leasehub.client.failures import Refused, Usage
from leasehub.client.ticket import OUTAGE_SECONDS
from leasehub.client.wire import Connection, Members, quoted

Result = dict[str, object]
ASKED = ("pool", "owner", "session", "ttl", "poll-ms", "selector", "count", *COMMON)


def acquire(arguments: list[str]) -> int:
    given = flags.read("pool acquire", arguments, values=(*ASKED, "wait-ms"), switches=("no-wait", "shell", "pretty"))
    pool, patience = pool_of(given), patience_of(given)
    if "shell" in given and "count" in given:
        raise Usage("--shell exports one slot: it does not go with --count")
    body = {**asked_of(given), "mode": "blocking", "no_wait": "no-wait" in given}
    connection, known = connect()
    body["holder"] = owner_of(given, owner_pattern(given), known, connection)
    signals = Signals()
    try:
        view = Ticket(connection, pool, body).granted(patience, signals)
    except Interrupted:
        return interrupted(signals, "before a slot was granted", is_silent="shell" in given)
    except Ended as end:
        return show(end.result, given)
    except Refused as refused:
        if refused.reason != "SATURATED":
            raise outside_fence(refused) from None
        return show(saturated(refused), given)
    return show(grants.record(view), given, prefix=str(view["shell_prefix"]))


def request(arguments: list[str]) -> int:
    given = flags.read("pool request", arguments, values=ASKED, switches=("shell", "pretty"))
    pool = pool_of(given)
    patience_of(given)
    body = {**asked_of(given), "mode": "async"}
    connection, known = connect()
    body["holder"] = owner_of(given, owner_pattern(given), known, connection)
    try:
        view = Ticket(connection, pool, body).ask()
    except Refused as refused:
        raise outside_fence(refused) from None
    result: Result = {
        "ok": True,
        "queued": True,
        "request_id": view["request_id"],
        "owner": view["holder"],
        "session": view["session"],
        **_standing(view),
    }
    say(
        f"the request is dropped unless `leasehub pool claim --pool {pool} --request {view['request_id']}` asks for it"
        f" at least once within the pool's waiterStaleMs ({OUTAGE_SECONDS:g} s unless its pool file says otherwise)"
    )
    return emit(result, pretty="pretty" in given)


def _standing(view: Members) -> Result:
    """The place in the queue; without one the slots are assigned, and `claim` will tell of them."""
    if view["state"] == "queued":
        return {"position": view["position"], "etaMs": view["eta_ms"], "eta": eta(view["eta_ms"])}
    return {"position": 0, "etaMs": 0, "eta": eta(0), "state": view["state"]}


def claim(arguments: list[str]) -> int:
    given = flags.read(
        "pool claim", arguments, values=("pool", "request", "owner", *COMMON), switches=("shell", "pretty")
    )
    given.required("request")
    pool, pattern = pool_of(given), owner_pattern(given)
    connection, known = connect()
    owner = owner_of(given, pattern, known, connection)
    named = "owner" in given or "LEASE_OWNER" in os.environ
    view = _request(connection, pool, given["request"])
    # With another's request there is nothing to be had but its state.
    if view is None or (named and view["holder"] != owner) or (view["state"] == "ready" and not view["grants"]):
        return show(_unknown(given["request"]), given)
    if view["state"] == "ready":
        return show(grants.record(view), given, prefix=str(view["shell_prefix"]))
    if view["state"] in ("queued", "provisioning"):
        return show({"ok": True, "queued": True, "request_id": view["request_id"], **_standing(view)}, given)
    return show(ended(view), given)


def _request(connection: Connection, pool: str, request_id: str) -> Members | None:
    try:
        return connection.call("GET", f"/v1/pools/{quoted(pool)}/requests/{quoted(request_id)}")
    except Refused as refused:
        if refused.reason != "NOT_FOUND":
            raise
        return None


def _unknown(request_id: str) -> Result:
    note = "this pool has no such request of yours"
    return {"ok": False, "code": "unknown_request", "request_id": request_id, "note": note}


def cancel(arguments: list[str]) -> int:
    given = flags.read("pool cancel", arguments, values=("pool", "request", "owner", *COMMON), switches=("pretty",))
    given.required("request")
    pool = pool_of(given)
    owner_pattern(given)
    connection, _ = connect()
    try:
        view = connection.call("DELETE", f"/v1/pools/{quoted(pool)}/requests/{quoted(given['request'])}")
    except Refused as refused:
        if refused.reason != "NOT_FOUND":
            raise
        return show(_unknown(given["request"]), given)
    return show({"ok": True, "code": "cancelled", "request_id": view["request_id"], "state": view["state"]}, given)


def heartbeat(arguments: list[str]) -> int:
    given = _of_slot("pool heartbeat", arguments, values=("token",))
    given.required("token")
    pool, pattern, token = pool_of(given), owner_pattern(given), token_of(given)
    connection, known = connect()
    owner = owner_of(given, pattern, known, connection)
    slot = slot_of(connection, pool, given["slot"])
    return show({**heartbeat_at(connection, place_of(pool, slot), owner, token), "slot_id": slot["slot_id"]}, given)


def release(arguments: list[str]) -> int:
    given = _of_slot("pool release", arguments, values=("token", "reason"), switches=("force",))
    pool, pattern = pool_of(given), owner_pattern(given)
    if "force" in given:
        connection, _ = connect()
        slot = slot_of(connection, pool, given["slot"])
        reason = given.get("reason") or "leasehub pool release --force"
        result = force_release_at(connection, place_of(pool, slot), reason)
        return show({**result, "slot_id": slot["slot_id"]}, given)
    given.required("token")
    if "reason" in given:
        raise Usage("--reason goes with --force")
    token = token_of(given)
    connection, known = connect()
    owner = owner_of(given, pattern, known, connection)
    slot = slot_of(connection, pool, given["slot"])
    return show({**release_at(connection, place_of(pool, slot), owner, token), "slot_id": slot["slot_id"]}, given)


def reset(arguments: list[str]) -> int:
    given = _of_slot("pool reset", arguments, values=("token",))
    given.required("token")
    pool, pattern, token = pool_of(given), owner_pattern(given), token_of(given)
    connection, known = connect()
    owner = owner_of(given, pattern, known, connection)
    slot = slot_of(connection, pool, given["slot"])
    slot_id = slot["slot_id"]
    if slot.get("state", "held") != "held":
        return show({"ok": False, "code": "not_held", "slot_id": slot_id}, given)
    if slot.get("holder", owner) != owner or token == NO_TOKEN:
        return show({"ok": False, "code": "not_owner", "slot_id": slot_id}, given)
    try:
        run = run_on_slot(connection, pool, slot, "reset", {"fencing_token": token})
    except Refused as refused:
        if refused.reason not in ("STALE_TOKEN", "LEASE_LOST"):
            raise
        code = "not_held" if slot_of(connection, pool, given["slot"]).get("state") == "free" else "not_owner"
        return show({"ok": False, "code": code, "slot_id": slot_id}, given)
    return show(how_it_went(run, "reset", "reset_failed"), given)


def _of_slot(
    verb: str, arguments: list[str], *, values: tuple[str, ...] = (), switches: tuple[str, ...] = ()
) -> flags.Flags:
    given = flags.read(
        verb, arguments, values=("pool", "slot", "owner", *values, *COMMON), switches=("pretty", *switches)
    )
    given.required("slot")
    return given


def asked_of(given: flags.Flags) -> Result:
    """What a request asks for, but for how it waits."""
    body: Result = {}
    if "session" in given:
        body["session"] = given["session"]
    if (seconds := ttl_seconds_of(given)) is not None:
        body["ttl_seconds"] = seconds
    if "count" in given:
        body["count"] = flags.whole("count", given["count"], least=1)
    if "selector" in given:
        selector = json_of("selector", given["selector"])
        if not isinstance(selector, dict):
            raise Usage('--selector must be an object, such as {"region": "eu"}')
        body["selector"] = selector
    return body


def show(result: Result, given: flags.Flags, *, prefix: str | None = None) -> int:
    """As JSON; with --shell a grant as lines that a shell can read, and a failure on stderr alone."""
    if "shell" not in given or (result["ok"] and prefix is None):
        return emit(result, pretty="pretty" in given)
    if not result["ok"]:
        say(jsontext.compact(result).decode())
        return 1
    write(1, grants.shell(result, prefix or ""))
    return 0
