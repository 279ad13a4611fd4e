"""leasehub lease acquire|heartbeat|release|status: the verbs that run often, so this imports little.

A kind K is the resource (``kind``, K), an owner is a holder, a token is a fencing token. Records never show a
token but to the one who has just acquired the lease or has just named the token.
"""

import os

from leasehub.cli import flags
from leasehub.cli.output import emit, say
from leasehub.cli.signals import Signals, Watchful, granted
from leasehub.cli.timestamps import epoch_ms, iso
from leasehub.client import credentials, jsontext
from leasehub.client.acquiring import Once
from leasehub.client.acquiring import acquire as acquire_once
from leasehub.client.failures import Conflict, Failure, Refused, Unreachable, Usage
from leasehub.client.wire import Connection, Members, fresh_key, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re

MAX_TTL_MINUTES = 527040
KIND_FIRST = frozenset("abcdefghijklmnopqrstuvwxyz0123456789")
KIND_CHARACTERS = KIND_FIRST | frozenset("._-")
OWNER_FIRST = KIND_FIRST | frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
OWNER_CHARACTERS = OWNER_FIRST | frozenset("._:@-")
COMMON = ("owner-pattern",)
# Those that are given out are above it.
NO_TOKEN = 0


class Place:
    """What a lease is on: the command line calls it a kind, the server a resource."""

    __slots__ = ("kind", "resource_id", "resource_type")

    def __init__(self, kind: str, *, resource_type: str = "kind", resource_id: str | None = None) -> None:
        self.kind = kind
        self.resource_type = resource_type
        self.resource_id = kind if resource_id is None else resource_id


def acquire(arguments: list[str]) -> int:
    given = flags.read(
        "lease acquire",
        arguments,
        values=("kind", "owner", "ttl", "payload", "wait-ms", *COMMON),
        switches=("pretty",),
    )
    given.required("kind", "ttl")
    kind, pattern = kind_of(given), owner_pattern(given)
    ttl_seconds, wait_ms, payload = ttl_of(given), wait_of(given), payload_of(given)
    connection, known = connect()
    owner = owner_of(given, pattern, known, connection)
    body = {
        "resource_type": "kind",
        "resource_id": kind,
        "ttl_seconds": ttl_seconds,
        "holder": owner,
        "payload": payload,
        "reacquire": False,
    }
    signals = Signals()
    once, patience = Once(connection, "/v1/leases"), Watchful(wait_ms / 1000, signals)
    try:
        answer = granted(lambda: acquire_once(once, body, patience), connection, signals, "before it was acquired")
    except Conflict as conflict:
        return emit(_held(connection, kind, owner, conflict, wait_ms), pretty="pretty" in given)
    except Refused as refused:
        raise outside_fence(refused) from None
    except Usage as wrong:
        raise _in_minutes(wrong) from None
    return emit(_acquired(kind, owner, ttl_seconds, payload, answer), pretty="pretty" in given)


def outside_fence(refused: Refused) -> Failure:
    """An owner that this key may not use is a wrong value, as one that does not match --owner-pattern is."""
    return Usage(str(refused)) if "holder_pattern" in refused.fields else refused


def _in_minutes(wrong: Usage) -> Usage:
    """The bounds are the server's, in seconds; --ttl is in minutes."""
    before, named, after = str(wrong).partition("ttl_seconds: must be at ")
    which, _, bound = after.partition(" ")
    digits = bound.partition(";")[0]
    if not named or not digits.isdigit():
        return wrong
    return Usage(f"{before}--ttl: must be at {which} {int(digits) / 60:g} minutes{bound[len(digits) :]}")


def _acquired(kind: str, owner: str, ttl_seconds: int, payload: object, answer: Members) -> dict[str, object]:
    since = iso(epoch_ms(answer["expires_at"]) - ttl_seconds * 1000)
    result: dict[str, object] = {
        "ok": True,
        "code": "acquired",
        "kind": kind,
        "record": _record(kind, owner, answer["fencing_token"], since, ttl_seconds * 1000, payload, since),
    }
    if answer["took_over_expired"]:
        result["tookOverExpired"] = True
        result["previous"] = previous_record(kind, answer["previous"] or {})
    return result


def _held(connection: Connection, kind: str, owner: str, refused: Refused, wait_ms: float) -> dict[str, object]:
    view = _visible(connection, kind)
    by_self = bool(refused.fields.get("held_by_self"))
    result: dict[str, object] = {
        "ok": False,
        "code": "timeout" if wait_ms else "held",
        "kind": kind,
        "holder": view and view["holder"],
        "heldBySelf": by_self and (view is None or view["holder"] == owner),
        "record": view and record_of(kind, view),
        "expiresAt": view["expires_at"] if view else refused.fields.get("expires_at"),
        "expiresInMs": view["expires_in_ms"] if view else refused.fields.get("retry_after_ms"),
    }
    if wait_ms:
        result["waitedMs"] = plain(wait_ms)
    return result


