"""The same key with the same request: the same answer and one effect."""

from datetime import timedelta
from typing import Any

import pytest

from leasehub.events.models import Event
from leasehub.identity.models import ApiKey, Principal, RememberedAnswer
from tests import contract
from tests.api.samples import SAMPLES, Names
from tests.conftest import Caster, cast, error_of
from tests.idempotency.conftest import acquire
from tests.leases.conftest import Held

# A beat is idempotent by nature, and a fence check has no effect.
IGNORE_THE_KEY = {"lease_heartbeat", "lease_heartbeats", "fence_check"}


def without_the_time_left(response: Any) -> Any:
    body = response.json()
    body["data"].pop("expires_in_ms", None)
    return body


def test_a_repeated_request_is_answered_alike_and_done_once(agent: Caster, key: dict[str, str]) -> None:
    first, second = acquire(agent, key), acquire(agent, key)
    assert (first.status_code, second.status_code) == (201, 201)
    assert without_the_time_left(first) == without_the_time_left(second)
    assert first.headers["Location"] == second.headers["Location"]
    assert Event.objects.count() == 1


def test_without_the_key_it_is_done_twice(agent: Caster) -> None:
    assert acquire(agent, {}).json() != acquire(agent, {}).json()
    assert Event.objects.count() == 2


@pytest.mark.parametrize(
    "name",
    [
        operation["operationId"]
        for (method, _), operation in sorted(contract.operations().items())
        if method in ("POST", "PUT")
        and operation["operationId"] not in IGNORE_THE_KEY
        # What needs a task, a slot or an offer to succeed has its replay among its own tests.
        and operation["operationId"].startswith(("lease_", "key_", "principal_"))
    ],
)
def test_every_post_can_be_repeated(organization: Any, name: str, key: dict[str, str], clock: Any) -> None:
    caster = cast(organization, "caster", (1, 2, 3))
    other = cast(organization, "other")
    held = Held.by(other, "theirs", ttl_seconds=10)
    if name != "lease_force_release":
        clock.move(seconds=10)
    names = Names(held.lease_id, held.token, other.caller.key_id, "other", "theirs")
    if name == "principal_create":
        names = Names.of_nothing()
    sample = SAMPLES[name]
    first = sample.send(caster, names, **key)
    assert first.status_code in (200, 201), first.content
    events, keys, principals = Event.objects.count(), ApiKey.objects.count(), Principal.objects.count()
    second = sample.send(caster, names, **key)
    assert second.status_code == first.status_code
    assert without_the_time_left(second) == without_the_time_left(first)
    assert (Event.objects.count(), ApiKey.objects.count(), Principal.objects.count()) == (events, keys, principals)


@pytest.mark.parametrize(
    "other",
    [
        lambda agent, key: acquire(agent, key, resource_id="another"),
        lambda agent, key: acquire(agent, key, purpose="more"),
        lambda agent, key: acquire(agent, key, ttl_seconds=61),
        lambda agent, key: agent.post("leases/reap", {"resource_type": "deploy", "resource_id": "checkout"}, **key),
        lambda agent, key: agent.post("leases/reconcile", {}, **key),
    ],
    ids=["another resource", "another member", "another number", "another route", "another route without a body"],
)
def test_the_same_key_for_another_request_is_refused(agent: Caster, key: dict[str, str], other: Any) -> None:
    acquire(agent, key)
    refused = error_of(other(agent, key))
    assert (refused["status"], refused["code"]) == (422, "IDEMPOTENCY_MISMATCH")
    assert Event.objects.count() == 1


def test_members_in_another_order_are_the_same_request(agent: Caster, key: dict[str, str]) -> None:
    first = agent.request("POST", "leases", b'{"resource_type":"a","resource_id":"b","ttl_seconds":60}', **key)
    second = agent.request("POST", "leases", b' {"ttl_seconds": 60, "resource_id": "b", "resource_type": "a"}', **key)
    assert without_the_time_left(first) == without_the_time_left(second)


def test_true_is_not_one(agent: Caster, key: dict[str, str]) -> None:
    assert acquire(agent, key, payload=[1]).status_code == 201
    for other in ([True], [1.0], ["1"], 1):
        assert acquire(agent, key, payload=other).status_code == 422


def test_the_same_key_of_another_principal_is_another_key(
    agent: Caster, teammate: Caster, stranger: Caster, key: dict[str, str]
) -> None:
    granted = acquire(agent, key).json()["data"]
    assert error_of(acquire(teammate, key))["code"] == "CONFLICT"
    assert acquire(teammate, key, resource_id="another").status_code == 201
    foreign = acquire(stranger, key).json()["data"]
    assert foreign["lease_id"] != granted["lease_id"]


def test_another_key_of_the_same_principal_replays(agent: Caster, organization: Any, key: dict[str, str]) -> None:
    first = acquire(agent, key)
    assert without_the_time_left(acquire(cast(organization, "agent"), key)) == without_the_time_left(first)


