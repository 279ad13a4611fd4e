"""leasehub webhook create|list|show|delete|pause|resume|rotate|test|deliveries|replay."""

import time

from leasehub.cli import flags
from leasehub.cli.output import emit
from leasehub.cli.task import connection
from leasehub.client.failures import Usage
from leasehub.client.wire import Connection, Members, fresh_key, quoted

PAGE = 200
LOOK_SECONDS = 0.5


def create(arguments: list[str]) -> int:
    given = flags.read("webhook create", arguments, values=("url", "types", "description"), switches=("pretty",))
    given.required("url")
    body: dict[str, object] = {name: given[name] for name in ("url", "description") if name in given}
    if "types" in given:
        body["types"] = [name for name in given["types"].split(",") if name]
    return _ok("created", connection().call("POST", "/v1/webhooks", body, key=fresh_key()), given)


def list_webhooks(arguments: list[str]) -> int:
    given = flags.read("webhook list", arguments, values=(), switches=("pretty",))
    server = connection()
    found: list[Members] = []
    after = ""
    while True:
        page = server.call("GET", f"/v1/webhooks?limit={PAGE}{after}")
        found += page["webhooks"]
        if page["next"] is None:
            return _ok("listed", {"webhooks": found}, given)
        after = f"&after={quoted(str(page['next']))}"


def show(arguments: list[str]) -> int:
    given = _of_webhook("webhook show", arguments)
    return _ok("shown", connection().call("GET", _path(given)), given)


def delete(arguments: list[str]) -> int:
    given = _of_webhook("webhook delete", arguments)
    return _ok("deleted", connection().call("DELETE", _path(given)), given)


def pause(arguments: list[str]) -> int:
    given = _of_webhook("webhook pause", arguments)
    return _ok("paused", _post(connection(), given, "/pause"), given)


def resume(arguments: list[str]) -> int:
    given = _of_webhook("webhook resume", arguments)
    return _ok("resumed", _post(connection(), given, "/resume"), given)


def rotate(arguments: list[str]) -> int:
    given = _of_webhook("webhook rotate", arguments, values=("overlap-seconds",))
    body: dict[str, object] = {}
    if "overlap-seconds" in given:
        body["overlap_seconds"] = flags.whole("overlap-seconds", given["overlap-seconds"])
    return _ok("rotated", _post(connection(), given, "/rotate", body), given)


def test(arguments: list[str]) -> int:
    """Sends one and waits for how it went: exit 0 when the receiver took it."""
    given = _of_webhook("webhook test", arguments, values=("wait-seconds",))
    until = time.monotonic() + flags.whole("wait-seconds", given.get("wait-seconds", "30"), most=600)
    server = connection()
    made = _post(server, given, "/test")
    while made["state"] == "pending" and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
        made = server.call("GET", f"{_path(given)}/deliveries/{quoted(str(made['delivery_id']))}")
    return emit({"ok": made["state"] == "delivered", "code": made["state"], **made}, pretty="pretty" in given)


def deliveries(arguments: list[str]) -> int:
    given = _of_webhook("webhook deliveries", arguments, values=("limit", "after"))
    query = [f"limit={flags.whole('limit', given.get('limit', '50'), least=1, most=PAGE)}"]
    query += [f"after={quoted(given['after'])}"] if "after" in given else []
    return _ok("listed", connection().call("GET", f"{_path(given)}/deliveries?{'&'.join(query)}"), given)


def replay(arguments: list[str]) -> int:
    """One delivery, or the events between two positions."""
    given = _of_webhook("webhook replay", arguments, values=("delivery", "after", "before"))
    if ("delivery" in given) == ("after" in given) or ("before" in given and "after" not in given):
        raise Usage("webhook replay needs --delivery, or --after and perhaps --before")
    if "delivery" in given:
        verb, body = f"/deliveries/{quoted(given['delivery'])}/replay", {}
    else:
        verb = "/replay"
        body = {name: flags.whole(name, given[name]) for name in ("after", "before") if name in given}
    return _ok("queued", _post(connection(), given, verb, dict(body)), given)


def _of_webhook(verb: str, arguments: list[str], *, values: tuple[str, ...] = ()) -> flags.Flags:
    given = flags.read(verb, arguments, values=("webhook", *values), switches=("pretty",))
    given.required("webhook")
    return given


def _path(given: flags.Flags) -> str:
    return f"/v1/webhooks/{quoted(given['webhook'])}"


def _post(server: Connection, given: flags.Flags, verb: str, body: dict[str, object] | None = None) -> Members:
    return server.call("POST", f"{_path(given)}{verb}", body or {}, key=fresh_key())


def _ok(code: str, answer: Members, given: flags.Flags) -> int:
    return emit({"ok": True, "code": code, **answer}, pretty="pretty" in given)
