"""leasehub key create|list|revoke|rotate, and leasehub whoami."""

from leasehub.cli import flags
from leasehub.cli.output import emit
from leasehub.client import credentials
from leasehub.client.failures import Usage
from leasehub.client.wire import Connection, Members, fresh_key, quoted


def create(arguments: list[str]) -> int:
    given = flags.read(
        "key create",
        arguments,
        values=("principal", "kind", "label", "rings", "holder-pattern", "expires-at"),
        switches=("pretty",),
    )
    given.required("principal")
    body: dict[str, object] = {name.replace("-", "_"): text for name, text in given.items()}
    body.pop("pretty", None)
    if "rings" in given:
        rings = given["rings"].split(",")
        body["rings"] = [flags.whole("rings", ring.strip(), least=1, most=3) for ring in rings]
    made = _connection().call("POST", "/v1/keys", body, key=fresh_key())
    return _ok("created", made, given)


def list_keys(arguments: list[str]) -> int:
    given = flags.read("key list", arguments, values=(), switches=("pretty",))
    connection = _connection()
    keys: list[Members] = []
    after = ""
    while True:
        page = connection.call("GET", f"/v1/keys?limit=200{after}")
        keys += page["keys"]
        if page["next"] is None:
            return _ok("listed", {"keys": keys}, given)
        after = f"&after={quoted(str(page['next']))}"


def revoke(arguments: list[str]) -> int:
    given, key_id = _one_key("key revoke", arguments)
    return _ok("revoked", _connection().call("DELETE", f"/v1/keys/{quoted(key_id)}"), given)


def rotate(arguments: list[str]) -> int:
    given, key_id = _one_key("key rotate", arguments, values=("overlap-seconds",))
    body: dict[str, object] = {}
    if "overlap-seconds" in given:
        body["overlap_seconds"] = flags.whole("overlap-seconds", given["overlap-seconds"], most=86400)
    rotated = _connection().call("POST", f"/v1/keys/{quoted(key_id)}/rotate", body, key=fresh_key())
    return _ok("rotated", rotated, given)


def whoami(arguments: list[str]) -> int:
    given = flags.read("whoami", arguments, values=(), switches=("pretty",))
    known = credentials.find()
    answer = Connection(known.url, known.token).call("GET", "/v1/whoami")
    return _ok("whoami", {**answer, "url": known.url, "credentials": known.source}, given)


def _connection() -> Connection:
    known = credentials.find()
    return Connection(known.url, known.token)


def _one_key(verb: str, arguments: list[str], *, values: tuple[str, ...] = ()) -> tuple[flags.Flags, str]:
    given, names = flags.split(verb, arguments, values=values, switches=("pretty",))
    if len(names) != 1 or not names[0]:
        raise Usage(f"{verb} needs one KEY_ID")
    return given, names[0]


def _ok(code: str, answer: Members, given: flags.Flags) -> int:
    return emit({"ok": True, "code": code, **answer}, pretty="pretty" in given)
