"""What becomes of a claim: complete, fail, give back, heartbeat, and what an operator does."""

from datetime import datetime
from typing import Any

import pytest

from leasehub.events.models import Event
from leasehub.identity import services as identity
from leasehub.identity.models import ApiKey, Organization
from leases.models import Resource
from leases.queues import services
from leases.queues.models import Queue, Task
from leases.services import reap_due
from tests.conftest import Caster, cast, error_of
from tests.queues.conftest import claim, events, put, task, token


def test_a_completion_ends_the_claim_and_keeps_the_result(agent: Caster) -> None:
    task_id = put(agent, payload={"n": 1})
    claimed = claim(agent)
    answer = agent.post(f"tasks/{task_id}/complete", {**token(claimed), "result": {"ok": [1, None]}})
    assert answer.status_code == 200
    assert answer.json()["data"] == {"task_id": task_id, "state": "done", "ready_at": None}
    shown = task(agent, task_id)
    assert (shown["state"], shown["result"], shown["payload"]) == ("done", {"ok": [1, None]}, {"n": 1})
    assert shown["lease"] is None
    assert shown["finished_at"] is not None
    assert agent.get(f"leases/{claimed['lease_id']}").json()["data"]["ended_by"] == "completed"
    assert events(task_id)[-1].type == "task.completed"
    assert Resource.objects.get().lease_id is None


def test_a_completion_repeated_with_its_idempotency_key_is_one(agent: Caster) -> None:
    task_id = put(agent)
    body = {**token(claim(agent)), "result": 1}
    first = agent.post(f"tasks/{task_id}/complete", body, **{"Idempotency-Key": "c"})
    second = agent.post(f"tasks/{task_id}/complete", body, **{"Idempotency-Key": "c"})
    assert (first.status_code, first.content) == (second.status_code, second.content) == (200, first.content)
    assert Event.objects.filter(type="task.completed").count() == 1


def test_a_late_completion_is_refused_and_the_new_holder_is_untouched(
    agent: Caster, teammate: Caster, clock: Any
) -> None:
    task_id = put(agent)
    lost = claim(agent, ttl_seconds=60)
    clock.move(seconds=60)
    late = error_of(agent.post(f"tasks/{task_id}/complete", token(lost)))
    assert (late["status"], late["code"], late["ended_by"]) == (410, "LEASE_LOST", "expired")
    taken = claim(teammate)
    for verb in ("complete", "fail"):
        body = {**token(lost), **({"error": "x"} if verb == "fail" else {})}
        late = error_of(agent.post(f"tasks/{task_id}/{verb}", body))
        assert (late["status"], late["code"], late["ended_by"]) == (410, "LEASE_LOST", "reaped")
    beat = error_of(agent.post(f"leases/{task_id}/heartbeat", token(lost)))
    assert (beat["status"], beat["ended_by"]) == (410, "reaped")
    assert error_of(agent.delete(f"leases/{task_id}?fencing_token={lost['fencing_token']}"))["status"] == 404
    shown = task(teammate, task_id)
    assert (shown["state"], shown["lease"]["lease_id"]) == ("leased", taken["lease_id"])
    assert teammate.post(f"tasks/{task_id}/complete", token(taken)).status_code == 200


def test_another_token_is_stale_and_somebody_elses_claim_is_not_there(agent: Caster, teammate: Caster) -> None:
    task_id = put(agent)
    claimed = claim(agent)
    wrong = {"fencing_token": claimed["fencing_token"] + 1}
    for path, body in steps(task_id):
        assert error_of(agent.post(path, {**body, **wrong}))["code"] == "STALE_TOKEN"
        assert error_of(teammate.post(path, {**body, **token(claimed)}))["code"] == "NOT_FOUND"
        assert error_of(teammate.post(path, {**body, **wrong}))["code"] == "NOT_FOUND"
    stale = error_of(agent.delete(f"leases/{task_id}?fencing_token={wrong['fencing_token']}"))
    assert (stale["status"], stale["code"]) == (409, "STALE_TOKEN")
    theirs = teammate.delete(f"leases/{task_id}?fencing_token={claimed['fencing_token']}")
    assert theirs.status_code == 404
    assert task(agent, task_id)["state"] == "leased"


def steps(task_id: str) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"tasks/{task_id}/complete", {}),
        (f"tasks/{task_id}/fail", {"error": "no"}),
        (f"leases/{task_id}/heartbeat", {}),
    ]


