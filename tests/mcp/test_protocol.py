"""The endpoint: both eras, who may call, and whatever anybody sends."""

import json
from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client

import leasehub
from leasehub.identity import services as identity
from leasehub.mcp.server import INSTRUCTIONS
from tests.conftest import Caster, cast
from tests.mcp.conftest import META, MODERN, Session

LEGACY = ["2025-11-25", "2025-06-18", "2025-03-26"]


def test_a_modern_client_discovers_the_server(mine: Session) -> None:
    result = mine.send("server/discover").json()["result"]
    assert result["resultType"] == "complete"
    assert result["supportedVersions"] == [MODERN, *LEGACY]
    assert result["instructions"] == INSTRUCTIONS
    assert len(INSTRUCTIONS) < 1500
    known = result["_meta"]["io.modelcontextprotocol/serverInfo"]
    assert (known["name"], known["version"]) == ("leasehub", leasehub.__version__)


@pytest.mark.parametrize("era", LEGACY)
def test_an_older_client_shakes_hands_without_a_session(agent: Caster, era: str) -> None:
    session = Session(agent, era=era)
    response = session.send(
        "initialize", {"protocolVersion": era, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    )
    assert response.json()["result"]["protocolVersion"] == era
    assert "Mcp-Session-Id" not in response.headers
    assert session.post({"jsonrpc": "2.0", "method": "notifications/initialized"}).status_code == 202
    assert session.send("ping").json()["result"] == {}
    assert session.acquire()["granted"] is True


def test_lists_are_private_and_in_one_order(mine: Session) -> None:
    first, second = (mine.send("tools/list").json()["result"] for _ in range(2))
    assert first == second
    assert (first["cacheScope"], first["ttlMs"] > 0) == ("private", True)


def test_only_post_is_taken(mine: Session) -> None:
    for method in ("get", "delete", "put"):
        response = getattr(Client(headers={"Authorization": f"Bearer {mine.who.secret}"}), method)("/mcp")
        assert (response.status_code, response.headers["Allow"]) == (405, "POST")
        assert "POST" in response.json()["error"]["message"]


@pytest.mark.parametrize("authorization", ["", "Bearer nonsense", "Basic eA==", f"Bearer lh_{'a' * 8}_{'b' * 49}"])
def test_without_a_key_nobody_is_told_anything(db: None, authorization: str) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    headers = {"Authorization": authorization} if authorization else {}
    response = Client(headers=headers).post("/mcp", json.dumps(message), content_type="application/json")
    assert response.status_code == 401
    challenge = response.headers["WWW-Authenticate"]
    assert challenge.startswith("Bearer ")
    assert ("invalid_token" in challenge) == bool(authorization)


@pytest.mark.parametrize("tool", ["lease_acquire", "lease_status", "agent_whoami", "task_claim", "whats_new"])
def test_a_revoked_key_fails_at_the_next_call(mine: Session, tool: str) -> None:
    arguments: dict[str, Any] = {
        "lease_acquire": {"resource_type": "a", "resource_id": "b"},
        "lease_status": {"resource_type": "a", "resource_id": "b"},
        "task_claim": {"queue": "q"},
    }.get(tool, {})
    mine.call(tool, **arguments)
    key = mine.who.principal.keys.get()
    identity.revoke_key(organization=mine.who.principal.organization_id, key=key)
    assert mine.send("tools/call", {"name": tool, "arguments": arguments}).status_code == 401
    assert mine.send("tools/call", {"name": tool, "arguments": {"nonsense": 1}}).status_code == 401
    assert mine.send("tools/list").status_code == 401


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/list", {"cursor": "tools/call"}),
        ("tools/call", {"name": "no_such_tool", "arguments": {}}),
        ("tools/call", {"name": "lease_status", "arguments": "nonsense"}),
        ("tools/call", {"name": "lease_acquire", "arguments": {"nonsense": 1}}),
    ],
)
def test_what_looks_like_a_tools_call_and_is_none_asks_for_the_key_too(
    mine: Session, method: str, params: dict[str, Any]
) -> None:
    """The process remembers the key: no other call was refused before this one."""
    mine.acquire()
    identity.revoke_key(organization=mine.who.principal.organization_id, key=mine.who.principal.keys.get())
    assert mine.send(method, params).status_code == 401


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://localhost:3000", True),
        ("http://127.0.0.1:8787", True),
        ("https://hub.example.org", True),
        ("https://evil.example.org", False),
        ("null", False),
        ("http://[", False),
    ],
)
def test_a_page_from_elsewhere_is_refused(mine: Session, settings: Any, origin: str, allowed: bool) -> None:
    settings.CSRF_TRUSTED_ORIGINS = ["https://hub.example.org"]
    response = mine.post(
        {"jsonrpc": "2.0", "id": 1, "method": "ping"}, Origin=origin, **{"MCP-Protocol-Version": "2025-06-18"}
    )
    assert response.status_code == (200 if allowed else 403)


