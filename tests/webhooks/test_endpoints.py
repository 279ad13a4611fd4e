"""Endpoints at the API."""

import base64
from typing import Any

import pytest

from leasehub.events.webhooks import services
from leasehub.events.webhooks.models import WebhookEndpoint
from leasehub.identity.models import Organization
from tests.conftest import Caster, cast, error_of

URL = "https://hooks.example.org/leasehub"


def make(caster: Caster, **members: Any) -> dict[str, Any]:
    response = caster.post("webhooks", {"url": URL, **members})
    assert response.status_code == 201, response.content
    return dict(response.json()["data"])


def test_an_endpoint_is_made_with_a_secret_that_is_shown_once(operator: Caster) -> None:
    response = operator.post("webhooks", {"url": URL, "types": ["task.dead", "lease.reaped"], "description": "pager"})
    made = response.json()["data"]
    assert response.headers["Location"] == f"/v1/webhooks/{made['webhook_id']}"
    assert made["webhook_id"].startswith("whk_") and len(made["webhook_id"]) == 36
    assert made["secret"].startswith("whsec_")
    assert len(base64.b64decode(made["secret"].removeprefix("whsec_"))) == 32
    shown = operator.get(f"webhooks/{made['webhook_id']}").json()["data"]
    assert shown == {name: value for name, value in made.items() if name != "secret"}
    assert (shown["types"], shown["description"]) == (["lease.reaped", "task.dead"], "pager")
    assert (shown["state"], shown["principal"], shown["cursor"]) == ("active", "operator", 0)
    assert operator.get("webhooks").json()["data"] == {"webhooks": [shown], "next": None}
    stored = WebhookEndpoint.objects.get()
    assert made["secret"].encode() not in bytes(stored.sealed_secret)


@pytest.mark.parametrize(
    ("members", "wrong"),
    [
        ({"url": "http://hooks.example.org/"}, "url"),
        ({"url": "https://user:password@hooks.example.org/"}, "url"),
        ({"url": "https://hooks.example.org/#x"}, "url"),
        ({"url": "https://hooks.example.org/" + "x" * 2000}, "url"),
        ({"url": ""}, "url"),
        ({"url": 7}, "url"),
        ({"types": ["lease.acquired", "lease.exploded"]}, "types"),
        ({"types": ["webhook.test"]}, "types"),
        ({"types": "lease.acquired"}, "types"),
        ({"types": ["\ud800"]}, "types"),
        ({"description": "x" * 121}, "description"),
        ({"description": "a\0b"}, "description"),
        ({"secret": "whsec_own"}, "secret"),
    ],
)
def test_what_is_wrong_is_named(members: dict[str, Any], wrong: str, operator: Caster) -> None:
    refused = error_of(operator.post("webhooks", {"url": URL, **members}))
    assert (refused["status"], refused["code"]) == (400, "VALIDATION_ERROR")
    assert list(refused["fields"]) == [wrong]


def test_unknown_types_are_refused_by_name(operator: Caster) -> None:
    refused = error_of(operator.post("webhooks", {"url": URL, "types": ["lease.exploded", "task.dead", "nonsense"]}))
    assert "lease.exploded" in refused["fields"]["types"] and "nonsense" in refused["fields"]["types"]
    assert "task.dead" not in refused["fields"]["types"]


def test_there_are_at_most_so_many(operator: Caster, stranger: Caster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "MOST_ENDPOINTS", 2)
    first = make(operator)
    make(operator)
    refused = error_of(operator.post("webhooks", {"url": URL}))
    assert (refused["status"], refused["code"]) == (429, "QUOTA_EXCEEDED")
    make(stranger)
    operator.delete(f"webhooks/{first['webhook_id']}")
    make(operator)


def test_a_repeated_request_makes_one_endpoint_and_answers_its_secret_again(operator: Caster) -> None:
    headers = {"Idempotency-Key": "once"}
    first = operator.post("webhooks", {"url": URL}, **headers)
    again = operator.post("webhooks", {"url": URL}, **headers)
    assert (again.status_code, again.content) == (201, first.content)
    assert again.headers["Location"] == first.headers["Location"]
    assert WebhookEndpoint.objects.count() == 1
    from leasehub.identity.models import RememberedAnswer

    remembered = RememberedAnswer.objects.get()
    assert remembered.is_secret and first.json()["data"]["secret"].encode() not in bytes(remembered.body or b"")


