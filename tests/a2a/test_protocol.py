"""JSON-RPC, versions, keys: what the door refuses before a method is asked, and what the card does not offer."""

import json
from typing import Any

import pytest
from django.db import InternalError, OperationalError

from leasehub.a2a import methods, rpc
from leasehub.identity.models import Organization
from tests import wsgi
from tests.a2a.conftest import Agent, sending
from tests.conftest import Caster, cast

pytestmark = pytest.mark.django_db


def posted(agent: Agent, content: bytes, **headers: str) -> tuple[int, dict[str, Any]]:
    response = agent.post(content, **headers)
    assert response.headers["Content-Type"] == "application/json"
    return response.status_code, response.json()


NO_CALLS: list[Any] = [
    (b"", rpc.INVALID_REQUEST, None),
    (b"{", rpc.PARSE_ERROR, None),
    (b"nonsense", rpc.PARSE_ERROR, None),
    (b'{"jsonrpc": NaN}', rpc.PARSE_ERROR, None),
    (b"\xff", rpc.PARSE_ERROR, None),
    (b"[" * 100_000, rpc.INVALID_REQUEST, None),
    (b'{"a":' * 100_000, rpc.PARSE_ERROR, None),
    (b"[]", rpc.INVALID_REQUEST, None),
    (b'[{"jsonrpc": "2.0", "id": 1, "method": "ListTasks"}]', rpc.INVALID_REQUEST, None),
    (b"{}", rpc.INVALID_REQUEST, None),
    (b'{"jsonrpc": "1.0", "id": 1, "method": "ListTasks"}', rpc.INVALID_REQUEST, None),
    (b'{"jsonrpc": "2.0", "method": "ListTasks"}', rpc.INVALID_REQUEST, None),
    (b'{"jsonrpc": "2.0", "id": null, "method": "ListTasks"}', rpc.INVALID_REQUEST, None),
    (b'{"jsonrpc": "2.0", "id": true, "method": "ListTasks"}', rpc.INVALID_REQUEST, None),
    (b'{"jsonrpc": "2.0", "id": {}, "method": "ListTasks"}', rpc.INVALID_REQUEST, None),
    (b'{"jsonrpc": "2.0", "id": 1, "method": 7}', rpc.INVALID_REQUEST, None),
    (b'{"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": [1]}', rpc.INVALID_PARAMS, 1),
    (b'{"jsonrpc": "2.0", "id": 1, "method": "message/send"}', rpc.METHOD_NOT_FOUND, 1),
    (b'{"jsonrpc": "2.0", "id": 1, "method": "__class__"}', rpc.METHOD_NOT_FOUND, 1),
]


def test_what_is_no_call_is_refused(sender: Agent) -> None:
    for content, code, name in NO_CALLS:
        status, answered = posted(sender, content)
        assert (status, answered["error"]["code"], answered["id"]) == (200, code, name), content[:80]


def test_the_answer_has_the_id_of_the_call(sender: Agent) -> None:
    for name in ("seven", "\ud800", 7, 2**60, ""):
        body = json.dumps({"jsonrpc": "2.0", "id": name, "method": "ListTasks"}).encode()
        status, answered = posted(sender, body)
        assert (status, answered["id"]) == (200, name)
        assert answered["result"]["tasks"] == []


def test_what_the_card_does_not_offer_is_unsupported(sender: Agent) -> None:
    for method in methods.STREAMING:
        assert sender.refusal(method, id="x") == (-32004, "UNSUPPORTED_OPERATION")


def test_push_notifications_are_not_supported(sender: Agent) -> None:
    for method in methods.PUSHING:
        assert sender.refusal(method) == (-32003, "PUSH_NOTIFICATION_NOT_SUPPORTED")


def test_a_message_that_wants_push_notifications_is_not_sent(sender: Agent, teammate: Caster) -> None:
    wanted = {"taskPushNotificationConfig": {"url": "https://agent.example/hook"}}
    refused = sender.refusal("SendMessage", **sending(), configuration=wanted)
    assert refused == (-32003, "PUSH_NOTIFICATION_NOT_SUPPORTED")
    assert sender.call("ListTasks")["totalSize"] == 0


OTHER_VERSIONS: list[Any] = ["", "0.3", "0.3.0", "1.1", "1", "2.0", "1.0.0"]


def test_another_version_is_not_supported(agent: Caster) -> None:
    for version in OTHER_VERSIONS:
        assert Agent(agent.secret, version).refusal("ListTasks") == (-32009, "VERSION_NOT_SUPPORTED")


def test_the_version_may_stand_in_the_address(agent: Caster) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ListTasks"}).encode()
    answer = wsgi.call("POST", "/a2a?A2A-Version=1.0", body, {"Authorization": f"Bearer {agent.secret}"})
    assert answer.json()["result"]["totalSize"] == 0


