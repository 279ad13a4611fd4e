"""Whatever is sent, the answer is a refusal that names what is wrong, and never a 5xx."""

import json
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pytest
from django.db import transaction

from tests import wsgi
from tests.api.samples import SAMPLES, Names
from tests.conftest import Caster, cast

TOKEN = 2**53 - 1
KIB64 = 64 * 1024


@dataclass(frozen=True)
class Case:
    method: str
    #: After /v1/; {lease} and {key} stand for what exists.
    path: str
    body: Any = None
    status: int = 400
    #: The member that the refusal must name.
    wrong: str | None = None
    headers: dict[str, str] = field(default_factory=dict)


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def raw(**members: str) -> bytes:
    """A body of acquire whose given members are spelled out as they are."""
    spelled = {"resource_type": '"deploy"', "resource_id": '"x"', "ttl_seconds": "60", **members}
    return ("{" + ", ".join(f'"{name}": {value}' for name, value in spelled.items()) + "}").encode()


NOT_JSON: list[bytes] = [
    b"{",
    b"nonsense",
    b"{} {}",
    b"{},",
    b'{"a": 1,}',
    b"{'a': 1}",
    b"{a: 1}",
    b'{"a": 1} // why',
    b'{"a"}',
    b'{"a": }',
    b'{"a": 01}',
    b'{"a": 1.}',
    b'{"a": .5}',
    b'{"a": +1}',
    b'{"a": 0x10}',
    b'{"a": undefined}',
    b'{"a": NaN}',
    b'{"a": Infinity}',
    b'{"a": -Infinity}',
    b'{"a": ' + b"9" * 5000 + b"}",
    b'{"a": "\\x41"}',
    b'{"a": "\\u12"}',
    b'{"a": "\x00"}',
    b'{"a": "\n"}',
    b'{"a": "unended}',
    b"\x00",
    b" ",
    b"\x0b{}",
    b"\xef\xbb\xbf{}",
    b"\xff\xfe{\x00}\x00",
    '{"a": 1}'.encode("utf-16"),
    '{"a": 1}'.encode("utf-32"),
    b'{"a": "\xff"}',
    b'{"a": "\xc0\x80"}',
    b'{"a": "\xed\xa0\x80"}',
    b'{"a": "\xe2\x82"}',
    b'{"a": "caf\xe9"}',
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b"[" * 500_000 + b"]" * 500_000,
    b"[]",
    b'"text"',
    b"1",
    b"null",
    b"true",
    b'[{"resource_type": "deploy"}]',
]