def test_but_not_without_the_ring(organization: Any, key: dict[str, str]) -> None:
    boss, watcher = cast(organization, "boss", (1, 2, 3)), cast(organization, "boss", (1,))
    assert boss.post("keys", {"principal": "muse"}, **key).status_code == 201
    refused = watcher.post("keys", {"principal": "muse"}, **key)
    assert error_of(refused)["missing_ring"] == 3
    assert b"lh_" not in refused.content


def test_a_refusal_is_not_remembered(agent: Caster, teammate: Caster, key: dict[str, str]) -> None:
    held = Held.by(teammate)
    assert acquire(agent, key).status_code == 409
    assert acquire(agent, key, resource_type="task").status_code == 400
    assert not RememberedAnswer.objects.exists()
    held.release()
    assert acquire(agent, key).status_code == 201
    assert RememberedAnswer.objects.count() == 1


def test_a_replay_says_how_much_time_is_left_now(agent: Caster, key: dict[str, str], clock: Any) -> None:
    start = clock.now()
    clock.freeze(start)
    first = acquire(agent, key).json()["data"]
    assert first["expires_in_ms"] == 60_000
    clock.freeze(start + timedelta(seconds=20))
    assert acquire(agent, key).json()["data"]["expires_in_ms"] == 40_000
    clock.freeze(start + timedelta(seconds=61))
    late = acquire(agent, key)
    assert (late.status_code, late.json()["data"]["expires_in_ms"]) == (201, 0)
    assert late.json()["data"]["lease_id"] == first["lease_id"]


def test_a_replay_of_a_lease_that_has_ended_has_no_time_left(
    agent: Caster, operator: Caster, key: dict[str, str]
) -> None:
    granted = acquire(agent, key).json()["data"]
    Held(agent, "checkout", granted["lease_id"], granted["fencing_token"], "").release()
    assert acquire(agent, key).json()["data"]["expires_in_ms"] == 0
    # And it takes nothing again.
    assert operator.get("leases/status?resource_type=deploy&resource_id=checkout").json()["data"]["state"] == "free"


@pytest.mark.parametrize("name", sorted(IGNORE_THE_KEY))
def test_a_beat_ignores_the_key(organization: Any, key: dict[str, str], clock: Any, name: str) -> None:
    caster = cast(organization, "caster")
    held = Held.by(caster)
    names = Names(held.lease_id, held.token, "", "", "checkout")
    SAMPLES[name].send(caster, names, **key)
    clock.move(seconds=30)
    again = SAMPLES[name].send(caster, names, **key)
    assert again.status_code == 200
    assert not RememberedAnswer.objects.exists()
    if name == "lease_heartbeat":
        assert again.json()["data"]["expires_in_ms"] == 60_000
    assert SAMPLES[name].send(caster, names, **{"Idempotency-Key": "x" * 500}).status_code == 200


def test_a_get_and_a_delete_ignore_the_key(agent: Caster, key: dict[str, str]) -> None:
    held = Held.by(agent)
    assert agent.get("leases", **key).status_code == 200
    assert agent.get("whoami", **key).status_code == 200
    assert agent.delete(f"leases/{held.lease_id}", **key).status_code == 200
    assert not RememberedAnswer.objects.exists()


def test_a_replay_after_a_beat_tells_the_time_that_the_lease_has_left_now(
    agent: Caster, key: dict[str, str], clock: Any
) -> None:
    granted = acquire(agent, key, ttl_seconds=100).json()["data"]
    beat = {"fencing_token": granted["fencing_token"], "ttl_seconds": 10}
    shorter = agent.post(f"leases/{granted['lease_id']}/heartbeat", beat).json()["data"]
    replayed = acquire(agent, key, ttl_seconds=100).json()["data"]
    assert replayed["expires_at"] == shorter["expires_at"]
    assert replayed["expires_in_ms"] <= 10_000


def test_a_key_with_other_rights_is_shown_nothing_that_another_key_was_answered(
    organization: Any, key: dict[str, str]
) -> None:
    full = cast(organization, "boss", (1, 2, 3))
    body = {"principal": "made", "rings": [1, 2, 3]}
    assert full.post("keys", body, **key).status_code == 201
    lesser = cast(organization, "boss", (3,))
    refused = lesser.post("keys", body, **key)
    assert error_of(refused)["code"] == "IDEMPOTENCY_MISMATCH"
    assert b"api_key" not in refused.content
    fenced = cast(organization, "boss", (1, 2), holder_pattern="^zz$")
    lease = {"resource_type": "deploy", "resource_id": "fenced", "ttl_seconds": 60, "holder": "aa"}
    other = {"Idempotency-Key": "another"}
    assert full.post("leases", lease, **other).status_code == 201
    assert error_of(fenced.post("leases", lease, **other))["code"] == "IDEMPOTENCY_MISMATCH"


@pytest.mark.parametrize("depth", range(300, 1100, 7))
def test_a_body_of_any_depth_is_refused_with_the_key_too(agent: Caster, key: dict[str, str], depth: int) -> None:
    nested = "[" * depth + "]" * depth
    body = f'{{"resource_type":"d","resource_id":"r","ttl_seconds":60,"payload":{nested}}}'.encode()
    assert agent.request("POST", "leases", body, **key).status_code == 400
