from typing import Any

import pytest

from handoffs import checkpoints
from handoffs.models import Checkpoint
from tests.conftest import Caster, cast, error_of
from tests.handoffs.conftest import events_of, resolve, sent

PATH = "checkpoints/deploy-41/task_state"


def save(caster: Caster, state: Any, path: str = PATH, **members: Any) -> Any:
    return caster.put(path, {"state": state, **members})


def read(caster: Caster, path: str = PATH) -> Any:
    response = caster.get(path)
    return response.json()["data"] if response.status_code == 200 else response.status_code


def fence(lease: dict[str, Any], resource_id: str = "checkout") -> dict[str, Any]:
    return {"resource_type": "deploy", "resource_id": resource_id, "fencing_token": lease["fencing_token"]}


def test_versions_are_swapped_and_a_late_writer_is_told_the_current_one(agent: Caster) -> None:
    first = save(agent, {"done": 1})
    assert (first.status_code, first.json()["data"]["version"], first.headers["ETag"]) == (201, 1, '"1"')
    second = save(agent, {"done": 2}, expected_version=1)
    assert (second.status_code, second.json()["data"]["version"]) == (200, 2)
    for members in ({"expected_version": 1}, {"expected_version": 0}, {}, {"expected_version": 7}):
        refused = error_of(save(agent, {"done": 3}, **members))
        assert (refused["status"], refused["code"], refused["current_version"]) == (409, "VERSION_CONFLICT", 2)
    assert save(agent, {"done": 3}, expected_version=None).json()["data"]["version"] == 3
    assert read(agent)["state"] == {"done": 3}


def test_if_match_says_the_version_too(agent: Caster) -> None:
    save(agent, 1)
    assert agent.put(PATH, {"state": 2}, **{"If-Match": '"1"'}).status_code == 200
    assert agent.put(PATH, {"state": 3}, **{"If-Match": '"1"'}).status_code == 409
    assert agent.put(PATH, {"state": 3, "expected_version": 1}, **{"If-Match": '"2"'}).status_code == 400
    assert agent.put(PATH, {"state": 3}, **{"If-Match": "W/abc"}).status_code == 400
    assert agent.get(PATH).headers["ETag"] == '"2"'


def test_the_same_state_has_the_same_hash_whatever_the_order_of_its_members(agent: Caster) -> None:
    one = save(agent, {"a": 1, "b": [True, None]}).json()["data"]["state_hash"]
    two = save(agent, {"b": [True, None], "a": 1}, expected_version=1).json()["data"]["state_hash"]
    assert one == two
    assert len(one) == 64


def test_the_last_ten_versions_stay_readable(agent: Caster) -> None:
    for number in range(1, 13):
        save(agent, number, expected_version=None)
    assert read(agent)["versions"] == list(range(3, 13))
    assert read(agent, f"{PATH}?version=3")["state"] == 3
    assert read(agent, f"{PATH}?version=2") == 404
    assert read(agent, f"{PATH}?version=13") == 404
    assert read(agent, f"{PATH}?version=x") == 400


def test_it_is_posted_and_found_by_name_and_by_id(agent: Caster, teammate: Caster) -> None:
    body = {"subject_id": "deploy/41", "kind": "cursor", "state": [1], "ttl_seconds": 60, "run_id": "r1"}
    posted = agent.post("checkpoints", body | {"agent_id": "agent"})
    saved = posted.json()["data"]
    assert posted.status_code == 201
    assert posted.headers["Location"] == f"/v1/checkpoints/{saved['checkpoint_id']}"
    shown = read(agent, f"checkpoints/{saved['checkpoint_id']}")
    assert (
        shown
        == read(agent, "checkpoints?subject_id=deploy/41&kind=cursor")
        == read(agent, "checkpoints/deploy%2F41/cursor")
    )
    assert (shown["state"], shown["run_id"], shown["ttl_seconds"]) == ([1], "r1", 60)
    assert agent.post("checkpoints", body | {"agent_id": "teammate", "expected_version": 1}).status_code == 404
    assert agent.post("checkpoints", body | {"expected_version": 1}).status_code == 200
    assert read(agent, "checkpoints?subject_id=deploy/41&kind=cursor&agent_id=teammate") == 404


