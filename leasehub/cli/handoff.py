"""leasehub handoff send|inbox|show|accept|reject|withdraw|complete."""

from leasehub.cli import flags
from leasehub.cli.lease import Place, kind_of, look_at, outside_fence
from leasehub.cli.output import emit
from leasehub.cli.task import connection, json_of
from leasehub.client.failures import Refused, Usage
from leasehub.client.wire import Connection, Members, fresh_key, quoted

# Flag -> member. What is a list or an object there is JSON here.
TEXTS = {
    "to": "to_principal",
    "subject": "subject_id",
    "context": "context_id",
    "checkpoint": "checkpoint_id",
    "message": "message",
    "next-action": "next_action",
    "accept-by": "accept_by",
    "parent": "parent_id",
}
DOCUMENTS = ("done", "decisions", "failed-approaches", "blockers", "artifacts", "state")
LEASES = ("lease-ids", "resource", "kind")


def send(arguments: list[str]) -> int:
    given = flags.read("handoff send", arguments, values=(*TEXTS, *DOCUMENTS, *LEASES), switches=("pretty",))
    given.required("to", "subject")
    body: dict[str, object] = {member: given[name] for name, member in TEXTS.items() if name in given}
    body.update({name.replace("-", "_"): json_of(name, given[name]) for name in DOCUMENTS if name in given})
    server = connection()
    body["lease_ids"] = _offered(server, given)
    return _ok("sent", server.call("POST", "/v1/handoffs", body, key=fresh_key()), given)


def _offered(server: Connection, given: flags.Flags) -> list[str]:
    """The ids of the leases that go along: as they are given, and those on what is named."""
    named = [lease_id for lease_id in given.get("lease-ids", "").split(",") if lease_id]
    if "kind" in given:
        named.append(_lease_on(server, Place(kind_of(given))))
    if "resource" in given:
        resource_type, _, resource_id = given["resource"].partition("/")
        if not resource_type or not resource_id:
            raise Usage(f"--resource must look like TYPE/ID, not {given['resource']!r}")
        named.append(_lease_on(server, Place(given["resource"], resource_type=resource_type, resource_id=resource_id)))
    return named


def _lease_on(server: Connection, place: Place) -> str:
    view = look_at(server, place)
    if view["state"] != "held" or not view["mine"]:
        raise Refused("CONFLICT", f"{place.kind} is not yours to hand on: it is {view['state']}.", {})
    return str(view["lease_id"])


def inbox(arguments: list[str]) -> int:
    given = flags.read("handoff inbox", arguments, values=("status", "limit", "after"), switches=("sent", "pretty"))
    query = [f"limit={flags.whole('limit', given.get('limit', '50'), least=1, most=200)}"]
    query += [f"{name}={quoted(given[name])}" for name in ("status", "after") if name in given]
    if "sent" in given:
        query.append("box=sent")
    return _ok("listed", connection().call("GET", f"/v1/handoffs?{'&'.join(query)}"), given)


def show(arguments: list[str]) -> int:
    given = _of_handoff("handoff show", arguments)
    return _ok("shown", connection().call("GET", f"/v1/handoffs/{quoted(given['handoff'])}"), given)


def accept(arguments: list[str]) -> int:
    given = _of_handoff("handoff accept", arguments, values=("holder", "ttl-seconds", "observed-commit", "reason"))
    body: dict[str, object] = {"status": "accepted"}
    if "ttl-seconds" in given:
        body["ttl_seconds"] = flags.whole("ttl-seconds", given["ttl-seconds"], least=1)
    body.update(
        {name.replace("-", "_"): given[name] for name in ("holder", "observed-commit", "reason") if name in given}
    )
    try:
        return _ok("accepted", _post(given, "resolve", body), given)
    except Refused as refused:
        raise outside_fence(refused) from None


def reject(arguments: list[str]) -> int:
    given = _of_handoff("handoff reject", arguments, values=("reason",))
    given.required("reason")
    return _ok("rejected", _post(given, "resolve", {"status": "rejected", "reason": given["reason"]}), given)


def withdraw(arguments: list[str]) -> int:
    given = _of_handoff("handoff withdraw", arguments, values=("reason",))
    body: dict[str, object] = {"reason": given["reason"]} if "reason" in given else {}
    return _ok("withdrawn", _post(given, "withdraw", body), given)


def complete(arguments: list[str]) -> int:
    given = _of_handoff("handoff complete", arguments, values=("result",))
    body: dict[str, object] = {"result": json_of("result", given["result"])} if "result" in given else {}
    return _ok("completed", _post(given, "complete", body), given)


def _of_handoff(verb: str, arguments: list[str], *, values: tuple[str, ...] = ()) -> flags.Flags:
    given = flags.read(verb, arguments, values=("handoff", *values), switches=("pretty",))
    given.required("handoff")
    return given


def _post(given: flags.Flags, verb: str, body: dict[str, object]) -> Members:
    return connection().call("POST", f"/v1/handoffs/{quoted(given['handoff'])}/{verb}", body, key=fresh_key())


def _ok(code: str, answer: Members, given: flags.Flags) -> int:
    return emit({"ok": True, "code": code, **answer}, pretty="pretty" in given)
