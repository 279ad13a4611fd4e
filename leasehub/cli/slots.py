"""Which pool and which slot of it are meant, and commands that are run on one."""

import os
import time

from leasehub.cli import flags
from leasehub.cli.lease import Place, is_kind, look_at
from leasehub.client import jsontext, slots
from leasehub.client.failures import Refused, Usage
from leasehub.client.wire import TIMEOUT_SECONDS, Connection, Members, fresh_key, quoted

MAX_FILE = 8 * 1024 * 1024
RUN_WAIT_SECONDS = 20
PAUSE_SECONDS = 1.0


def pool_of(given: flags.Flags) -> str:
    """The pool's name: as --pool or LEASE_POOL_FILE says it, or from the pool file that they name."""
    named = given["pool"] if "pool" in given else os.environ.get("LEASE_POOL_FILE", "")
    if not named:
        raise Usage("no pool file or name is given: --pool, or LEASE_POOL_FILE")
    if os.path.isfile(named) or "/" in named or named.endswith(".json"):
        return name_in(read_file(named))
    if not is_kind(named):
        raise Usage(f"--pool must be a pool's name or a pool file, and {named!r} is neither")
    return named


def read_file(path: str) -> Members:
    try:
        with open(path, "rb") as stream:
            document = jsontext.parse(stream.read(MAX_FILE).decode())
    except OSError as error:
        raise Usage(f"cannot read pool file {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise Usage(f"the pool file {path} is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise Usage(f"the pool file {path} is not a JSON object")
    return document


def name_in(document: Members) -> str:
    name = document.get("name")
    name = "pool" if name is None else name
    if not isinstance(name, str) or not is_kind(name):
        raise Usage(f'invalid pool "name": {name!r}')
    return name


def slot_of(connection: Connection, pool: str, named: str) -> Members:
    """The slot as the pool shows it; its id alone where the key may not look at pools."""
    try:
        shown = connection.call("GET", f"/v1/pools/{quoted(pool)}")["slots"]
    except Refused as refused:
        if refused.reason != "FORBIDDEN":
            raise
        return {"slot_id": _unseen(connection, pool, named), "kind": None}
    found: Members | None = next((slot for slot in shown if slots.id_text(slot["slot_id"]) == named), None)
    found = found or next((slot for slot in shown if _same_number(slot["slot_id"], named)), None)
    if found is None:
        raise Usage(f"invalid slot id {named!r}: the pool {pool} has no such slot")
    return found


def _unseen(connection: Connection, pool: str, named: str) -> str:
    """The id that is meant, where only leases can be looked at: 1.0 may be the text, or the number that is 1."""
    try:
        number = slots.id_text(flags.number("--slot", named))
    except Usage:
        return named
    if number == named or not _is_free(connection, pool, named) or _is_free(connection, pool, number):
        return named
    return number


def _is_free(connection: Connection, pool: str, slot_id: str) -> bool:
    return bool(look_at(connection, place_of(pool, {"slot_id": slot_id, "kind": None}))["state"] == "free")


def _same_number(slot_id: object, named: str) -> bool:
    try:
        return not isinstance(slot_id, str) and slot_id == flags.number("--slot", named)
    except Usage:
        return False


def place_of(pool: str, slot: Members) -> Place:
    return Place(slot["kind"], resource_type="slot", resource_id=slots.resource_id(pool, slot["slot_id"]))


def run_on_slot(connection: Connection, pool: str, slot: Members, verb: str, body: dict[str, object]) -> Members:
    """Has the slot's commands run, and waits for their end."""
    base = f"/v1/pools/{quoted(pool)}"
    connection.timeout = TIMEOUT_SECONDS + RUN_WAIT_SECONDS
    path = f"{base}/slots/{quoted(slots.id_text(slot['slot_id']))}/{verb}"
    run = connection.call("POST", path, {**body, "wait_seconds": RUN_WAIT_SECONDS}, key=fresh_key())
    while run["state"] != "ended":
        time.sleep(PAUSE_SECONDS)
        run = connection.call("GET", f"{base}/runs/{quoted(run['run_id'])}?wait_seconds={RUN_WAIT_SECONDS}")
    return run


def how_it_went(run: Members, good: str, bad: str) -> dict[str, object]:
    if run["outcome"] == "passed":
        return {"ok": True, "code": good, "slot_id": run["slot_id"]}
    error = run["error"] or f"the commands did not come to their end: {run['outcome']}"
    return {"ok": False, "code": bad, "slot_id": run["slot_id"], "error": error}
