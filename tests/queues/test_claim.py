from datetime import datetime
from typing import Any

import pytest

from leasehub.db import clock as database_clock
from leases.models import Resource
from leases.queues import services
from leases.queues.models import Task
from tests.conftest import Caster, cast, error_of
from tests.queues.conftest import claim, events, put, task, token


def test_a_claim_is_the_bare_answer_and_a_lease(agent: Caster) -> None:
    task_id = put(agent, payload={"commit": "a1", "text": "é"})
    answer = agent.post("leases/hot-claim", {"queue": "build", "holder": "muse-04", "ttl_seconds": 60})
    assert answer.status_code == 200
    claimed = answer.json()
    assert set(claimed) == {
        "task_id", "fencing_token", "expires_at", "expires_in_ms", "lease_id", "attempt", "payload",
    }  # fmt: skip
    assert (claimed["task_id"], claimed["attempt"], claimed["expires_in_ms"]) == (task_id, 1, 60_000)
    assert claimed["payload"] == {"commit": "a1", "text": "é"}
    shown = agent.get(f"leases/{claimed['lease_id']}").json()["data"]
    assert (shown["resource_type"], shown["resource_id"], shown["holder"]) == ("task", task_id, "muse-04")
    assert shown["fencing_token"] == claimed["fencing_token"]
    assert task(agent, task_id)["lease"]["lease_id"] == claimed["lease_id"]
    claimed_event = events(task_id)[-1]
    assert (claimed_event.type, claimed_event.fencing_token) == ("task.claimed", claimed["fencing_token"])
    assert (claimed_event.holder, claimed_event.data["queue"]) == ("muse-04", "build")


def test_an_empty_and_an_unknown_queue_have_nothing(agent: Caster) -> None:
    answer = agent.post("leases/hot-claim", {"queue": "nowhere"})
    assert answer.status_code == 204
    assert answer.content == b""
    put(agent)
    assert claim(agent) is not None
    assert claim(agent) is None


def test_the_highest_priority_comes_first_then_the_oldest(agent: Caster) -> None:
    order = [put(agent, priority=priority) for priority in (0, 5, -3, 5, 0)]
    wanted = [order[i] for i in (1, 3, 0, 4, 2)]
    assert [claim(agent)["task_id"] for _ in order] == wanted


def test_a_higher_priority_that_comes_later_is_next(agent: Caster) -> None:
    put(agent)
    put(agent)
    assert claim(agent)
    urgent = put(agent, priority=9)
    assert claim(agent)["task_id"] == urgent


def test_a_task_that_comes_back_takes_its_old_place(agent: Caster) -> None:
    first, second, third = (put(agent) for _ in range(3))
    claimed = claim(agent)
    assert agent.delete(f"leases/{first}?fencing_token={claimed['fencing_token']}").status_code == 200
    assert [claim(agent)["task_id"] for _ in range(3)] == [first, second, third]


def test_many_are_claimed_at_once_in_order_those_that_came_back_among_them(agent: Caster) -> None:
    ids = [put(agent, priority=1 if n == 7 else 0) for n in range(9)]
    first = claim(agent, count=6)["claims"]
    assert [claimed["task_id"] for claimed in first] == [ids[7], *ids[:5]]
    for n in (1, 3):
        back = next(claimed for claimed in first if claimed["task_id"] == ids[n])
        agent.delete(f"leases/{ids[n]}?fencing_token={back['fencing_token']}")
    assert [claimed["task_id"] for claimed in claim(agent, count=3)["claims"]] == [ids[1], ids[3], ids[5]]
    rest = claim(agent, count=100)["claims"]
    assert [claimed["task_id"] for claimed in rest] == [ids[6], ids[8]]
    assert len({claimed["fencing_token"] for claimed in first}) >= 1
    assert claim(agent, count=2) is None


def test_those_that_came_back_are_merged_with_the_others_by_age(agent: Caster) -> None:
    ids = [put(agent) for _ in range(12)]
    claims = {claimed["task_id"]: claimed for claimed in claim(agent, count=8)["claims"]}
    for n in (7, 2, 5):
        agent.delete(f"leases/{ids[n]}?fencing_token={claims[ids[n]]['fencing_token']}")
    late = put(agent)
    wanted = [ids[n] for n in (2, 5, 7, 8, 9, 10, 11)] + [late]
    assert [claimed["task_id"] for claimed in claim(agent, count=50)["claims"]] == wanted


def test_a_delayed_task_waits_for_its_time_and_then_has_its_place(agent: Caster, clock: Any) -> None:
    delayed = agent.post("queues/build/tasks", {"delay_seconds": 60}).json()["data"]
    assert delayed["state"] == "ready"
    assert delayed["ready_at"] is not None
    later = put(agent)
    assert claim(agent)["task_id"] == later
    assert claim(agent) is None
    clock.move(seconds=55)
    assert claim(agent) is None
    clock.move(seconds=5)
    younger = put(agent)
    assert [claim(agent)["task_id"] for _ in range(2)] == [delayed["task_id"], younger]


def test_a_claim_that_ran_out_is_claimable_without_the_reaper(agent: Caster, teammate: Caster, clock: Any) -> None:
    task_id = put(agent)
    lost = claim(agent, ttl_seconds=60)
    clock.move(seconds=55)
    assert claim(teammate) is None
    clock.move(seconds=5)
    taken = claim(teammate)
    assert (taken["task_id"], taken["attempt"]) == (task_id, 2)
    assert taken["fencing_token"] > lost["fencing_token"]
    assert [event.type for event in events(task_id)] == [
        "task.queued", "task.claimed", "lease.reaped", "task.claimed",
    ]  # fmt: skip