WRONG_MEMBERS: dict[str, list[Any]] = {
    "resource_type": [
        "",
        " ",
        "\t",
        "x" * 201,
        "a\0b",
        "\0",
        "a\ud800",
        "\udfff",
        "a\nb",
        "a\tb",
        "a\x85b",
        "a\u202eb",
    ],
    "resource_id": ["", " ", "x" * 201, "é" * 201, "a\0b", "a\ud800", "a\rb", "\x7f", "\u061c", "\u2066", 1, True, 1.5],
    "ttl_seconds": ["600", "", True, False, 10.5, 60.0, None, [], [60], {}, 9, 0, -1, 86_401, 2**31, 2**63, 10**30],
    "purpose": ["", "x" * 4001, 1, True, [], {}, "a\0b", "a\ud800b", "a\x1bb", "a\u200fb"],
    "holder": ["", "x" * 129, 1, True, [], {}, "a\0", "\0", "\ud800", "a\ud800b"],
    "payload": [
        "x" * KIB64,
        {"a": "é" * (KIB64 // 2)},
        nested(21),
        nested(400),
        {"a": "b\0"},
        {"a\0": 1},
        {"a": "\ud800"},
        {"\udc00": 1},
        [["\ud800"]],
        {"a": {"b\0": {}}},
        2**53,
        [-(2**53)],
        10**400,
        [1, {"n": 2**64}],
    ],
    "max_lifetime_seconds": ["60", True, 0, -1, 1.5, 366 * 86400 + 1, 10**30, []],
    "reacquire": ["true", "", 0, 1, None, [], {}],
}

TOKENS: list[Any] = ["1", True, 1.5, 0, -1, 2**53, 10**30, None, [], {}]

# In a query, percent-encoded.
QUERY_TOKENS = ["", "abc", "1.5", "1e3", "%2B1", "0", "-1", "--1", "-", "9007199254740992", "9" * 30, "%D9%A1", "1%00"]
QUERY_LIMITS = ["", "0", "201", "-1", "abc", "1.5", "1e1", "9" * 30, "%00", "10%20", "true", "0x10", "%C2%B2"]
CURSORS = ["", "abc", "-1", "1.5", str(2**63), "9" * 30, "x" * 201, "%00", "%D9%A1", "lease_1", "1,2"]
QUERY_NAMES = ["", "%20", "x" * 201, "a%00b", "%00", "a%0Ab", "%7F", "%E2%80%AE", "%FF", "%ED%A0%80", "%C3"]


def acquire(**members: Any) -> dict[str, Any]:
    return {"resource_type": "deploy", "resource_id": "x", "ttl_seconds": 60, **members}


def without(body: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key != name}


def cases_of_acquire() -> dict[str, Case]:
    cases = {
        f"not JSON {index} {text[:12]!r}": Case("POST", "leases", text, wrong="body")
        for index, text in enumerate(NOT_JSON)
    }
    for name, values in WRONG_MEMBERS.items():
        for index, value in enumerate(values):
            cases[f"{name} {index}"] = Case("POST", "leases", acquire(**{name: value}), wrong=name)
    for name in ("resource_type", "resource_id", "ttl_seconds"):
        cases[f"{name} is missing"] = Case("POST", "leases", without(acquire(), name), wrong=name)
    for reserved in ("task", "slot"):
        cases[f"{reserved} is reserved"] = Case(
            "POST", "leases", acquire(resource_type=reserved), wrong="resource_type"
        )
    cases |= {
        "an exponent for an integer": Case("POST", "leases", raw(ttl_seconds="1e3"), wrong="ttl_seconds"),
        "a fraction of nothing": Case("POST", "leases", raw(ttl_seconds="60.0"), wrong="ttl_seconds"),
        "a number beyond a double": Case("POST", "leases", raw(payload="1e400"), wrong="payload"),
        "a nested number beyond a double": Case("POST", "leases", raw(payload='{"a": [-1e400]}'), wrong="payload"),
        "a member twice": Case("POST", "leases", raw()[:-1] + b', "ttl_seconds": 70}', wrong="ttl_seconds"),
        "a nested member twice": Case("POST", "leases", raw(payload='{"deep": {"a": 1, "a": 2}}'), wrong="a"),
        "an escaped member twice": Case(
            "POST", "leases", raw()[:-1] + b', "ttl\\u005fseconds": 70}', wrong="ttl_seconds"
        ),
        "a lone surrogate twice": Case("POST", "leases", b'{"\\ud800": 1, "\\ud800": 2}', wrong="\\ud800"),
        "an escaped NUL": Case("POST", "leases", raw(resource_id='"a\\u0000"'), wrong="resource_id"),
        "an escaped surrogate": Case("POST", "leases", raw(resource_id='"\\ud800"'), wrong="resource_id"),
        "swapped surrogates": Case("POST", "leases", raw(resource_id='"\\udc00\\ud800"'), wrong="resource_id"),
        "an unknown member": Case("POST", "leases", acquire(ttl=60), wrong="ttl"),
        "an unknown member of NUL": Case("POST", "leases", acquire(**{"\0": 1}), wrong="\0"),
        "an unknown member of a surrogate": Case("POST", "leases", acquire(**{"\ud800": 1}), wrong="\\ud800"),
        "a member named to death": Case("POST", "leases", acquire(**{"x" * 5000: 1}), wrong="x" * 200),
        "a member in capitals": Case("POST", "leases", acquire(TTL_SECONDS=60), wrong="TTL_SECONDS"),
        "a member of another language": Case("POST", "leases", acquire(__proto__={}), wrong="__proto__"),
        "nothing": Case("POST", "leases", b"", wrong="resource_type"),
        "an empty object": Case("POST", "leases", {}, wrong="ttl_seconds"),
        "an unknown parameter": Case("POST", "leases?force=true", acquire(), wrong="force"),
        "a member as a parameter": Case("POST", "leases?ttl_seconds=60", acquire(), wrong="ttl_seconds"),
        "a body over a mebibyte": Case("POST", "leases", b" " * (2**20 + 1), 413),
        "a payload over a mebibyte": Case("POST", "leases", acquire(payload="x" * 2**20), 413),
    }
    return cases


def cases_of_media_types() -> dict[str, Case]:
    unsupported = [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "json",
        "application/jsonx",
        "text/json",
        "image/é",
        "a" * 5000,
    ]
    cases = {
        f"media type {media_type[:40]}": Case("POST", "leases", acquire(), 415, headers={"Content-Type": media_type})
        for media_type in unsupported
    }
    for charset in ("rot13", "hex", "base64", "utf-7", "nonsense", "utf-16", "idna", "unicode_escape"):
        headers = {"Content-Type": f"application/json; charset={charset}"}
        cases[f"charset {charset}"] = Case("POST", "leases?%FF=%FF", acquire(), wrong=None, headers=headers)
    return cases


def cases_of_verbs() -> dict[str, Case]:
    beat, force = "leases/{lease}/heartbeat", "leases/{lease}/force-release"
    cases: dict[str, Case] = {}
    for index, token in enumerate(TOKENS):
        cases[f"heartbeat token {index}"] = Case("POST", beat, {"fencing_token": token}, wrong="fencing_token")
        cases[f"force token {index}"] = Case(
            "POST", force, {"fencing_token": token, "reason": "x"}, wrong="fencing_token"
        )
        cases[f"fence token {index}"] = Case(
            "POST",
            "fence/check",
            {"resource_type": "a", "resource_id": "b", "fencing_token": token},
            wrong="fencing_token",
        )
        cases[f"batch token {index}"] = Case(
            "POST",
            "leases/heartbeats",
            {"leases": [{"lease_id": "x", "fencing_token": token}]},
            wrong="leases.0.fencing_token",
        )
    for index, ttl in enumerate(["60", True, 10.5, 9, 86_401, 0, -1, 10**30, [], {}]):
        cases[f"heartbeat ttl {index}"] = Case(
            "POST", beat, {"fencing_token": TOKEN, "ttl_seconds": ttl}, wrong="ttl_seconds"
        )
    for index, reason in enumerate(["", "x" * 4001, 1, None, "a\0", "\ud800", []]):
        cases[f"force reason {index}"] = Case("POST", force, {"fencing_token": TOKEN, "reason": reason}, wrong="reason")
    for index, leases in enumerate([[], None, {}, "x", 1, [{"lease_id": "x", "fencing_token": 1}] * 201]):
        cases[f"batch {index}"] = Case("POST", "leases/heartbeats", {"leases": leases}, wrong="leases")
    for index, item in enumerate([1, None, [], "lease_x"]):
        cases[f"batch item {index}"] = Case("POST", "leases/heartbeats", {"leases": [item]}, wrong="leases.0")
    for index, lease_id in enumerate(["", 1, None, "x" * 201, "a\0", "\ud800"]):
        item = {"lease_id": lease_id, "fencing_token": 1}
        cases[f"batch lease {index}"] = Case("POST", "leases/heartbeats", {"leases": [item]}, wrong="leases.0.lease_id")
    cases |= {
        "batch item with more": Case(
            "POST",
            "leases/heartbeats",
            {"leases": [{"lease_id": "x", "fencing_token": 1, "ttl_seconds": 60}]},
            wrong="leases.0.ttl_seconds",
        ),
        "heartbeat with more": Case("POST", beat, {"fencing_token": 1, "holder": "x"}, wrong="holder"),
        "heartbeat with a parameter": Case(
            "POST", beat + "?fencing_token=1", {"fencing_token": 1}, wrong="fencing_token"
        ),
        "force without a reason": Case("POST", force, {"fencing_token": 1}, wrong="reason"),
        "reap by id": Case("POST", "leases/reap", {"lease_id": "x"}, wrong="lease_id"),
        "reconcile with a member": Case("POST", "leases/reconcile", {"holder": "x"}, wrong="holder"),
        "reconcile with a parameter": Case("POST", "leases/reconcile?holder=x", {}, wrong="holder"),
        "reconcile with an array": Case("POST", "leases/reconcile", b"[]", wrong="body"),
        "fence with more": Case(
            "POST", "fence/check", {"resource_type": "a", "resource_id": "b", "fencing_token": 1, "x": 1}, wrong="x"
        ),
        "release with a body": Case("DELETE", "leases/{lease}", {"fencing_token": 1}, wrong="fencing_token"),
        "show with a parameter": Case("GET", "leases/{lease}?fields=all", wrong="fields"),
        "show with a body": Case("GET", "leases/{lease}", {"fields": "all"}, wrong="fields"),
        "reaped with a filter": Case("GET", "leases/reaped?holder=x", wrong="holder"),
        "status twice": Case(
            "GET", "leases/status?resource_type=a&resource_type=b&resource_id=c", wrong="resource_type"
        ),
        "status of nothing": Case("GET", "leases/status", wrong="resource_id"),
        "status with more": Case("GET", "leases/status?resource_type=a&resource_id=b&verbose=1", wrong="verbose"),
        "a state that is none": Case("GET", "leases?state=stolen", wrong="state"),
        "a parameter without a name": Case("GET", "leases?=x", wrong="body"),
        "a thousand parameters": Case("GET", "leases?" + "a=1&" * 101, wrong="query"),
    }
    for index, value in enumerate(QUERY_TOKENS):
        cases[f"release token {index}"] = Case(
            "DELETE", f"leases/{{lease}}?fencing_token={value}", wrong="fencing_token"
        )
    for index, value in enumerate(QUERY_NAMES):
        cases[f"status type {index}"] = Case(
            "GET", f"leases/status?resource_type={value}&resource_id=a", wrong="resource_type"
        )
        cases[f"list id {index}"] = Case("GET", f"leases?resource_id={value}", wrong="resource_id")
        cases[f"reap type {index}"] = Case(
            "POST",
            "leases/reap",
            {"resource_type": ["\0", "", " ", 1, True, None][index % 6], "resource_id": "a"},
            wrong="resource_type",
        )
    for value in ["", "x" * 129, "a%00", "%FF"]:
        cases[f"list holder {value[:9]}"] = Case("GET", f"leases?holder={value}", wrong="holder")
    return cases


def cases_of_lists() -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for path in ("leases", "leases/reaped", "keys", "principals", "events"):
        for value in QUERY_LIMITS:
            cases[f"{path} limit {value[:9]}"] = Case("GET", f"{path}?limit={value}", wrong="limit")
        for value in CURSORS:
            cases[f"{path} after {value[:9]}"] = Case("GET", f"{path}?after={value}", wrong="after")
        cases[f"{path} unknown"] = Case("GET", f"{path}?sort=asc", wrong="sort")
        cases[f"{path} twice"] = Case("GET", f"{path}?limit=1&limit=1", wrong="limit")
    for value in ["lease", "lease.acquired,nonsense", "a%00", "x" * 1001, "*", "%FF"]:
        cases[f"event types {value[:20]}"] = Case("GET", f"events?types={value}", wrong="types")
    for value in ["noslash", "/a", "a/", "/", "a/b%00", "x" * 402, "a/%FF"]:
        cases[f"event resource {value[:9]}"] = Case("GET", f"events?resource={value}", wrong="resource")
    return cases


def cases_of_identity() -> dict[str, Case]:
    cases: dict[str, Case] = {}
    handles = ["", " ", "a b", "-a", "a\n", "a/b", "x" * 129, "é", "a\0", "\ud800", 1, True, None, []]
    for index, handle in enumerate(handles):
        cases[f"principal handle {index}"] = Case(
            "POST", "principals", {"handle": handle, "kind": "agent"}, wrong="handle"
        )
        cases[f"key principal {index}"] = Case("POST", "keys", {"principal": handle}, wrong="principal")
    for index, kind in enumerate(["", "robot", "Agent", 1, None, []]):
        cases[f"principal kind {index}"] = Case("POST", "principals", {"handle": "a", "kind": kind}, wrong="kind")
        cases[f"key kind {index}"] = Case("POST", "keys", {"principal": "a", "kind": kind}, wrong="kind")
    for index, name in enumerate(["x" * 201, "a\0", "\ud800", 1, []]):
        cases[f"display name {index}"] = Case(
            "POST", "principals", {"handle": "a", "kind": "agent", "display_name": name}, wrong="display_name"
        )
        cases[f"key label {index}"] = Case("POST", "keys", {"principal": "a", "label": name}, wrong="label")
    rings: list[tuple[Any, str]] = [
        ([], "rings"),
        ([1, 1, 1, 1], "rings"),
        ("1", "rings"),
        (1, "rings"),
        ({}, "rings"),
        (None, "rings"),
        ([0], "rings.0"),
        ([4], "rings.0"),
        (["1"], "rings.0"),
        ([True], "rings.0"),
        ([1.0], "rings.0"),
        ([1, None], "rings.1"),
        ([10**30], "rings.0"),
    ]
    for index, (value, wrong) in enumerate(rings):
        cases[f"key rings {index}"] = Case("POST", "keys", {"principal": "a", "rings": value}, wrong=wrong)
    patterns: list[Any] = [
        "",
        "abc",
        "^abc",
        "abc$",
        "^a\\$",
        "^($",
        "^[$",
        "^*$",
        "^(?P<a$",
        "^a{999999999999}$",
        "^" + "a" * 199 + "$",
        "^a\0$",
        "^\ud800$",
        "^" + "(" * 150 + "$",
        1,
        None,
        [],
    ]
    for index, pattern in enumerate(patterns):
        cases[f"key pattern {index}"] = Case(
            "POST", "keys", {"principal": "a", "holder_pattern": pattern}, wrong="holder_pattern"
        )
    times: list[Any] = [
        "",
        "soon",
        "2020-01-01T00:00:00Z",
        "2999-01-01T00:00:00",
        "2999-01-01",
        "2999-13-01T00:00:00Z",
        "0001-01-01T00:00:00+23:59",
        "9999-12-31T23:59:59-23:59",
        "2999-01-01T00:00:00+99:99",
        "2999-01-01\ud80000:00:00Z",
        4102444800,
        1e18,
        True,
        [],
        {},
    ]
    for index, at in enumerate(times):
        cases[f"key expiry {index}"] = Case("POST", "keys", {"principal": "a", "expires_at": at}, wrong="expires_at")
    for index, overlap in enumerate([-1, 86_401, "60", True, 1.5, None, 10**30]):
        cases[f"overlap {index}"] = Case(
            "POST", "keys/{key}/rotate", {"overlap_seconds": overlap}, wrong="overlap_seconds"
        )
    cases |= {
        "principal without a kind": Case("POST", "principals", {"handle": "a"}, wrong="kind"),
        "key without a principal": Case("POST", "keys", {}, wrong="principal"),
        "key with its secret": Case("POST", "keys", {"principal": "a", "api_key": "lh_x"}, wrong="api_key"),
        "retire with a member": Case("POST", "principals/teammate/retire", {"reason": "x"}, wrong="reason"),
        "revoke with a parameter": Case("DELETE", "keys/{key}?force=1", wrong="force"),
        "revoke with a body": Case("DELETE", "keys/{key}", {"force": True}, wrong="force"),
        "whoami with a parameter": Case("GET", "whoami?verbose=1", wrong="verbose"),
    }
    return cases


PATHS = [
    "%00",
    "%FF",
    "%ED%A0%80",
    "%",
    "%zz",
    "..%2F..%2Fetc",
    "%2E%2E",
    "x" * 5000,
    "lease_",
    "lease_" + "g" * 32,
    "lease_" + "0" * 31,
    "lease_" + "%00" * 32,
    "lease_" + "%EF%BC%91" * 32,
    "%0A",
    "%7B%7D",
    "key_" + "0" * 32,
    "a;b",
    "a:b",
    "'%20OR%201=1",
    "%F0%9F%92%A3",
    "null",
]


def cases_of_paths() -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for index, name in enumerate(PATHS):
        cases[f"show {index}"] = Case("GET", f"leases/{name}", status=404)
        cases[f"heartbeat of {index}"] = Case("POST", f"leases/{name}/heartbeat", {"fencing_token": 1}, 404)
        cases[f"release {index}"] = Case("DELETE", f"leases/{name}", status=404)
        cases[f"revoke {index}"] = Case("DELETE", f"keys/{name.replace('key_', 'lease_')}", status=404)
        cases[f"rotate {index}"] = Case("POST", f"keys/{name}/rotate", {}, 404)
        cases[f"retire {index}"] = Case("POST", f"principals/{name}/retire", {}, 404)
    for path in (
        "",
        "leases/",
        "nothing",
        "leases/a/b",
        "leases//heartbeat",
        "keys/",
        "%00",
        "%FF",
        "whoami/x",
        "LEASES",
    ):
        cases[f"no such address {path}"] = Case("GET", path, status=404)
    for method in ("PUT", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "X" * 100):
        cases[f"method {method[:9]}"] = Case(method, "leases", status=405)
    return cases


def cases_of_idempotency_keys() -> dict[str, Case]:
    illegal = ["", "x" * 201, "é", "\x01", "a\x7f", "a\tb", "\x80"]
    return {
        f"idempotency key {index}": Case(
            "POST", "leases", acquire(), wrong="idempotency_key", headers={"Idempotency-Key": key}
        )
        for index, key in enumerate(illegal)
    } | {
        "idempotency key and deep nesting": Case(
            "POST", "leases", acquire(payload=nested(400)), wrong="payload", headers={"Idempotency-Key": "deep"}
        ),
        "idempotency key and no JSON": Case(
            "POST", "leases", b"[" * 100_000, wrong="body", headers={"Idempotency-Key": "deep"}
        ),
        "idempotency key and a surrogate": Case(
            "POST", "leases", acquire(resource_id="\ud800"), wrong="resource_id", headers={"Idempotency-Key": "x"}
        ),
    }


TABLES: dict[str, dict[str, Case]] = {
    "acquire": cases_of_acquire(),
    "media types": cases_of_media_types(),
    "verbs": cases_of_verbs(),
    "lists": cases_of_lists(),
    "identity": cases_of_identity(),
    "paths": cases_of_paths(),
    "idempotency keys": cases_of_idempotency_keys(),
}


def sent(caster: Caster, case: Case) -> Any:
    body = case.body
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {caster.secret}", **case.headers}
    return wsgi.call(case.method, f"/v1/{case.path}", body or b"", headers)


@pytest.mark.parametrize("table", TABLES)
def test_bad_input_is_refused_and_named(table: str, operator: Caster, teammate: Caster) -> None:
    lease, key = operator.acquire("bad-input").json()["data"]["lease_id"], teammate.caller.key_id
    wrong = {}
    for name, case in TABLES[table].items():
        with transaction.atomic():
            path = case.path.replace("{lease}", lease).replace("{key}", key)
            response = sent(operator, replace(case, path=path))
            transaction.set_rollback(True)
        if fault := fault_of(case, response):
            wrong[name] = fault
    assert wrong == {}


def fault_of(case: Case, response: Any) -> str | None:
    """What is wrong with the refusal."""
    if response.status_code != case.status or response.headers["Content-Type"] != "application/json":
        return f"answered {response.status_code}: {response.content[:300]!r}"
    error = response.json()["error"]
    if not (error["code"] and error["message"]):
        return "has no code or no message"
    if case.status != 400:
        return None
    fields = error["fields"]
    if error["code"] != "VALIDATION_ERROR" or not fields:
        return f"is {error}"
    if not all(isinstance(text, str) and text for text in fields.values()):
        return f"does not say what is wrong: {fields}"
    if any("is not valid" in text or "should" in text for text in fields.values()):
        return f"is not said in a sentence of the house: {fields}"
    return None if case.wrong in (None, *fields) else f"does not name {case.wrong}: {fields}"


def test_the_table_is_long_enough() -> None:
    assert sum(map(len, TABLES.values())) >= 150


@pytest.mark.parametrize("garbage", PATHS)
def test_garbage_for_every_name_is_a_refusal_at_every_address(operator: Caster, garbage: str) -> None:
    names = Names(*([garbage, 1] + [garbage] * (len(fields(Names)) - 2)))
    wrong = {}
    for name, sample in SAMPLES.items():
        with transaction.atomic():
            response = sent(operator, Case(sample.method, sample.path(names), sample.body(names)))
            transaction.set_rollback(True)
        if response.status_code == 204 or response.headers["Content-Type"].startswith("text/event-stream"):
            # Nothing to claim; nothing to tell yet.
            continue
        if response.status_code >= 500 or response.headers["Content-Type"] != "application/json":
            wrong[name] = f"{response.status_code}: {response.content[:300]!r}"
        elif response.status_code >= 400 and set(response.json()) != {"error"}:
            wrong[name] = f"{response.content[:300]!r}"
    assert wrong == {}


AUTHORIZATIONS = [
    "",
    "Bearer",
    "Bearer ",
    "Basic YTpi",
    "Token lh_x",
    "Bearer lh_x",
    f"Bearer lh_{'0' * 8}_{'0' * 49}",
    "Bearer é",
    "Bearer \x00",
    "x" * 100_000,
    "Bearer {secret}x",
    "Bearer {secret} {secret}",
    "Bearer\t{secret}",
    "{secret}",
    "Bearer,{secret}",
]


@pytest.mark.parametrize("authorization", AUTHORIZATIONS)
@pytest.mark.parametrize("path", ["whoami", "leases"])
def test_a_malformed_authorization_is_unauthenticated(agent: Caster, authorization: str, path: str) -> None:
    response = agent.request("GET", path, Authorization=authorization.replace("{secret}", agent.secret))
    assert (response.status_code, response.json()["error"]["code"]) == (401, "UNAUTHENTICATED")
    assert response.headers["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.parametrize(
    "body",
    [
        acquire(resource_id="x" * 200, resource_type="é" * 200),
        acquire(purpose="x" * 4000, holder="x" * 128),
        acquire(payload=nested(20)),
        acquire(payload="x" * (KIB64 - 2)),
        acquire(payload={"n": [2**53 - 1, -(2**53 - 1), 1e22], "t": "💣 \n\t", "": {"": []}}),
        acquire(payload=None, purpose=None, holder=None, max_lifetime_seconds=None),
        acquire(ttl_seconds=10, max_lifetime_seconds=1),
        acquire(ttl_seconds=86_400, reacquire=False, purpose="line\n\tline"),
    ],
)
def test_what_is_just_within_the_limits_is_taken(agent: Caster, body: dict[str, Any]) -> None:
    response = agent.post("leases", body)
    assert response.status_code == 201, response.content[:500]
    shown = agent.get(f"leases/{response.json()['data']['lease_id']}").json()["data"]
    for name in ("resource_type", "resource_id", "purpose", "payload"):
        assert shown[name] == body.get(name)


@pytest.mark.parametrize(
    "media_type", ["application/json", "application/json; charset=utf-8", "APPLICATION/JSON", "application/vnd.x+json"]
)
def test_json_by_any_of_its_names_is_taken(agent: Caster, media_type: str) -> None:
    assert (
        agent.request("POST", "leases", json.dumps(acquire()).encode(), **{"Content-Type": media_type}).status_code
        == 201
    )


HOLDERS = ["a\0b", "\ud800", "a\nb", "x" * 129]


@pytest.mark.parametrize("holder", HOLDERS)
def test_even_the_widest_fence_lets_no_unstorable_holder_through(organization: Any, holder: str) -> None:
    anybody = cast(organization, "anybody", holder_pattern=r"^[\s\S]*$")
    response = anybody.acquire(holder=holder)
    assert response.status_code == 400
    assert "holder" in response.json()["error"]["fields"]
