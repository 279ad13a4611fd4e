"""The worst input through a real web server, byte for byte."""

import json
import re
from typing import Any

import pytest

from tests.api.conftest import Server
from tests.conftest import Caster
from tests.wsgi import call

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.processes]
MIB = 2**20


def request(
    caster: Caster,
    body: bytes = b"",
    *,
    line: bytes = b"POST /v1/leases",
    headers: bytes = b"",
    length: bytes | None = None,
) -> bytes:
    if length is None:
        length = b"Content-Length: %d\r\n" % len(body)
    return (
        line + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        b"Authorization: Bearer " + caster.secret.encode() + b"\r\nContent-Type: application/json\r\n"
        + length + headers + b"\r\n" + body
    )  # fmt: skip


def chunked(body: bytes, size: int = 1000) -> bytes:
    chunks = (body[start : start + size] for start in range(0, len(body), size))
    return b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


IN_CHUNKS = b"Transfer-Encoding: chunked\r\n"
ACQUIRE = b'{"resource_type": "deploy", "resource_id": "x", "ttl_seconds": 60}'


def parts(answered: bytes) -> tuple[int, dict[str, str], Any]:
    """Status, headers and body of the last answer (a 100 Continue may come before)."""
    head, _, body = answered[answered.rindex(b"HTTP/1.1 ") :].partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return int(status.split()[1]), headers, json.loads(body) if body else None


CASES: dict[str, Any] = {
    "nesting": (lambda c: request(c, b"[" * 500_000 + b"]" * 500_000), 400),
    "nested objects": (lambda c: request(c, b'{"a":' * 150_000), 400),
    "nested payload": (lambda c: request(c, ACQUIRE[:-1] + b', "payload": ' + b"[" * 900 + b"]" * 900 + b"}"), 400),
    "NUL": (lambda c: request(c, ACQUIRE.replace(b'"x"', b'"\\u0000"')), 400),
    "a raw NUL": (lambda c: request(c, ACQUIRE.replace(b"x", b"\x00")), 400),
    "a lone surrogate": (lambda c: request(c, ACQUIRE.replace(b'"x"', b'"\\ud800"')), 400),
    "a raw surrogate": (lambda c: request(c, ACQUIRE.replace(b"x", b"\xed\xa0\x80")), 400),
    "bad UTF-8": (lambda c: request(c, ACQUIRE.replace(b"x", b"\xff\xfe")), 400),
    "a byte order mark": (lambda c: request(c, b"\xef\xbb\xbf" + ACQUIRE), 400),
    "a huge integer": (lambda c: request(c, ACQUIRE.replace(b"60", b"9" * 100_000)), 400),
    "NaN": (lambda c: request(c, ACQUIRE.replace(b"60", b"NaN")), 400),
    "a member twice": (lambda c: request(c, ACQUIRE[:-1] + b', "ttl_seconds": 1}'), 400),
    "no body": (lambda c: request(c), 400),
    "neither body nor length": (lambda c: request(c, length=b""), 400),
    "a body just over a mebibyte": (lambda c: request(c, b" " * (MIB + 1)), 413),
    "a declared gigabyte": (lambda c: request(c, b"{}", length=b"Content-Length: 1073741824\r\n"), 413),
    "in chunks": (lambda c: request(c, chunked(ACQUIRE, 7), length=IN_CHUNKS), 201),
    "no JSON in chunks": (lambda c: request(c, chunked(b"[" * 100_000), length=IN_CHUNKS), 400),
    "over a mebibyte in chunks": (lambda c: request(c, chunked(b" " * (2 * MIB), 50_000), length=IN_CHUNKS), 413),
    "surplus in chunks": (lambda c: request(c, chunked(b'{"a": 1}'), line=b"GET /v1/whoami", length=IN_CHUNKS), 400),
    "a charset that is none": (
        lambda c: request(c, ACQUIRE, line=b"POST /v1/leases?%FF").replace(b"/json", b"/json; charset=hex"),
        400,
    ),
    "a parameter in a charset that is none": (
        lambda c: request(c, ACQUIRE).replace(b"/json", b"/json; a*=bogus'en'x"),
        201,
    ),
    "a parameter that its charset does not take": (
        lambda c: request(c, ACQUIRE.replace(b'"x"', b'"y"')).replace(b"/json", b"/json; a*=idna''%ff%ff"),
        201,
    ),
    "form data": (lambda c: request(c, ACQUIRE).replace(b"application/json", b"multipart/form-data; boundary=x"), 415),
    # The web server leaves out what is no text, and no media type is JSON.
    "a media type of bytes": (lambda c: request(c, ACQUIRE).replace(b"application/json", b"\xff\xfe"), None),
    "a path of NUL": (lambda c: request(c, line=b"GET /v1/leases/%00"), 404),
    "a path of bytes": (lambda c: request(c, line=b"GET /v1/leases/%FF%ED%A0%80"), 404),
    "a broken escape": (lambda c: request(c, line=b"GET /v1/leases/%zz%"), 404),
    "a path out of the tree": (lambda c: request(c, line=b"GET /v1/leases/..%2f..%2f..%2fetc%2fpasswd"), 404),
    "a query of bytes": (lambda c: request(c, line=b"GET /v1/leases?holder=%FF"), 400),
    "a query of NUL": (lambda c: request(c, line=b"GET /v1/leases?holder=%00"), 400),
    "many parameters": (lambda c: request(c, line=b"GET /v1/leases?" + b"&".join([b"a=1"] * 5000)), 400),
    "an unknown method": (lambda c: request(c, line=b"BREW /v1/leases"), 405),
    "bytes for a key": (lambda c: request(c, ACQUIRE).replace(b"Bearer ", b"Bearer \xff\xfe"), 401),
    "two keys": (lambda c: request(c, ACQUIRE, headers=b"Authorization: Bearer lh_x\r\n"), None),
    "bytes for an idempotency key": (lambda c: request(c, ACQUIRE, headers=b"Idempotency-Key: \xff\xfe\r\n"), 400),
    "an empty idempotency key": (lambda c: request(c, ACQUIRE, headers=b"Idempotency-Key:\r\n"), 400),
}  # fmt: skip