def test_claims_of_another_queue_that_ran_out_stay_where_they_are(agent: Caster, clock: Any) -> None:
    put(agent, "other")
    claim(agent, "other", ttl_seconds=10)
    clock.move(seconds=11)
    assert claim(agent, "build") is None
    put(agent, "build")
    assert claim(agent, "build")
    assert Task.objects.get(queue__name="other").state == "leased"


def test_two_claimers_never_get_one_task(agent: Caster, teammate: Caster) -> None:
    put(agent)
    assert claim(agent)
    assert claim(teammate) is None


def test_the_same_idempotency_key_claims_the_same_task(agent: Caster, clock: Any) -> None:
    put(agent, payload=[1])
    put(agent)
    first = claim_with(agent, "k1")
    clock.move(seconds=10)
    again = claim_with(agent, "k1")
    assert 40_000 < again["expires_in_ms"] <= first["expires_in_ms"] - 10_000
    assert {**again, "expires_in_ms": 0} == {**first, "expires_in_ms": 0}
    agent.post(f"tasks/{first['task_id']}/complete", token(first))
    assert claim_with(agent, "k1")["expires_in_ms"] == 0
    assert claim_with(agent, "k2")["task_id"] != first["task_id"]


def test_that_there_was_nothing_is_not_remembered(agent: Caster) -> None:
    assert claim_with(agent, "k1") is None
    task_id = put(agent)
    assert claim_with(agent, "k1")["task_id"] == task_id


def claim_with(agent: Caster, key: str) -> Any:
    answer = agent.post("leases/hot-claim", {"queue": "build", "ttl_seconds": 60}, **{"Idempotency-Key": key})
    return None if answer.status_code == 204 else answer.json()


def test_a_holder_outside_the_fence_and_a_ring_that_is_missing_are_refused(organization: Any) -> None:
    worker = cast(organization, "worker", (2,), holder_pattern="^ci-.*$")
    put(worker)
    assert error_of(worker.post("leases/hot-claim", {"queue": "build"}))["code"] == "FORBIDDEN"
    assert claim(worker, holder="ci-1")
    watcher = cast(organization, "watcher", (1,))
    assert error_of(watcher.post("leases/hot-claim", {"queue": "build"}))["code"] == "FORBIDDEN"
    assert error_of(watcher.post("queues/build/tasks", {}))["code"] == "FORBIDDEN"


def test_a_revoked_key_neither_puts_nor_claims(agent: Caster) -> None:
    put(agent)
    assert claim(agent)
    from leasehub.identity.models import ApiKey

    ApiKey.objects.filter(principal=agent.principal).update(revoked_at=database_clock.now())
    assert error_of(agent.post("leases/hot-claim", {"queue": "build"}))["status"] == 401
    assert error_of(agent.post("queues/build/tasks", {}))["status"] == 401
    assert error_of(agent.post("queues/build/tasks", {"priority": "x"}))["status"] == 401


def test_a_strangers_queue_of_the_same_name_is_another(agent: Caster, stranger: Caster) -> None:
    mine = put(agent)
    assert claim(stranger) is None
    theirs = put(stranger)
    assert claim(agent)["task_id"] == mine
    assert claim(stranger)["task_id"] == theirs


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"queue": 1},
        {"queue": "build", "ttl_seconds": 1},
        {"queue": "build", "ttl_seconds": 86401},
        {"queue": "build", "wait_seconds": 26},
        {"queue": "build", "wait_seconds": -1},
        {"queue": "build", "count": 0},
        {"queue": "build", "count": 101},
        {"queue": "build", "holder": ""},
        {"queue": "build", "priority": 1},
    ],
)
def test_what_is_wrong_with_a_claim_is_named(agent: Caster, body: dict[str, Any]) -> None:
    assert error_of(agent.post("leases/hot-claim", body))["code"] == "VALIDATION_ERROR"


def test_the_token_grows_after_the_row_of_the_lease_was_pruned(agent: Caster, clock: Any) -> None:
    put(agent)
    first = claim(agent)
    agent.post(f"tasks/{first['task_id']}/fail", {**token(first), "error": "no", "retry_in_seconds": 2 * 86400})
    clock.move(days=2)
    from leases import services as leases

    assert leases.prune() == 1
    assert not Resource.objects.exists()
    second = claim(agent)
    assert second["task_id"] == first["task_id"]
    assert second["fencing_token"] > first["fencing_token"]


def test_a_look_that_left_something_is_not_remembered(agent: Caster, clock: Any, engine: str) -> None:
    """More ran out than one claim ends: the next ones go on, until nothing is left."""
    agent.post("queues/build/tasks", {"tasks": [{}] * 45})
    claim(agent, count=45, ttl_seconds=10)
    clock.move(seconds=11)
    assert len(claim(agent, count=100)["claims"]) == 20
    if engine == "plpgsql":
        assert not services._looked
    assert len(claim(agent, count=100)["claims"]) == 20
    assert len(claim(agent, count=100)["claims"]) == 5


def test_expires_at_is_the_databases_time(agent: Caster, clock: Any) -> None:
    put(agent)
    clock.move(days=3)
    claimed = claim(agent, ttl_seconds=60)
    expires_at = datetime.fromisoformat(claimed["expires_at"])
    assert 59 < (expires_at - clock.now()).total_seconds() <= 60