def test_what_is_in_another_organization_is_like_what_is_not(agent: Caster, stranger: Caster) -> None:
    task_id = put(agent)
    claimed = claim(agent)
    nothing = "t_" + "0" * 32
    for (path, body), (unknown, _) in zip(steps(task_id), steps(nothing), strict=True):
        there = stranger.post(path, {**body, **token(claimed)})
        assert there.status_code == 404
        assert there.content == stranger.post(unknown, {**body, **token(claimed)}).content
    for method, path in (("GET", "tasks/{}"), ("GET", "leases/{}"), ("POST", "tasks/{}/retry")):
        there = stranger.request(method, path.format(task_id), {} if method == "POST" else None)
        known = stranger.request(method, path.format(nothing), {} if method == "POST" else None)
        assert (there.status_code, there.content) == (404, known.content)


def test_a_heartbeat_moves_the_expiry_of_the_claim(agent: Caster, clock: Any) -> None:
    task_id = put(agent)
    claimed = claim(agent, ttl_seconds=60)
    clock.move(seconds=50)
    beaten = agent.post(f"leases/{task_id}/heartbeat", {**token(claimed), "ttl_seconds": 120}).json()["data"]
    assert (beaten["lease_id"], beaten["expires_in_ms"]) == (claimed["lease_id"], 120_000)
    clock.move(seconds=100)
    assert reap_due() == 0
    assert agent.post(f"leases/{claimed['lease_id']}/heartbeat", token(claimed)).status_code == 200
    assert agent.post(f"tasks/{task_id}/complete", token(claimed)).status_code == 200


def test_many_beat_at_once_each_by_lease_or_task(agent: Caster, clock: Any) -> None:
    ids = [put(agent) for _ in range(4)]
    claims = [claim(agent, ttl_seconds=60) for _ in ids]
    agent.post(f"tasks/{ids[2]}/complete", token(claims[2]))
    beats = [
        {"lease_id": claims[0]["lease_id"], **token(claims[0])},
        {"lease_id": ids[1], **token(claims[1])},
        {"lease_id": ids[2], **token(claims[2])},
        {"lease_id": ids[3], "fencing_token": 5},
        {"lease_id": "t_" + "0" * 32, "fencing_token": 5},
    ]
    answers = agent.post("leases/heartbeats", {"leases": beats}).json()["data"]["leases"]
    assert [answer["ok"] for answer in answers] == [True, True, False, False, False]
    assert [answer["error"]["code"] for answer in answers[2:]] == ["LEASE_LOST", "STALE_TOKEN", "NOT_FOUND"]


def test_a_task_given_back_is_ready_and_its_attempt_counts(agent: Caster, teammate: Caster) -> None:
    task_id = put(agent, max_attempts=2)
    claimed = claim(agent)
    assert error_of(agent.delete(f"leases/{task_id}"))["code"] == "VALIDATION_ERROR"
    answer = agent.delete(f"leases/{task_id}?fencing_token={claimed['fencing_token']}")
    assert answer.json()["data"]["lease_id"] == claimed["lease_id"]
    assert answer.json()["data"]["was_expired"] is False
    assert events(task_id)[-1].type == "task.returned"
    assert agent.get(f"leases/{claimed['lease_id']}").json()["data"]["ended_by"] == "released"
    again = claim(teammate)
    assert (again["task_id"], again["attempt"]) == (task_id, 2)
    assert teammate.delete(f"leases/{again['lease_id']}").status_code == 200
    shown = task(agent, task_id)
    assert (shown["state"], shown["attempts"]) == ("dead", 2)
    assert "attempts are used up" in shown["error"]
    last = events(task_id)[-1]
    assert (last.type, last.data["ended_by"]) == ("task.dead", "released")


def test_a_claim_that_ran_out_can_still_be_given_back(agent: Caster, clock: Any) -> None:
    task_id = put(agent)
    claimed = claim(agent, ttl_seconds=60)
    clock.move(seconds=60)
    answer = agent.delete(f"leases/{task_id}?fencing_token={claimed['fencing_token']}")
    assert answer.json()["data"]["was_expired"] is True
    assert task(agent, task_id)["state"] == "ready"