def test_the_worst_input_is_refused(server: Server, agent: Caster) -> None:
    wrong = {}
    for name, (made, expected) in CASES.items():
        answered = server.raw(made(agent))
        if fault := fault_of(answered, expected):
            wrong[name] = f"{fault}: {answered[:600]!r}"
    assert wrong == {}


def fault_of(answered: bytes, expected: int | None) -> str | None:
    status, headers, body = parts(answered)
    if status >= 500 or expected not in (None, status):
        return f"answered {status}, not {expected}"
    if headers["content-type"] != "application/json" or not headers["content-length"].isdigit():
        return "has the wrong headers"
    if not re.fullmatch(r"req_[0-9a-f]{32}", headers["x-request-id"]):
        return "does not name its request"
    if status >= 400 and not (set(body) == {"error"} and body["error"]["code"] and body["error"]["message"]):
        return "is no error of ours"
    return None


# What is no HTTP the web server refuses by itself, or hangs up.
NO_HTTP = [
    b"\x00\x00\x00\x00\r\n\r\n",
    b"GET\r\n\r\n",
    b"POST /v1/leases HTTP/1.1\r\nHost: x\r\nContent-Length: nonsense\r\n\r\n{}",
    b"POST /v1/leases HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n{}",
    b"POST /v1/leases HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}}",
    b"POST /v1/leases HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /v1/leases HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: nonsense\r\n\r\n{}",
    b"GET /v1/whoami HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 2_000_000 + b"\r\n\r\n",
    b"GET /" + b"x" * 2_000_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]


def test_what_is_no_http_does_not_bring_the_server_down(server: Server, agent: Caster) -> None:
    for sent in NO_HTTP:
        assert b"HTTP/1.1 5" not in server.raw(sent, break_off=True), sent[:100]
        assert parts(server.raw(request(agent, line=b"GET /v1/whoami")))[0] == 200, sent[:100]


def test_a_body_that_breaks_off_has_no_effect(server: Server, agent: Caster) -> None:
    short = request(agent, ACQUIRE[:-10], length=b"Content-Length: %d\r\n" % len(ACQUIRE))
    answered = server.raw(short, break_off=True)
    assert b"HTTP/1.1 2" not in answered and b"HTTP/1.1 5" not in answered
    answered = server.raw(request(agent, chunked(ACQUIRE)[:-30], length=IN_CHUNKS), break_off=True)
    assert b"HTTP/1.1 2" not in answered and b"HTTP/1.1 5" not in answered
    assert agent.get("leases").json()["data"]["leases"] == []


def test_a_body_that_never_comes_is_not_taken_for_none(server: Server, agent: Caster) -> None:
    put = b"POST /v1/queues/q/tasks"
    for length in (b"Content-Length: 40\r\n", IN_CHUNKS):
        answered = server.raw(request(agent, b"", line=put, length=length), break_off=True)
        assert b"HTTP/1.1 2" not in answered and b"HTTP/1.1 5" not in answered
    assert agent.get("queues").json()["data"]["queues"] == []
    assert parts(server.raw(request(agent, b"", line=put, length=b"")))[0] == 201


def test_head_has_no_body(server: Server, agent: Caster) -> None:
    for line in (b"HEAD /v1/whoami", b"HEAD /v1/nothing", b"HEAD /llms.txt", b"HEAD /v1/schema", b"HEAD /sign-in"):
        head, _, body = server.raw(request(agent, line=line, length=b"")).partition(b"\r\n\r\n")
        assert (body, head[:12] in (b"HTTP/1.1 200", b"HTTP/1.1 404")) == (b"", True), line
        assert int(re.findall(rb"(?i)content-length: (\d+)", head)[0]) > 0


def test_long_addresses_are_not_remembered(server: Server, agent: Caster) -> None:
    from leasehub import wsgi

    remembered = wsgi.view_of.cache_info().currsize
    for number in range(5):
        call("GET", f"/v1/leases/{number}{'x' * 1000}")
    assert wsgi.view_of.cache_info().currsize == remembered