@pytest.mark.parametrize(
    "members",
    [
        {"state": None},
        {},
        {"state": "x" * 70_000},
        {"state": "\u0000"},
        {"state": 1, "ttl_seconds": 59},
        {"state": 1, "ttl_seconds": 2_592_001},
        {"state": 1, "expected_version": -1},
        {"state": 1, "expected_version": "1"},
        {"state": 1, "fence": {"resource_type": "deploy"}},
        {"state": 1, "unknown": 1},
    ],
)
def test_what_is_malformed_is_refused(agent: Caster, members: Any) -> None:
    assert agent.put(PATH, members).status_code == 400
    assert read(agent) == 404


def test_it_is_its_principals_alone(agent: Caster, teammate: Caster, stranger: Caster) -> None:
    checkpoint_id = save(agent, "mine").json()["data"]["checkpoint_id"]
    for other in (teammate, stranger):
        assert other.get(PATH).content == other.get("checkpoints/x/y").content
        there, nowhere = (other.get(f"checkpoints/{name}") for name in (checkpoint_id, "ckpt_" + "0" * 32))
        assert (there.status_code, there.content) == (404, nowhere.content)
        assert save(other, "theirs").json()["data"]["version"] == 1
    assert read(agent)["state"] == "mine"


def test_after_its_ttl_it_is_gone_and_its_numbers_go_on(agent: Caster, clock: Any) -> None:
    save(agent, 1, ttl_seconds=60)
    clock.move(seconds=60)
    assert read(agent) == 404
    assert save(agent, 2, expected_version=1).status_code == 409
    assert save(agent, 2, ttl_seconds=60).json()["data"]["version"] == 2
    assert read(agent)["state"] == 2
    clock.move(seconds=60)
    assert checkpoints.prune() == 1
    assert not Checkpoint.objects.exists()
    assert save(agent, 3).json()["data"]["version"] == 1


def test_a_stale_worker_cannot_write_behind_the_fence(
    agent: Caster, teammate: Caster, third: Caster, lease: Any, clock: Any
) -> None:
    assert save(agent, "from the first", fence=fence(lease)).json()["data"]["version"] == 1
    clock.move(seconds=60)
    expired = error_of(save(agent, "late", fence=fence(lease), expected_version=1))
    assert (expired["status"], expired["code"]) == (409, "STALE_TOKEN")
    taken = teammate.acquire().json()["data"]
    for late in (fence(lease), fence(taken), fence(taken, "elsewhere")):
        assert error_of(save(agent, "late", fence=late, expected_version=None))["code"] == "STALE_TOKEN"
    assert save(third, "x", fence=fence(taken), expected_version=None).status_code == 409
    assert read(teammate)["state"] == "from the first"
    assert save(teammate, "from the second", fence=fence(taken), expected_version=1).json()["data"]["version"] == 2
    assert read(agent) == 404
    assert read(third) == 404


def test_what_is_written_with_a_fence_belongs_to_the_resource_from_then_on(
    agent: Caster, teammate: Caster, lease: Any
) -> None:
    save(agent, "private")
    assert save(agent, "shared", fence=fence(lease), expected_version=1).json()["data"]["version"] == 2
    unfenced = error_of(save(agent, "forgot the fence", expected_version=2))
    assert (unfenced["status"], list(unfenced["fields"])) == (400, ["fence"])
    agent.delete(f"leases/{lease['lease_id']}")
    assert read(agent) == 404
    teammate.acquire()
    assert read(teammate)["state"] == "shared"


def test_a_key_does_not_write_for_a_holder_outside_its_fence(agent: Caster) -> None:
    lease = agent.acquire(holder="night-1").json()["data"]
    fenced = cast(agent.principal.organization, "agent", holder_pattern="^day-[0-9]+$")
    assert save(fenced, 1, fence=fence(lease)).status_code == 409
    assert save(agent, 1, fence=fence(lease)).status_code == 201