def test_a_failure_pauses_and_keeps_the_error(agent: Caster, clock: Any) -> None:
    task_id = put(agent)
    claimed = claim(agent)
    answer = agent.post(f"tasks/{task_id}/fail", {**token(claimed), "error": "boom", "retry_in_seconds": 30})
    given = answer.json()["data"]
    assert given["state"] == "ready"
    assert 29 < (datetime.fromisoformat(given["ready_at"]) - clock.now()).total_seconds() <= 30
    assert task(agent, task_id)["error"] == "boom"
    assert events(task_id)[-1].type == "task.failed"
    assert agent.get(f"leases/{claimed['lease_id']}").json()["data"]["ended_by"] == "failed"
    assert claim(agent) is None
    clock.move(seconds=30)
    assert claim(agent)["attempt"] == 2


def test_without_a_pause_of_its_own_a_failure_backs_off_with_jitter_up_to_the_longest(
    agent: Caster, clock: Any
) -> None:
    put(agent, max_attempts=10)
    Queue.objects.update(backoff_base_seconds=10, backoff_max_seconds=60)
    pauses = []
    for longest in (10, 20, 40, 60, 60):
        claimed = claim(agent)
        failed = agent.post(f"tasks/{claimed['task_id']}/fail", {**token(claimed), "error": "no"}).json()["data"]
        pause = (datetime.fromisoformat(failed["ready_at"]) - clock.now()).total_seconds()
        assert longest / 2 - 1 < pause <= longest
        pauses.append(pause / longest)
        clock.move(seconds=longest)
    assert len({round(pause, 3) for pause in pauses}) > 1


def test_a_retry_at_once_is_at_once(agent: Caster) -> None:
    task_id = put(agent)
    failed = agent.post(f"tasks/{task_id}/fail", {**token(claim(agent)), "error": "no", "retry_in_seconds": 0})
    assert failed.json()["data"] == {"task_id": task_id, "state": "ready", "ready_at": None}
    assert claim(agent)["attempt"] == 2


def test_a_task_is_dead_when_its_attempts_are_used_up_or_it_failed_for_good(agent: Caster) -> None:
    used_up = put(agent, max_attempts=2)
    for state in ("ready", "dead"):
        failed = agent.post(f"tasks/{used_up}/fail", {**token(claim(agent)), "error": "no", "retry_in_seconds": 0})
        assert failed.json()["data"]["state"] == state
    final = put(agent)
    failed = agent.post(f"tasks/{final}/fail", {**token(claim(agent)), "error": "never", "final": True})
    assert failed.json()["data"] == {"task_id": final, "state": "dead", "ready_at": None}
    assert claim(agent) is None
    for task_id in (used_up, final):
        last = events(task_id)[-1]
        assert (last.type, last.data["ended_by"]) == ("task.dead", "failed")
    assert not agent.get("leases/reaped").json()["data"]["leases"]


def test_the_reaper_returns_the_tasks_of_the_dead_and_says_so(agent: Caster, clock: Any) -> None:
    ids = [put(agent, max_attempts=n) for n in (1, 5)]
    claims = [claim(agent, ttl_seconds=60, holder="muse-04") for _ in ids]
    alive = put(agent)
    claim(agent, ttl_seconds=600)
    clock.move(seconds=60)
    assert reap_due() == 2
    assert reap_due() == 0
    assert [task(agent, task_id)["state"] for task_id in (*ids, alive)] == ["dead", "ready", "leased"]
    reaped = agent.get("leases/reaped").json()["data"]["leases"]
    assert [row["task_id"] for row in reaped] == ids[::-1]
    assert {row["holder"] for row in reaped} == {"muse-04"}
    assert [row["fencing_token"] for row in reaped] == [claimed["fencing_token"] for claimed in claims[::-1]]
    assert [events(task_id)[-1].type for task_id in ids] == ["task.dead", "lease.reaped"]
    for claimed in claims:
        assert agent.get(f"leases/{claimed['lease_id']}").json()["data"]["ended_by"] == "reaped"


def test_a_task_that_kills_its_worker_every_time_ends_dead_with_an_event(agent: Caster, clock: Any) -> None:
    task_id = put(agent, max_attempts=3)
    for attempt in (1, 2, 3):
        assert claim(agent, ttl_seconds=10)["attempt"] == attempt
        clock.move(seconds=10)
    assert claim(agent) is None
    assert task(agent, task_id)["state"] == "dead"
    assert [event.type for event in events(task_id)].count("task.dead") == 1