def error_of(response: Any) -> tuple[int, int]:
    return response.status_code, response.json()["error"]["code"]


def test_what_is_malformed_is_a_protocol_error(mine: Session) -> None:
    params = {"_meta": META}
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": params}
    modern = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/list"}
    assert mine.post(asked, **modern).status_code == 200
    assert error_of(mine.post([asked], **modern)) == (400, -32600)
    assert error_of(mine.post(b"[", **modern)) == (400, -32700)
    assert error_of(mine.post(asked, **{**modern, "MCP-Protocol-Version": "1999-01-01"})) == (400, -32022)
    assert error_of(mine.post(asked, **{**modern, "Mcp-Method": "tools/call"})) == (400, -32020)
    assert error_of(mine.post({**asked, "method": "nothing"}, **{**modern, "Mcp-Method": "nothing"})) == (404, -32601)
    called = {**asked, "method": "tools/call", "params": {**params, "name": "lease_status"}}
    named = {**modern, "Mcp-Method": "tools/call"}
    assert error_of(mine.post(called, **named)) == (400, -32020)
    assert error_of(mine.post(called, **{**named, "Mcp-Name": "agent_whoami"})) == (400, -32020)
    assert error_of(mine.send("tools/call", {"name": "nothing"})) == (200, -32602)
    assert error_of(mine.send("tools/list", {"cursor": "x"})) == (200, -32602)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"null",
        b"[" * 100_000,
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":' + b'{"a":' * 5000 + b"1" + b"}" * 5001,
        b'{"jsonrpc":"2.0","id":' + b"9" * 5000 + b',"method":"ping"}',
        b'{"jsonrpc":"2.0","id":1e400,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":"\\ud800","method":"ping"}',
        b'{"jsonrpc":"2.0","id":null,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":1}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"lease_status","arguments":[]}}',
        b'{"jsonrpc":"2.0","id":"\\u0000","method":"\\u0000"}',
        b" " * 1_100_000,
    ],
)
def test_nothing_that_is_sent_is_a_fault_of_the_server(mine: Session, content: bytes) -> None:
    response = mine.post(content, **{"MCP-Protocol-Version": "2025-06-18"})
    assert response.status_code < 500
    assert "error" in response.json()


def test_an_answer_says_its_length_and_is_not_kept(mine: Session) -> None:
    response = mine.send("tools/list")
    assert int(response.headers["Content-Length"]) == len(response.content)
    assert response.headers["Cache-Control"] == "no-store"