NOBODY: list[Any] = ["", "Bearer", "Bearer lh_nothing", "Basic YTpi"]


def test_nobody_is_told_how_to_authenticate(sender: Agent) -> None:
    for authorization in NOBODY:
        response = sender.post(b"{", Authorization=authorization)
        assert (response.status_code, response.headers["WWW-Authenticate"]) == (401, 'Bearer realm="LeaseHub"')
        assert response.json()["error"]["data"][0]["reason"] == "UNAUTHENTICATED"


def test_a_revoked_key_fails_at_the_next_call(sender: Agent, agent: Caster, operator: Caster) -> None:
    assert sender.call("ListTasks")["tasks"] == []
    operator.delete(f"keys/{agent.caller.key_id}")
    assert sender.post(b"{}").status_code == 401


def test_who_calls_is_told_by_the_key_and_by_nothing_else(sender: Agent, teammate: Caster, agent: Caster) -> None:
    claimed = {"to_principal": "teammate", "from_principal": "teammate", "agent": "teammate"}
    task = sender.send(metadata=claimed)
    assert task["metadata"]["from_principal"] == "agent"
    data = {"from_principal": "teammate"}
    assert sender.refusal("SendMessage", **sending(parts=[{"data": data}])) == (-32602, "from_principal")


def test_a_key_that_only_observes_sends_and_cancels_nothing(organization: Organization, teammate: Caster) -> None:
    watcher = Agent(cast(organization, "watcher", (1,)).secret)
    assert watcher.call("ListTasks")["tasks"] == []
    for method, params in (("SendMessage", sending()), ("CancelTask", {"id": "hoff_" + "0" * 32})):
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        response = watcher.post(json.dumps(body).encode())
        detail = response.json()["error"]["data"][0]
        assert (response.status_code, detail["reason"], detail["metadata"]) == (403, "FORBIDDEN", {"missing_ring": "2"})


def test_a_replay_is_for_keys_of_the_same_rights(
    organization: Organization, sender: Agent, agent: Caster, teammate: Caster
) -> None:
    params = sending(messageId="m-1")
    sender.call("SendMessage", **params)
    narrow = Agent(cast(organization, "agent", (1, 2), holder_pattern="^ci-.*$").secret)
    assert narrow.refusal("SendMessage", **params) == (-32602, "IDEMPOTENCY_MISMATCH")


def test_a_database_that_is_away_or_only_read_is_told_as_such(sender: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    class ReadOnly(Exception):
        sqlstate = "25006"

    read_only = InternalError("cannot execute UPDATE in a read-only transaction")
    read_only.__cause__ = ReadOnly()
    for failure in (OperationalError("the server closed the connection"), read_only):

        def broken(*_: Any, failure: Exception = failure) -> Any:
            raise failure

        monkeypatch.setitem(methods.METHODS, "ListTasks", broken)
        response = sender.post(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ListTasks"}).encode())
        assert (response.status_code, response.headers["Retry-After"]) == (503, "2")
        assert response.json()["error"]["data"][0]["reason"] == "UNAVAILABLE"


def test_only_posting_is_taken(sender: Agent) -> None:
    for method in ("GET", "PUT", "DELETE", "OPTIONS"):
        answer = wsgi.call(method, "/a2a", headers={"Authorization": f"Bearer {sender.secret}"})
        assert (answer.status_code, answer.headers["Allow"]) == (405, "POST")


def test_the_body_is_json_and_not_too_large(sender: Agent, agent: Caster) -> None:
    headers = {"Authorization": f"Bearer {agent.secret}", "A2A-Version": "1.0"}
    large = wsgi.call("POST", "/a2a", b" " * (2**20 + 1), headers)
    assert (large.status_code, large.json()["error"]["data"][0]["reason"]) == (413, "PAYLOAD_TOO_LARGE")
    form = wsgi.call("POST", "/a2a", b"a=1", headers | {"Content-Type": "application/x-www-form-urlencoded"})
    assert form.status_code == 415


def test_the_way_to_the_door_is_the_api_s(agent: Caster) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ListTasks"}).encode()
    headers = {"Authorization": f"Bearer {agent.secret}", "A2A-Version": "1.0"}
    answer = wsgi.call("POST", "/a2a", body, headers)
    assert answer.status_code == 200
    assert "Set-Cookie" not in answer.headers and "Vary" not in answer.headers
    assert answer.headers["X-Request-Id"].startswith("req_")
    lost = wsgi.call("POST", "/a2a/nothing", body, headers)
    assert (lost.status_code, lost.json()["error"]["code"]) == (404, "NOT_FOUND")