def test_done_stays_done(agent: Caster, operator: Caster, clock: Any) -> None:
    task_id = put(agent)
    claimed = claim(agent, ttl_seconds=10)
    agent.post(f"tasks/{task_id}/complete", {**token(claimed), "result": "kept"})
    clock.move(seconds=60)
    assert reap_due() == 0
    assert claim(agent) is None
    for path, body in steps(task_id):
        late = error_of(agent.post(path, {**body, **token(claimed)}))
        assert (late["status"], late["ended_by"]) == (410, "completed")
    assert agent.delete(f"leases/{task_id}?fencing_token={claimed['fencing_token']}").status_code == 404
    assert error_of(operator.post(f"tasks/{task_id}/retry"))["status"] == 409
    body = {"fencing_token": claimed["fencing_token"], "reason": "x"}
    assert operator.post(f"leases/{task_id}/force-release", body).status_code == 404
    shown = task(agent, task_id)
    assert (shown["state"], shown["result"]) == ("done", "kept")


def test_an_operator_retries_a_dead_task(agent: Caster, operator: Caster) -> None:
    task_id = put(agent, max_attempts=1, dedupe_key="nightly")
    agent.post(f"tasks/{task_id}/fail", {**token(claim(agent)), "error": "no"})
    assert error_of(agent.post(f"tasks/{task_id}/retry"))["code"] == "FORBIDDEN"
    twin = put(agent, dedupe_key="nightly")
    assert error_of(operator.post(f"tasks/{task_id}/retry"))["code"] == "CONFLICT"
    agent.post(f"tasks/{twin}/complete", token(claim(agent)))
    retried = operator.post(f"tasks/{task_id}/retry")
    assert (retried.json()["data"]["state"], retried.json()["data"]["attempts"]) == ("ready", 0)
    assert error_of(operator.post(f"tasks/{task_id}/retry"))["code"] == "CONFLICT"
    last = events(task_id)[-1]
    assert (last.type, last.data["retried"], last.actor_id) == ("task.queued", True, operator.principal.pk)
    assert claim(agent)["task_id"] == task_id


def test_an_operator_takes_a_task_away_and_it_is_ready(agent: Caster, operator: Caster) -> None:
    task_id = put(agent)
    claimed = claim(agent)
    body = {"fencing_token": claimed["fencing_token"], "reason": "stuck"}
    assert operator.post(f"leases/{task_id}/force-release", body).status_code == 200
    last = events(task_id)[-1]
    assert (last.type, last.data["task_state"], last.data["reason"]) == ("lease.force_released", "ready", "stuck")
    late = error_of(agent.post(f"tasks/{task_id}/complete", token(claimed)))
    assert (late["status"], late["ended_by"]) == (410, "force_released")
    assert claim(agent)["task_id"] == task_id


def test_reap_and_reconcile_return_the_task_too(agent: Caster, clock: Any) -> None:
    first, second = put(agent), put(agent)
    claim(agent, ttl_seconds=60), claim(agent, ttl_seconds=60)
    name = {"resource_type": "task", "resource_id": first}
    assert error_of(agent.post("leases/reap", name))["code"] == "CONFLICT"
    clock.move(seconds=60)
    assert agent.post("leases/reap", name).json()["data"]["task_id"] == first
    assert len(agent.post("leases/reconcile").json()["data"]["reaped"]) == 1
    assert [task(agent, task_id)["state"] for task_id in (first, second)] == ["ready", "ready"]


def test_a_lease_on_a_task_is_made_by_a_claim_alone(agent: Caster) -> None:
    task_id = put(agent)
    assert error_of(agent.acquire(task_id, resource_type="task"))["status"] == 400


def test_a_claim_that_moves_to_another_principal_takes_the_task_along(agent: Caster, teammate: Caster) -> None:
    from django.db import transaction

    from leases import queries
    from leases.services import Actor, transfer

    task_id = put(agent)
    claimed = claim(agent)
    with transaction.atomic():
        moved, _ = transfer(
            actor=Actor.of(teammate.caller),
            giver=agent.principal.pk,
            lease_ids=[queries.parse_lease_id(claimed["lease_id"])],
            principal=teammate.principal.pk,
            holder="teammate",
        )
    late = error_of(agent.post(f"tasks/{task_id}/complete", token(claimed)))
    assert (late["status"], late["ended_by"]) == (410, "transferred")
    body = {"fencing_token": moved[0].grant.fencing_token}
    assert teammate.post(f"leases/{task_id}/heartbeat", body).status_code == 200
    assert teammate.post(f"tasks/{task_id}/complete", body).status_code == 200