def test_a_fault_is_told_in_band_and_logged(mine: Session, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    def broken(**_: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr("leases.queries.resource", broken)
    refusal = mine.refused("lease_status", resource_type="a", resource_id="b")
    assert refusal["code"] == "INTERNAL"
    assert "broken" not in str(refusal)
    assert "the tool lease_status failed" in caplog.text


def test_a_holder_that_is_none_is_refused_whatever_the_fence_lets_through(organization: Any) -> None:
    wide = cast(organization, "wide", holder_pattern="^.*$")
    for holder in ("h" * 129, " ", "h\t", "\x7f"):
        for tool in ("agent_whoami", "handoff_inbox"):
            refusal = Session(wide, holder).refused(tool)
            assert (refusal["code"], list(refusal["fields"])) == ("VALIDATION_ERROR", ["holder"]), holder
    for holder in ("h" * 129, "\0"):
        refusal = Session(wide).refused("lease_acquire", resource_type="a", resource_id="b", holder=holder)
        assert list(refusal["fields"]) == ["holder"]


# What each tool wants; nothing of it exists, which a tool with a wrong holder must not get to say.
WANTED: dict[str, Any] = {
    "resource_type": "a", "resource_id": "b", "lease_id": "lease_" + "0" * 32, "fencing_token": 1, "queue": "q",
    "task_id": "task_" + "0" * 32, "pool": "p", "request_id": "req_" + "0" * 32, "handoff_id": "hoff_" + "0" * 32,
    "to_principal": "x", "subject_id": "s", "reason": "r", "error": "e",
}  # fmt: skip


def test_every_tool_refuses_a_session_outside_the_fence(organization: Any) -> None:
    fenced = cast(organization, "fenced", (1, 2, 3), holder_pattern="^fenced(-.*)?$")
    outside = Session(fenced, "other")
    tools = outside.tools()
    assert len(tools) > 25
    for name, tool in tools.items():
        arguments = {wanted: WANTED[wanted] for wanted in tool["inputSchema"].get("required", [])}
        refusal = outside.refused(name, **arguments)
        assert (refusal["code"], refusal.get("holder")) == ("FORBIDDEN", "other"), name
        if "holder" in tool["inputSchema"]["properties"]:
            refusal = Session(fenced).refused(name, **arguments, holder="other")
            assert (refusal["code"], refusal.get("holder")) == ("FORBIDDEN", "other"), name
    assert Session(fenced, "fenced-1").call("agent_whoami")["holder"] == "fenced-1"
    # An argument stands over the header.
    assert outside.acquire(holder="fenced-2")["holder"] == "fenced-2"


def test_an_empty_header_counts_as_none(organization: Any) -> None:
    wide = cast(organization, "wide", holder_pattern="^.*$")
    assert Session(wide, "").call("agent_whoami")["holder"] == "wide"
    assert Session(wide, "").acquire()["holder"] == "wide"


def test_who_may_not_hold_as_the_handle_is_told_so(organization: Any) -> None:
    narrow = Session(cast(organization, "narrow", holder_pattern="^other-.*$"))
    who = narrow.call("agent_whoami")
    assert ("holder" in who, "holder_pattern" in who["hint"]) == (False, True)
    assert narrow.refused("lease_acquire", resource_type="a", resource_id="b")["code"] == "FORBIDDEN"


def test_what_was_done_is_answered_for_though_the_notices_cannot_be_had(
    mine: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> None:
        raise OperationalError("away")

    monkeypatch.setattr("leasehub.mcp.notices.told", away)
    assert mine.acquire()["granted"] is True


def test_another_organization_is_like_nothing(mine: Session, stranger: Caster) -> None:
    granted = mine.acquire()
    named = {"lease_id": granted["lease_id"], "fencing_token": granted["fencing_token"]}
    other = Session(stranger)
    foreign = other.refused("lease_heartbeat", **named)
    nothing = other.refused("lease_heartbeat", lease_id="lease_" + "0" * 32, fencing_token=1)
    assert foreign == nothing
    assert other.call("lease_status", resource_type="deploy", resource_id="checkout")["state"] == "free"


def test_no_tool_takes_the_caller_s_agent_project_or_organization(mine: Session) -> None:
    taken = {name for tool in mine.tools().values() for name in tool["inputSchema"]["properties"]}
    assert taken.isdisjoint({"agent", "agent_id", "principal", "project", "organization", "token", "api_key"})