@pytest.mark.parametrize(("status", "readable"), [(None, True), ("accepted", True), ("rejected", False)])
def test_the_addressee_reads_what_a_pending_or_accepted_handoff_names(
    agent: Caster, teammate: Caster, third: Caster, status: str | None, readable: bool
) -> None:
    checkpoint_id = save(agent, "where I stopped").json()["data"]["checkpoint_id"]
    other = save(agent, "secret", "checkpoints/deploy-41/conversation").json()["data"]["checkpoint_id"]
    handoff_id = sent(agent, teammate, checkpoint_id=checkpoint_id)
    if status is not None:
        resolve(teammate, handoff_id, status)
    for path in (PATH, f"checkpoints/{checkpoint_id}"):
        found = read(teammate, path)
        assert (found == 404) is not readable
    assert read(teammate, f"checkpoints/{other}") == read(third, f"checkpoints/{checkpoint_id}") == 404
    assert save(teammate, "mine").json()["data"]["version"] == 1


def test_withdrawn_it_is_closed_to_the_addressee(agent: Caster, teammate: Caster) -> None:
    checkpoint_id = save(agent, 1).json()["data"]["checkpoint_id"]
    handoff_id = sent(agent, teammate, checkpoint_id=checkpoint_id)
    agent.post(f"handoffs/{handoff_id}/withdraw")
    assert read(teammate, f"checkpoints/{checkpoint_id}") == 404


def test_only_what_is_the_givers_and_of_the_subject_can_be_named(agent: Caster, teammate: Caster) -> None:
    theirs = save(teammate, 1).json()["data"]["checkpoint_id"]
    mine = save(agent, 1, "checkpoints/other/task_state").json()["data"]["checkpoint_id"]
    for name in (theirs, mine, "ckpt_" + "0" * 32):
        refused = agent.post("handoffs", {"to_principal": "teammate", "subject_id": "deploy-41", "checkpoint_id": name})
        assert refused.status_code == 404
    # Read through a handoff it is not passed on to a third.
    handoff_id = sent(teammate, agent, checkpoint_id=theirs)
    resolve(agent, handoff_id)
    again = agent.post("handoffs", {"to_principal": "agent", "subject_id": "deploy-41", "checkpoint_id": theirs})
    assert again.status_code == 404


def test_the_resource_s_checkpoint_goes_with_its_lease(agent: Caster, teammate: Caster, lease: Any) -> None:
    checkpoint_id = save(agent, "half", fence=fence(lease)).json()["data"]["checkpoint_id"]
    handoff_id = sent(agent, teammate, checkpoint_id=checkpoint_id, lease_ids=[lease["lease_id"]])
    (moved,) = resolve(teammate, handoff_id).json()["data"]["leases"]
    assert save(agent, "late", fence=fence(lease), expected_version=1).status_code == 409
    assert save(teammate, "whole", fence=fence(moved), expected_version=1).status_code == 200


def test_each_save_has_one_event(agent: Caster, lease: Any) -> None:
    save(agent, {"secret": 1}, fence=fence(lease))
    (event,) = events_of(agent, "checkpoint.saved")
    assert (event["resource_id"], event["fencing_token"]) == ("checkout", lease["fencing_token"])
    assert event["data"]["version"] == 1
    assert "secret" not in str(event)
    save(agent, 2)
    assert len(events_of(agent, "checkpoint.saved")) == 1


def test_a_repeated_save_writes_once(agent: Caster) -> None:
    for _ in range(2):
        answer = agent.put(PATH, {"state": 1}, **{"Idempotency-Key": "k"})
        assert answer.json()["data"]["version"] == 1


def test_a_repeated_save_under_another_condition_is_another_request(agent: Caster) -> None:
    agent.put(PATH, {"state": 1})
    key = {"Idempotency-Key": "once"}
    assert agent.put(PATH, {"state": 2}, **{"If-Match": '"1"'}, **key).status_code == 200
    assert agent.put(PATH, {"state": 2}, **{"If-Match": '"1"'}, **key).status_code == 200
    assert agent.put(PATH, {"state": 2}, **{"If-Match": '"2"'}, **key).status_code == 422
