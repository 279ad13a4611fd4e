"""leasehub lease reap|list|reconcile: the verbs that tidy up or look around."""

from leasehub.cli import flags
from leasehub.cli.lease import (
    COMMON,
    connect,
    is_kind,
    kind_of,
    look,
    not_held,
    owner_pattern,
    previous_record,
    refusal,
    state_of,
)
from leasehub.cli.output import emit, say
from leasehub.client.failures import Refused
from leasehub.client.wire import Connection, Members, fresh_key, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re

Entry = dict[str, object]


def reap(arguments: list[str]) -> int:
    given = flags.read("lease reap", arguments, values=("kind", "owner", *COMMON), switches=("pretty",))
    given.required("kind")
    kind = kind_of(given)
    owner_pattern(given)
    connection, _ = connect()
    return emit(_reap(connection, kind), pretty="pretty" in given)


def _reap(connection: Connection, kind: str) -> Entry:
    # The record must be looked up while it is there; whether it may be ended, the server decides.
    view = look(connection, kind)
    resource = {"resource_type": "kind", "resource_id": kind}
    try:
        reaped = connection.call("POST", "/v1/leases/reap", resource, key=fresh_key())
    except Refused as refused:
        if refused.reason == "NOT_FOUND":
            return not_held(kind, "reaped")
        if refused.reason != "CONFLICT":
            raise
        return _still_held(kind, view, refused)
    return _reaped(kind, view, reaped)


def _still_held(kind: str, view: Members, refused: Refused) -> Entry:
    held = view["state"] == "held"
    return refusal(
        "held",
        kind,
        holder=view["holder"] if held else None,
        expiresAt=view["expires_at"] if held else refused.fields.get("expires_at"),
        expiresInMs=view["expires_in_ms"] if held else refused.fields.get("retry_after_ms"),
    )


def _reaped(kind: str, view: Members, reaped: Members) -> Entry:
    seen = view if view["lease_id"] and view["lease_id"] == reaped["lease_id"] else {}
    previous = previous_record(kind, {**seen, **{name: value for name, value in reaped.items() if value}})
    return {"ok": True, "code": "reaped", "kind": kind, "reaped": True, "previous": previous}


def list_leases(arguments: list[str]) -> int:
    given = flags.read("lease list", arguments, values=("owner", *COMMON), switches=("pretty",))
    owner_pattern(given)
    connection, _ = connect()
    entries = [entry for entry, _ in _entries(connection, "")]
    return emit({"ok": True, "leases": entries}, pretty="pretty" in given)


def _entries(connection: Connection, filters: str) -> list[tuple[Entry, Members]]:
    """Leases by name, each as its status entry and as the server's view."""
    views: list[Members] = []
    after = ""
    while True:
        page = connection.call("GET", f"/v1/leases?limit=200{filters}{after}")
        views += page["leases"]
        if page["next"] is None:
            break
        after = f"&after={quoted(str(page['next']))}"
    views.sort(key=_name)
    return [(_entry(view), view) for view in views]


def _entry(view: Members) -> Entry:
    name = _name(view)
    if view["resource_type"] == "kind" and not is_kind(name):
        return {"kind": name, "state": "invalid", "note": "not a kind's name: it was leased by another door"}
    return state_of(name, view)


def _name(view: Members) -> str:
    name = str(view["resource_id"])
    return name if view["resource_type"] == "kind" else f"{view['resource_type']}/{name}"


def reconcile(arguments: list[str]) -> int:
    given = flags.read("lease reconcile", arguments, values=("owner", *COMMON), switches=("pretty",))
    pattern = owner_pattern(given)
    connection, _ = connect()
    if pattern is None:
        return emit(_reconcile(connection), pretty="pretty" in given)
    return emit(_reconcile_inside(connection, pattern), pretty="pretty" in given)


def _reconcile(connection: Connection) -> Entry:
    report = connection.call("POST", "/v1/leases/reconcile", {}, key=fresh_key())
    if report.get("truncated"):
        say("warning: there are more leases than one sweep looks at; the rest is left to the reaper")
    return {
        "ok": True,
        "held": [_entry(view) for view in report["held"]],
        "reaped": [_reaped(_name(view), view, view) for view in report["reaped"]],
        "foreign": [_entry(view) for view in report["foreign"]],
    }


def _reconcile_inside(connection: Connection, pattern: "re.Pattern[str]") -> Entry:
    """The server knows the key's fence alone: a narrower one is walked from here, lease by lease."""
    held: list[Entry] = []
    reaped: list[Entry] = []
    foreign: list[Entry] = []
    for entry, view in _entries(connection, "&resource_type=kind"):
        inside = entry["state"] != "invalid" and pattern.fullmatch(str(view["holder"] or ""))
        if not inside:
            foreign.append(entry)
        elif entry["state"] == "held":
            held.append(entry)
        else:
            result = _reap(connection, str(entry["kind"]))
            if result["code"] == "reaped":
                reaped.append(result)
            elif result["code"] == "held":
                held.append(state_of(str(entry["kind"]), look(connection, str(entry["kind"]))))
    return {"ok": True, "held": held, "reaped": reaped, "foreign": foreign}