def _visible(connection: Connection, kind: str) -> Members | None:
    """The lease that stands in the way, when there still is one and this key may see it."""
    try:
        view = look(connection, kind)
    except (Refused, Unreachable):
        return None
    return view if view["state"] == "held" and view["lease_id"] else None


def heartbeat(arguments: list[str]) -> int:
    given = flags.read("lease heartbeat", arguments, values=("kind", "owner", "token", *COMMON), switches=("pretty",))
    given.required("kind", "token")
    kind, pattern, token = kind_of(given), owner_pattern(given), token_of(given)
    connection, known = connect()
    owner = owner_of(given, pattern, known, connection)
    return emit(heartbeat_at(connection, Place(kind), owner, token), pretty="pretty" in given)


def heartbeat_at(connection: Connection, place: Place, owner: str, token: int) -> dict[str, object]:
    _check_owner(connection, owner)
    kind, view = place.kind, look_at(connection, place)
    if view["state"] == "free":
        return refusal("not_held", kind)
    if not _is_own(view, owner) or view["fencing_token"] != token:
        return refusal("not_owner", kind, holder=view["holder"])
    if view["state"] == "unknown":
        return refusal("expired", kind, record=record_of(kind, view))
    try:
        beaten = connection.call("POST", f"/v1/leases/{view['lease_id']}/heartbeat", {"fencing_token": token})
    except Refused as refused:
        return _heartbeat_refused(kind, view, refused)
    beat = iso(epoch_ms(beaten["expires_at"]) - view["ttl_seconds"] * 1000)
    return {
        "ok": True,
        "code": "refreshed",
        "kind": kind,
        "record": record_of(kind, {**view, "heartbeat_at": beat}, token=token),
        "expiresAt": beaten["expires_at"],
        "expiresInMs": beaten["expires_in_ms"],
    }


def _heartbeat_refused(kind: str, view: Members, refused: Refused) -> dict[str, object]:
    ended_by = refused.fields.get("ended_by")
    if refused.reason == "STALE_TOKEN" or ended_by in ("taken_over", "reacquired", "transferred"):
        return refusal("not_owner", kind, holder=None)
    if refused.reason == "LEASE_LOST" and ended_by in ("expired", "max_lifetime"):
        return refusal("expired", kind, record=record_of(kind, view))
    if refused.reason in ("LEASE_LOST", "NOT_FOUND"):
        return refusal("not_held", kind)
    raise refused


def release(arguments: list[str]) -> int:
    given = flags.read(
        "lease release",
        arguments,
        values=("kind", "owner", "token", "reason", *COMMON),
        switches=("force", "pretty"),
    )
    given.required("kind")
    kind, pattern = kind_of(given), owner_pattern(given)
    if "force" in given:
        connection, _ = connect()
        reason = given.get("reason") or "leasehub lease release --force"
        result = force_release_at(connection, Place(kind), reason)
        return emit(result, pretty="pretty" in given)
    given.required("token")
    if "reason" in given:
        raise Usage("--reason goes with --force")
    token = token_of(given)
    connection, known = connect()
    owner = owner_of(given, pattern, known, connection)
    return emit(release_at(connection, Place(kind), owner, token), pretty="pretty" in given)


def release_at(connection: Connection, place: Place, owner: str, token: int) -> dict[str, object]:
    _check_owner(connection, owner)
    kind, view = place.kind, look_at(connection, place)
    if view["state"] == "free":
        return _nothing_held(connection, place, token)
    if not _is_own(view, owner):
        return refusal("not_owner", kind, holder=view["holder"])
    if view["fencing_token"] != token:
        return refusal("token_mismatch", kind, holder=view["holder"])
    try:
        answer = connection.call("DELETE", f"/v1/leases/{view['lease_id']}?fencing_token={token}")
    except Refused as refused:
        if refused.reason == "STALE_TOKEN":
            return refusal("token_mismatch", kind, holder=view["holder"])
        if refused.reason != "NOT_FOUND":
            raise
        # The first attempt ended it, and its answer was lost.
        if connection.answers_lost:
            return _released(kind, was_expired=view["state"] == "unknown")
        return not_held(kind, "released")
    return _released(kind, was_expired=bool(answer["was_expired"]))