def test_who_may_not_observe_has_nothing_told(organization: Organization) -> None:
    refused = error_of(cast(organization, "service", (2, 3)).post("webhooks", {"url": URL}))
    assert (refused["status"], refused["code"], refused["missing_ring"]) == (403, "FORBIDDEN", 1)
    make(cast(organization, "observer", (1, 3)))
    assert WebhookEndpoint.objects.count() == 1


def test_a_repeated_rotation_is_one(operator: Caster) -> None:
    made = make(operator)
    path, headers = f"webhooks/{made['webhook_id']}/rotate", {"Idempotency-Key": "once"}
    first = operator.post(path, {}, **headers)
    assert operator.post(path, {}, **headers).content == first.content
    assert first.json()["data"]["secret"] != made["secret"]


def test_pausing_and_resuming_can_be_repeated(operator: Caster) -> None:
    path = f"webhooks/{make(operator)['webhook_id']}"
    for verb, state in (("pause", "paused"), ("pause", "paused"), ("resume", "active"), ("resume", "active")):
        assert operator.post(f"{path}/{verb}").json()["data"]["state"] == state


def test_a_deleted_one_is_gone(operator: Caster) -> None:
    path = f"webhooks/{make(operator)['webhook_id']}"
    assert operator.delete(path).json()["data"]["deleted_at"]
    assert operator.get("webhooks").json()["data"]["webhooks"] == []
    nothing = operator.get("webhooks/whk_" + "0" * 32)
    for response in (operator.get(path), operator.delete(path), operator.get(f"{path}/deliveries")):
        assert (response.status_code, response.content) == (404, nothing.content)
    for verb in ("pause", "resume", "rotate", "test", "replay"):
        body = {"after": 0} if verb == "replay" else {}
        assert operator.post(f"{path}/{verb}", body).status_code == 404


@pytest.mark.parametrize(
    "body", [{}, {"after": -1}, {"after": "1"}, {"after": True}, {"after": 2**53}, {"after": 0, "before": -1}]
)
def test_a_span_that_is_none_is_refused(body: dict[str, Any], operator: Caster) -> None:
    path = f"webhooks/{make(operator)['webhook_id']}/replay"
    assert operator.post(path, body).status_code == 400


@pytest.mark.parametrize("seconds", [-1, 604_801, "60", 1.5])
def test_an_overlap_out_of_bounds_is_refused(seconds: Any, operator: Caster) -> None:
    path = f"webhooks/{make(operator)['webhook_id']}/rotate"
    assert operator.post(path, {"overlap_seconds": seconds}).status_code == 400


def test_the_deliveries_come_in_pages_newest_first(operator: Caster) -> None:
    path = f"webhooks/{make(operator)['webhook_id']}"
    made = [operator.post(f"{path}/test").json()["data"]["delivery_id"] for _ in range(3)]
    first = operator.get(f"{path}/deliveries?limit=2").json()["data"]
    second = operator.get(f"{path}/deliveries?limit=2&after={first['next']}").json()["data"]
    ids = [entry["delivery_id"] for entry in first["deliveries"] + second["deliveries"]]
    assert (ids, second["next"]) == (made[::-1], None)


def test_a_delivery_is_looked_for_at_its_own_endpoint_alone(operator: Caster) -> None:
    one, two = make(operator)["webhook_id"], make(operator)["webhook_id"]
    asked = operator.post(f"webhooks/{one}/test").json()["data"]["delivery_id"]
    assert operator.get(f"webhooks/{one}/deliveries/{asked}").status_code == 200
    assert operator.get(f"webhooks/{two}/deliveries/{asked}").status_code == 404
    assert operator.get(f"webhooks/{one}/deliveries/evt_{asked[4:]}").status_code == 404