def test_who_may_see_a_task(agent: Caster, organization: Any) -> None:
    blind = cast(organization, "blind", (2,))
    other = cast(organization, "other-blind", (2,))
    task_id = put(blind)
    assert task(agent, task_id)["lease"] is None
    assert task(blind, task_id)["state"] == "ready"
    assert other.get(f"tasks/{task_id}").status_code == 404
    claimed = claim(other)
    assert task(other, task_id)["lease"]["fencing_token"] == claimed["fencing_token"]
    assert task(agent, task_id)["lease"]["fencing_token"] is None
    assert error_of(blind.get("queues"))["code"] == "FORBIDDEN"


def test_the_lease_of_a_task_shows_by_the_tasks_id(agent: Caster) -> None:
    task_id = put(agent)
    assert agent.get(f"leases/{task_id}").status_code == 404
    claimed = claim(agent)
    assert agent.get(f"leases/{task_id}").json()["data"]["lease_id"] == claimed["lease_id"]
    agent.post(f"tasks/{task_id}/complete", token(claimed))
    ended = agent.get(f"leases/{task_id}").json()["data"]
    assert (ended["lease_id"], ended["ended_by"]) == (claimed["lease_id"], "completed")


@pytest.mark.parametrize("name", ["t_", "t_" + "g" * 32, "t_" + "0" * 33, "lease_" + "0" * 32, "x", "%00"])
def test_a_malformed_id_names_nothing(agent: Caster, name: str) -> None:
    for path, body in steps(name):
        assert agent.post(path, {**body, "fencing_token": 1}).status_code == 404
    assert agent.get(f"tasks/{name}").status_code == 404
    assert agent.delete(f"leases/{name}?fencing_token=1").status_code == 404


def test_finished_tasks_go_after_their_queues_days_and_dead_ones_stay(
    agent: Caster, operator: Caster, clock: Any
) -> None:
    done, dead, waiting = put(agent), put(agent), put(agent)
    agent.post(f"tasks/{done}/complete", {**token(claim(agent)), "result": 1})
    agent.post(f"tasks/{dead}/fail", {**token(claim(agent)), "error": "no", "final": True})
    clock.move(days=6, hours=23)
    assert services.prune() == 0
    clock.move(hours=1)
    assert services.prune() == 1
    assert agent.get(f"tasks/{done}").status_code == 404
    assert [task(agent, task_id)["state"] for task_id in (dead, waiting)] == ["dead", "ready"]
    named = list(Task.objects.values_list("pk", flat=True))
    assert services.purge(organization=agent.principal.organization_id, task_ids=named) == 1
    assert Task.objects.count() == 1


def test_a_revoked_key_with_a_fence_is_told_so_first(agent: Caster, organization: Organization) -> None:
    fenced = cast(organization, "agent", holder_pattern="^ci-.*$")
    put(agent)
    claimed = claim(agent, holder="shell")
    fenced.get("whoami")
    identity.revoke_key(organization=organization.pk, key=ApiKey.objects.get(holder_pattern="^ci-.*$"))
    for verb in ("complete", "fail"):
        body = {**token(claimed), **({"error": "no"} if verb == "fail" else {})}
        assert fenced.post(f"tasks/{claimed['task_id']}/{verb}", body).status_code == 401
    assert fenced.post(f"leases/{claimed['task_id']}/heartbeat", token(claimed)).status_code == 401


def test_a_retry_reads_its_body(agent: Caster, operator: Caster) -> None:
    task_id = put(agent)
    agent.post(f"tasks/{task_id}/fail", {**token(claim(agent)), "error": "no", "final": True})
    assert operator.post(f"tasks/{task_id}/retry", {"surplus": 1}).status_code == 400
    assert operator.post(f"tasks/{task_id}/retry", b"not JSON").status_code == 400
    assert task(agent, task_id)["state"] == "dead"
    assert operator.post(f"tasks/{task_id}/retry").status_code == 200


def test_a_queue_whose_name_could_be_no_address_is_refused(agent: Caster) -> None:
    refused = error_of(agent.post("leases/hot-claim", {"queue": "a/b"}))
    assert list(refused["fields"]) == ["queue"]