def _nothing_held(connection: Connection, place: Place, token: int) -> dict[str, object]:
    """Releasing again is fine; but a token this kind never gave out means that another was meant."""
    result = not_held(place.kind, "released")
    if token == NO_TOKEN or token > _highest_token(connection, place, token):
        say(f"warning: {place.kind} never gave out that token; is another kind meant?")
        result["unknownToken"] = True
    return result


def _highest_token(connection: Connection, place: Place, token: int) -> int:
    known = connection.call(
        "POST",
        "/v1/fence/check",
        {"resource_type": place.resource_type, "resource_id": place.resource_id, "fencing_token": token},
        key=fresh_key(),
    )
    return int(known["highest_token"] or 0)


def force_release_at(connection: Connection, place: Place, reason: str) -> dict[str, object]:
    kind, view = place.kind, look_at(connection, place)
    if view["state"] == "free":
        return not_held(kind, "released")
    if not view["lease_id"] or view["fencing_token"] is None:
        raise Refused("FORBIDDEN", "release --force needs a key with RING-3.", {"ring": 3})
    try:
        connection.call(
            "POST",
            f"/v1/leases/{view['lease_id']}/force-release",
            {"reason": reason, "fencing_token": view["fencing_token"]},
            key=fresh_key(),
        )
    except Refused as refused:
        if refused.reason not in ("NOT_FOUND", "LEASE_LOST"):
            raise
        return not_held(kind, "released")
    return _released(kind, was_expired=view["state"] == "unknown")


def status(arguments: list[str]) -> int:
    given = flags.read("lease status", arguments, values=("kind", "resource", "owner", *COMMON), switches=("pretty",))
    place = place_of(given)
    owner_pattern(given)
    connection, _ = connect()
    return emit(state_of(place.kind, look_at(connection, place)), pretty="pretty" in given)


def place_of(given: flags.Flags) -> Place:
    """The resource that --kind or --resource TYPE/ID names."""
    if "resource" not in given:
        given.required("kind")
        return Place(kind_of(given))
    if "kind" in given:
        raise Usage(f"{given.verb} takes --kind or --resource, not both")
    resource_type, _, resource_id = given["resource"].partition("/")
    if not resource_type or not resource_id:
        raise Usage(f"--resource must look like TYPE/ID, not {given['resource']!r}")
    return Place(given["resource"], resource_type=resource_type, resource_id=resource_id)


def state_of(kind: str, view: Members) -> dict[str, object]:
    """A status entry; an expired lease's ``expiredForMs`` counts from its expiry."""
    record = record_of(kind, view) if view["lease_id"] else None
    if view["state"] == "free":
        return {"kind": kind, "state": "free"}
    if view["state"] == "unknown":
        return {"kind": kind, "state": "unknown", "record": record, "expiredForMs": view["expired_for_ms"]}
    return {
        "kind": kind,
        "state": "held",
        "holder": view["holder"],
        "record": record,
        "expiresAt": view["expires_at"],
        "expiresInMs": view["expires_in_ms"],
    }


def connect() -> tuple[Connection, credentials.Credentials]:
    known = credentials.find()
    return Connection(known.url, known.token), known


def look(connection: Connection, kind: str) -> Members:
    return look_at(connection, Place(kind))


def look_at(connection: Connection, place: Place) -> Members:
    resource = f"resource_type={quoted(place.resource_type)}&resource_id={quoted(place.resource_id)}"
    return connection.call("GET", f"/v1/leases/status?{resource}")


def kind_of(given: flags.Flags) -> str:
    kind = given["kind"]
    if not is_kind(kind):
        raise Usage(f"--kind must match ^[a-z0-9][a-z0-9._-]{{0,127}}$, and {kind!r} does not")
    return kind


def is_kind(text: str) -> bool:
    return 0 < len(text) <= 128 and text[0] in KIND_FIRST and KIND_CHARACTERS.issuperset(text)


def token_of(given: flags.Flags) -> int:
    """NO_TOKEN when it is none that was ever given out: a token is compared, not validated."""
    try:
        return flags.whole("token", given["token"])
    except Usage:
        return NO_TOKEN


def ttl_of(given: flags.Flags) -> int:
    return ttl_seconds("--ttl", given["ttl"])


def ttl_seconds(name: str, text: str) -> int:
    """Whole seconds, rounded half up; the server has the last word on the bounds."""
    minutes = flags.number(name, text)
    if not 0 < minutes <= MAX_TTL_MINUTES:
        raise Usage(f"{name} must be above 0 and at most {MAX_TTL_MINUTES} minutes, not {text!r}")
    return int(minutes * 60 + 0.5)


