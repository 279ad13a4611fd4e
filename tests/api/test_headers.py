"""The headers of the answers, as the web server gets them."""

import json
import re
from typing import Any

import pytest

from tests import wsgi
from tests.conftest import Caster
from tests.leases.conftest import Held

pytestmark = pytest.mark.django_db
REQUEST_ID = re.compile(r"req_[0-9a-f]{32}")


def bearer(caster: Caster, **more: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {caster.secret}", **more}


def acquire(caster: Caster, **headers: str) -> wsgi.Answer:
    body = {"resource_type": "deploy", "resource_id": "checkout", "ttl_seconds": 60}
    return wsgi.call("POST", "/v1/leases", json.dumps(body).encode(), bearer(caster, **headers))


@pytest.mark.parametrize(
    ("method", "address", "status"),
    [
        ("GET", "/v1/whoami", 200),
        ("GET", "/v1/leases?limit=x", 400),
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/", 404),
        ("GET", "/v1", 404),
        ("GET", "/v1/leases/lease_x", 404),
        ("PATCH", "/v1/leases", 405),
        ("GET", "/healthz", 200),
        ("GET", "/readyz", 200),
        ("GET", "/v1/schema", 200),
        ("POST", "/v1/schema", 405),
        ("POST", "/v1/docs", 405),
        ("GET", "/v1/docs", 200),
        ("GET", "/nothing", 404),
    ],
)
def test_every_answer_names_its_request(agent: Caster, method: str, address: str, status: int) -> None:
    first, second = (wsgi.call(method, address, headers=bearer(agent)) for _ in range(2))
    assert first.status_code == status
    assert REQUEST_ID.fullmatch(first.headers["X-Request-Id"])
    assert first.headers["X-Request-Id"] != second.headers["X-Request-Id"]
    if address.startswith("/v1") and status >= 400:
        assert set(first.json()) == {"error"}


def test_a_request_id_from_outside_is_not_taken_over(agent: Caster) -> None:
    answer = wsgi.call("GET", "/v1/whoami", headers=bearer(agent, **{"X-Request-Id": "req_mine"}))
    assert REQUEST_ID.fullmatch(answer.headers["X-Request-Id"])


def test_a_failure_of_the_server_is_json_too_and_names_its_request(
    agent: Caster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from leases import queries

    def broken(**_: Any) -> Any:
        raise RuntimeError(f"broken for {agent.secret}")

    monkeypatch.setattr(queries, "visible_leases", broken)
    answer = wsgi.call("GET", "/v1/leases", headers=bearer(agent))
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "INTERNAL"
    assert REQUEST_ID.fullmatch(answer.headers["X-Request-Id"])
    assert agent.secret not in answer.content.decode()
    assert any("broken for" in (record.exc_text or str(record.exc_info)) for record in caplog.records)


def test_an_unauthenticated_call_is_told_how_to_authenticate() -> None:
    answer = wsgi.call("GET", "/v1/nothing")
    assert "WWW-Authenticate" not in answer.headers
    answer = wsgi.call("GET", "/v1/whoami")
    assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, 'Bearer realm="LeaseHub"')


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("/v1/leases", "GET, HEAD, POST"),
        ("/v1/leases/lease_x", "GET, HEAD, DELETE"),
        ("/v1/leases/lease_x/heartbeat", "POST"),
        ("/v1/whoami", "GET, HEAD"),
    ],
)
def test_a_wrong_method_is_told_the_right_ones_before_any_key(address: str, allowed: str) -> None:
    answer = wsgi.call("PATCH", address)
    assert (answer.status_code, answer.headers["Allow"]) == (405, allowed)
    assert answer.json()["error"]["code"] == "METHOD_NOT_ALLOWED"


def test_retry_after_is_in_whole_seconds_and_never_too_early(agent: Caster, teammate: Caster, clock: Any) -> None:
    acquire(agent)
    clock.move(seconds=30.5)
    answer = acquire(teammate)
    left = answer.json()["error"]["retry_after_ms"]
    assert 28_000 < left <= 29_500
    assert int(answer.headers["Retry-After"]) * 1000 >= left > (int(answer.headers["Retry-After"]) - 1) * 1000
    clock.move(seconds=left / 1000 - 0.3)
    assert acquire(teammate).headers["Retry-After"] == "1"


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "k"}])
def test_what_was_made_has_an_address(agent: Caster, headers: dict[str, str]) -> None:
    for _ in range(2 if headers else 1):
        made = acquire(agent, **headers)
        assert made.status_code == 201
        assert made.headers["Location"] == f"/v1/leases/{made.json()['data']['lease_id']}"
    assert wsgi.call("GET", made.headers["Location"], headers=bearer(agent)).status_code == 200


def test_every_answer_has_its_length_and_is_stored_nowhere(agent: Caster) -> None:
    held = Held.by(agent, "x")
    answers = [
        wsgi.call("GET", "/v1/leases", headers=bearer(agent)),
        wsgi.call("GET", "/v1/nothing"),
        wsgi.call("GET", f"/v1/leases/{held.lease_id}", headers=bearer(agent)),
        wsgi.call("PATCH", "/v1/leases"),
        acquire(agent),
        acquire(agent, **{"Idempotency-Key": "k"}),
        acquire(agent, **{"Idempotency-Key": "k"}),
        wsgi.call("GET", "/v1/whoami"),
    ]
    for answer in answers:
        assert answer.headers["Content-Length"] == str(len(answer.content))
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["Content-Type"] == "application/json"
        assert "Set-Cookie" not in answer.headers
        assert "Vary" not in answer.headers


def test_no_session_speaks_to_the_api(client: Any, admin_user: Any) -> None:
    client.force_login(admin_user)
    assert client.get("/v1/whoami").status_code == 401
    assert client.post("/v1/leases", {}, content_type="application/json").status_code == 401


@pytest.mark.parametrize("accept", ["", "text/html", "image/png", "x" * 1000, "application/xml;q=0.1"])
@pytest.mark.parametrize("address", ["/v1/leases", "/v1/schema", "/v1/docs"])
def test_an_odd_accept_header_is_no_failure(agent: Caster, accept: str, address: str) -> None:
    assert wsgi.call("GET", address, headers=bearer(agent, Accept=accept)).status_code == 200


@pytest.mark.parametrize(
    "address",
    [
        "/v1/whoami",
        "/v1/leases",
        "/v1/leases?limit=x",
        "/v1/leases/lease_x",
        "/v1/nothing",
        "/healthz",
        "/readyz",
        "/v1/schema",
    ],
)
def test_head_is_get_without_its_body(agent: Caster, address: str) -> None:
    whole, head = (wsgi.call(method, address, headers=bearer(agent)) for method in ("GET", "HEAD"))
    assert (head.status_code, head.content) == (whole.status_code, b"")
    assert int(head.headers["Content-Length"]) == len(whole.content) > 0
    assert {*head.headers} == {*whole.headers}


def test_head_is_refused_where_get_is(agent: Caster) -> None:
    refused = wsgi.call("HEAD", "/v1/leases/lease_x/heartbeat", headers=bearer(agent))
    assert (refused.status_code, refused.headers["Allow"], refused.content) == (405, "POST", b"")
    assert wsgi.call("HEAD", "/v1/whoami").status_code == 401
