"""leasehub pool status|pump|apply|reprovision|health|drain|undrain|repair: looking at pools and operating them."""

import os

from leasehub.cli import flags
from leasehub.cli.lease import COMMON, connect, outside_fence, owner_of, owner_pattern
from leasehub.cli.output import emit
from leasehub.cli.slots import how_it_went, name_in, pool_of, read_file, run_on_slot, slot_of
from leasehub.cli.ticket import ttl_seconds_of
from leasehub.client.failures import Refused, Usage
from leasehub.client.slots import id_text
from leasehub.client.wire import Connection, Members, fresh_key, quoted

Result = dict[str, object]
COMMANDS = ("provision", "reset", "health", "nudgeCommand")


def status(arguments: list[str]) -> int:
    given = flags.read("pool status", arguments, values=("pool", "owner", *COMMON), switches=("pretty",))
    pool = pool_of(given)
    owner_pattern(given)
    connection, _ = connect()
    view = connection.call("GET", f"/v1/pools/{quoted(pool)}")
    return emit(_status(connection, view), pretty="pretty" in given)


def _status(connection: Connection, view: Members) -> Result:
    return {
        "ok": True,
        # Where the older pool-cli had directories.
        "store": connection.url,
        "poolDir": f"{connection.url}/v1/pools/{quoted(view['pool'])}",
        "slots": [_slot(slot) for slot in view["slots"]],
        "queue": [_entry(entry) for entry in view["queue"]],
        "movingAvgMs": view["moving_avg_ms"],
    }


def _slot(slot: Members) -> Result:
    shown = {
        "slot_id": slot["slot_id"],
        "kind": slot["kind"],
        "attrs": slot["attrs"],
        "state": slot["state"],
        "holder": slot["holder"],
        "expiresAt": slot["expires_at"],
    }
    if slot["condition"] != "enabled":
        shown["condition"] = slot["condition"]
    if slot["busy"]:
        shown["busy"] = True
    if slot["error"]:
        shown["error"] = slot["error"]
    return shown


def _entry(entry: Members) -> Result:
    return {
        "request_id": entry["request_id"],
        "owner": entry["holder"],
        "session": entry["session"],
        "mode": entry["mode"],
        "position": entry["position"],
        "etaMs": entry["eta_ms"],
        "enqueuedAt": entry["queued_at"],
        "etaBetterMs": entry["eta_better_ms"],
    }


def pump(arguments: list[str]) -> int:
    given = flags.read("pool pump", arguments, values=("pool", "owner", *COMMON), switches=("pretty",))
    pool = pool_of(given)
    owner_pattern(given)
    connection, _ = connect()
    pumped = connection.call("POST", f"/v1/pools/{quoted(pool)}/pump", {}, key=fresh_key())
    result: Result = {
        "ok": True,
        "reapedSlots": [
            {"slot_id": slot["slot_id"], "previousOwner": slot["previous_holder"]} for slot in pumped["reaped_slots"]
        ],
        "droppedEntries": [_dropped(entry) for entry in pumped["dropped"]],
        "status": pumped["status"] and _status(connection, pumped["status"]),
    }
    return emit(result, pretty="pretty" in given)


def _dropped(entry: Members) -> Result:
    return {
        "id": entry["request_id"],
        "owner": entry["holder"],
        "session": entry["session"],
        "mode": entry["mode"],
        "enqueuedAt": entry["created_at"],
        "state": entry["state"],
        "reason": entry["reason"],
    }


def apply(arguments: list[str]) -> int:
    given, files = flags.split("pool apply", arguments, values=("pool",), switches=("pretty",))
    files += [given["pool"]] if "pool" in given else []
    if len(files) != 1 or not files[0]:
        raise Usage("pool apply needs one pool FILE")
    document = read_file(files[0])
    name = name_in(document)
    connection, _ = connect()
    view = connection.call("PUT", f"/v1/pools/{quoted(name)}", _located(document, files[0]), key=fresh_key())
    result: Result = {"ok": True, "code": "applied", "pool": name, "status": _status(connection, view)}
    return emit(result, pretty="pretty" in given)


def _located(document: Members, file: str) -> Members:
    """A pool file's commands run where the file is, unless it says otherwise."""
    cwd = document.get("cwd")
    runs_commands = any(document.get(command) for command in COMMANDS)
    if not runs_commands or not (cwd is None or isinstance(cwd, str)):
        return document
    folder = os.path.dirname(os.path.abspath(file))
    return {**document, "cwd": os.path.normpath(os.path.join(folder, cwd or "."))}


def reprovision(arguments: list[str]) -> int:
    given = _of_slot("pool reprovision", arguments, values=("ttl",))
    pool, pattern = pool_of(given), owner_pattern(given)
    body: Result = {}
    if (seconds := ttl_seconds_of(given)) is not None:
        body["ttl_seconds"] = seconds
    connection, known = connect()
    body["holder"] = owner_of(given, pattern, known, connection)
    slot = slot_of(connection, pool, given["slot"])
    try:
        run = run_on_slot(connection, pool, slot, "reprovision", body)
    except Refused as refused:
        if refused.reason != "CONFLICT":
            raise outside_fence(refused) from None
        holder = slot_of(connection, pool, given["slot"]).get("holder")
        result: Result = {"ok": False, "code": "held", "slot_id": slot["slot_id"], "holder": holder}
        return emit(result, pretty="pretty" in given)
    return emit(how_it_went(run, "reprovisioned", "reset_failed"), pretty="pretty" in given)


def health(arguments: list[str]) -> int:
    given = _of_slot("pool health", arguments)
    pool = pool_of(given)
    owner_pattern(given)
    connection, _ = connect()
    slot = slot_of(connection, pool, given["slot"])
    run = run_on_slot(connection, pool, slot, "health", {})
    return emit(how_it_went(run, "healthy", "unhealthy"), pretty="pretty" in given)


def drain(arguments: list[str]) -> int:
    return _change("drain", "drained", arguments)


def undrain(arguments: list[str]) -> int:
    return _change("undrain", "undrained", arguments)


def repair(arguments: list[str]) -> int:
    return _change("repair", "repaired", arguments)


def _change(verb: str, code: str, arguments: list[str]) -> int:
    given = _of_slot(f"pool {verb}", arguments)
    pool = pool_of(given)
    owner_pattern(given)
    connection, _ = connect()
    slot = slot_of(connection, pool, given["slot"])
    path = f"/v1/pools/{quoted(pool)}/slots/{quoted(id_text(slot['slot_id']))}/{verb}"
    changed = connection.call("POST", path, {}, key=fresh_key())
    result: Result = {"ok": True, "code": code, "slot_id": changed["slot_id"], "condition": changed["condition"]}
    return emit(result, pretty="pretty" in given)


def _of_slot(verb: str, arguments: list[str], *, values: tuple[str, ...] = ()) -> flags.Flags:
    given = flags.read(verb, arguments, values=("pool", "slot", "owner", *values, *COMMON), switches=("pretty",))
    given.required("slot")
    return given