def wait_of(given: flags.Flags) -> float:
    wait_ms = flags.number("--wait-ms", given.get("wait-ms", "0"))
    if not 0 <= wait_ms < float("inf"):
        raise Usage(f"--wait-ms must be 0 or more, not {given['wait-ms']!r}")
    return wait_ms


def payload_of(given: flags.Flags) -> object:
    try:
        payload: object = jsontext.parse(given.get("payload", "null"))
        jsontext.compact(payload)
    except (ValueError, RecursionError) as error:
        raise Usage(f"--payload is not valid JSON: {error}") from None
    return payload


def owner_pattern(given: flags.Flags) -> "re.Pattern[str] | None":
    """The caller's own fence, on top of the key's; a wrong one is refused whatever the verb."""
    text = given.get("owner-pattern") or os.environ.get("LEASE_OWNER_PATTERN")
    if not text:
        return None
    import re

    stem = text.removesuffix("$")
    escaped = (len(stem) - len(stem.rstrip("\\"))) % 2
    if not text.startswith("^") or stem == text or escaped:
        raise Usage(f"the owner pattern must be anchored, from ^ to $: {text!r}")
    try:
        return re.compile(text, re.ASCII)
    except re.error as error:
        raise Usage(f"the owner pattern {text!r} cannot be read: {error}") from None


def owner_of(
    given: flags.Flags,
    pattern: "re.Pattern[str] | None",
    known: credentials.Credentials,
    connection: Connection,
) -> str:
    if given.get("owner") == "":
        raise Usage("--owner must not be empty")
    owner = given.get("owner") or os.environ.get("LEASE_OWNER") or known.principal
    if not owner:
        owner = str(connection.call("GET", "/v1/whoami")["principal"])
    # The whole of it: ^a|b$ must not let through what merely begins with an a.
    if pattern is not None and not pattern.fullmatch(owner):
        raise Usage(f"the owner {owner!r} does not match the owner pattern {pattern.pattern!r}")
    return owner


def _check_owner(connection: Connection, owner: str) -> None:
    """An owner that this key could not have acquired as. Asked of the server for an odd one alone: another that
    is outside the key's fence holds nothing."""
    if is_owner(owner):
        return
    import re

    fence = str(connection.call("GET", "/v1/whoami").get("holder_pattern", ""))
    if not re.fullmatch(fence, owner):
        raise Usage(f"--owner must match the key's holder fence {fence}, and {owner!r} does not")


def is_owner(text: str) -> bool:
    """Within the holder fence that a key has unless told otherwise."""
    return 0 < len(text) <= 128 and text[0] in OWNER_FIRST and OWNER_CHARACTERS.issuperset(text)


def record_of(kind: str, view: Members, *, token: int | None = None) -> dict[str, object]:
    ttl_ms = view["ttl_seconds"] * 1000
    return _record(kind, view["holder"], token, view["heartbeat_at"], ttl_ms, view["payload"], view["acquired_at"])


def previous_record(kind: str, ended: Members) -> dict[str, object]:
    """The record of a lease that has ended, from what an answer tells of it."""
    expired_at = ended.get("expires_at") or ended.get("expired_at")
    ttl_ms: int | None = None
    if ended.get("ttl_seconds"):
        ttl_ms = ended["ttl_seconds"] * 1000
    elif expired_at and ended.get("heartbeat_at"):
        ttl_ms = epoch_ms(expired_at) - epoch_ms(ended["heartbeat_at"])
    return _record(
        kind,
        ended.get("holder"),
        None,
        ended.get("heartbeat_at"),
        ttl_ms,
        ended.get("payload"),
        ended.get("acquired_at"),
    )


def _record(
    kind: str,
    owner: object,
    token: int | None,
    beat: object,
    ttl_ms: int | None,
    payload: object,
    since: object,
) -> dict[str, object]:
    return {
        "v": 1,
        "kind": kind,
        "owner": owner,
        "token": token,
        "heartbeat": beat,
        "ttlMinutes": None if ttl_ms is None else plain(ttl_ms / 60000),
        "payload": payload,
        "acquiredAt": since,
    }


def _is_own(view: Members, owner: str) -> bool:
    return bool(view["mine"]) and view["holder"] == owner


def _released(kind: str, *, was_expired: bool) -> dict[str, object]:
    return {"ok": True, "code": "released", "kind": kind, "released": True, "wasExpired": was_expired}


def not_held(kind: str, done: str) -> dict[str, object]:
    return {"ok": True, "code": "not_held", "kind": kind, done: False}


def refusal(code: str, kind: str, **members: object) -> dict[str, object]:
    return {"ok": False, "code": code, "kind": kind, **members}


def plain(number: float) -> float:
    """30 rather than 30.0."""
    return int(number) if number == int(number) else number
