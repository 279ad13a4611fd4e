"""Why a resource is not to be had, and how one's own last lease on it ended."""

from typing import Any

import pytest

from leasehub.explain import resources
from leases import services
from leases.models import Resource
from tests.conftest import Caster, cast
from tests.leases.conftest import Endings, Held
from tests.leases.conftest import endings as endings


def explained(who: Caster, resource_id: str = "checkout", resource_type: str = "deploy") -> dict[str, Any]:
    response = who.get(f"explain?resource_type={resource_type}&resource_id={resource_id}")
    assert response.status_code == 200, response.content
    body: dict[str, Any] = response.json()["data"]
    assert body["explanation"] == " ".join([*body["sentences"], body["advice"]]).strip()
    return body


def test_what_nobody_holds_is_free(agent: Caster) -> None:
    said = explained(agent)
    assert (said["reason"], said["state"], said["history"], said["last_lease"]) == ("free", "free", [], None)
    assert said["explanation"] == "deploy/checkout is free: nobody holds it. It can be acquired."


def test_who_holds_it_since_when_and_what_for(agent: Caster, teammate: Caster) -> None:
    agent.acquire(purpose="the release", holder="agent.1", max_lifetime_seconds=600)
    said = explained(teammate)
    assert (said["reason"], said["holder"], said["principal"]) == ("held_by_another", "agent.1", "agent")
    assert "held by agent.1 (agent)" in said["explanation"]
    assert "for: the release" in said["explanation"]
    assert "No heartbeat prolongs it" in said["explanation"]
    assert [event["type"] for event in said["history"]] == ["lease.acquired"]
    assert explained(agent)["reason"] == "held_by_you"
    assert "under the holder agent.1" in explained(agent)["explanation"]


def test_an_outsider_learns_that_it_is_taken_and_until_when(agent: Caster, organization: Any) -> None:
    agent.acquire(purpose="secret", holder="agent.secret")
    blind = cast(organization, "blind", (2,))
    said = explained(blind)
    assert said["reason"] == "held_by_another"
    assert said["explanation"].startswith("deploy/checkout is taken until ")
    assert "agent" not in str(said) and "secret" not in str(said)
    told = {name for name, value in said.items() if value not in (None, [], False)}
    assert told == {
        "reason", "explanation", "sentences", "advice", "resource_type", "resource_id", "state", "expires_at",
        "expires_in_ms",
    }  # fmt: skip


@pytest.mark.parametrize("resource_type", ["deploy", "task", "slot"])
def test_neither_holder_nor_purpose_nor_token_is_told_to_who_may_not_see_them(
    agent: Caster, operator: Caster, organization: Any, stranger: Caster, resource_type: str
) -> None:
    if resource_type == "task":
        agent.post("queues/q/tasks", {"payload": "secret"})
        claim = agent.post("leases/hot-claim", {"queue": "q", "holder": "agent.secret"}).json()
        named = claim["task_id"]
    elif resource_type == "slot":
        operator.put("pools/phones", {"slots": [{"id": "s1"}]})
        agent.post("pools/phones/requests", {"mode": "async", "holder": "agent.secret"})
        named = "phones/s1"
    else:
        agent.acquire(purpose="secret", holder="agent.secret")
        named = "checkout"
    assert explained(operator, named, resource_type)["holder"] == "agent.secret"
    token = str(Resource.objects.get(resource_type=resource_type).last_token)
    for who in (cast(organization, "blind", (2,)), stranger):
        said = explained(who, named, resource_type)
        assert "agent" not in str(said) and "secret" not in str(said) and token not in str(said)
        assert "token" not in str(said)
        assert [said[name] for name in ("holder", "principal", "purpose", "lease_id", "last_lease")] == [None] * 5
        assert said["history"] == []


def test_another_organization_s_resource_is_like_none(agent: Caster, stranger: Caster) -> None:
    agent.acquire()
    agent.acquire("other")
    nothing = explained(stranger, "nothing")
    assert str(explained(stranger)).replace("checkout", "nothing") == str(nothing)


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        ("released", "it was released"),
        ("force_released", "an operator ended it by operator: stuck"),
        ("taken_over", "it ran out without a heartbeat and was taken over by teammate"),
        ("reaped", "it ran out without a heartbeat and was reaped"),
        ("max_lifetime", "its max_lifetime was over"),
    ],
)
def test_how_one_s_last_lease_ended(agent: Caster, endings: Endings, ending: str, words: str) -> None:
    said = explained(agent, ending)
    last = said["last_lease"]
    assert (last["lease_id"], last["ended_by"]) == (endings[ending].lease_id, ending)
    assert f"{words}." in said["explanation"]


def test_who_took_over_is_told_to_those_who_observe(organization: Any, teammate: Caster, clock: Any) -> None:
    blind = cast(organization, "blind", (2,))
    Held.by(blind, ttl_seconds=10)
    clock.move(seconds=10)
    assert explained(blind)["reason"] == "ran_out"
    teammate.acquire()
    said = explained(blind)
    assert (said["last_lease"]["ended_by"], said["last_lease"]["by"]) == ("taken_over", None)
    assert "teammate" not in str(said)


def test_a_lease_that_went_with_a_handoff(agent: Caster, teammate: Caster) -> None:
    held = Held.by(agent)
    offer = {"to_principal": "teammate", "subject_id": "s", "lease_ids": [held.lease_id]}
    handoff_id = agent.post("handoffs", offer).json()["data"]["handoff_id"]
    teammate.post(f"handoffs/{handoff_id}/resolve", {"status": "accepted"})
    last = explained(agent)["last_lease"]
    assert (last["ended_by"], last["by"], last["handoff_id"]) == ("transferred", "teammate", handoff_id)
    assert "it was handed on to teammate." in explained(agent)["explanation"]


def test_a_task_says_how_often_it_was_tried(agent: Caster, clock: Any) -> None:
    agent.post("queues/q/tasks", {"max_attempts": 1})
    claim = agent.post("leases/hot-claim", {"queue": "q", "ttl_seconds": 10}).json()
    assert "The task is leased, after 1 of 1 attempts" in explained(agent, claim["task_id"], "task")["explanation"]
    clock.move(seconds=10)
    services.reap_due()
    said = explained(agent, claim["task_id"], "task")
    assert (said["task_state"], said["last_lease"]["ended_by"]) == ("dead", "reaped")


def test_a_slot_says_what_is_wrong_with_it(agent: Caster, operator: Caster) -> None:
    operator.put("pools/phones", {"slots": [{"id": "s1"}]})
    operator.post("pools/phones/slots/s1/drain")
    said = explained(agent, "phones/s1", "slot")
    assert (said["slot_condition"], "drained" in said["explanation"]) == ("draining", True)


@pytest.mark.parametrize(("resource_type", "words"), [("task", "claim one from it"), ("slot", "ask it for one")])
def test_nobody_is_sent_to_acquire_a_task_or_a_slot(
    agent: Caster, teammate: Caster, operator: Caster, organization: Any, clock: Any, resource_type: str, words: str
) -> None:
    blind = cast(organization, "blind", (2,))
    if resource_type == "task":
        agent.post("queues/q/tasks", {})
        held = agent.post("leases/hot-claim", {"queue": "q", "ttl_seconds": 10}).json()["task_id"]
    else:
        operator.put("pools/phones", {"slots": [{"id": "s1"}]})
        agent.post("pools/phones/requests", {"mode": "async", "ttl_seconds": 10})
        held = "phones/s1"
    assert "Go on with the lease" in explained(agent, held, resource_type)["advice"]

    def advised() -> set[str]:
        """Of what is held or has run out, and of what there never was, to all but its holder."""
        seen = [explained(who, name, resource_type) for who in (teammate, blind) for name in (held, "nothing/1")]
        return {said["reason"] for said in seen if words in said["advice"] and "acquired" not in said["explanation"]}

    assert advised() == {"held_by_another", "free"}
    clock.move(seconds=10)
    assert advised() == {"ran_out", "free"}


def test_both_names_are_wanted(agent: Caster) -> None:
    assert agent.get("explain?resource_type=deploy").status_code == 400
    assert agent.get("explain?resource_type=a&resource_id=b&x=1").status_code == 400


def test_of_a_busy_resource_the_newest_events_are_looked_at(
    agent: Caster, teammate: Caster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for caster in (agent, teammate, teammate):
        held = caster.acquire().json()["data"]
        caster.delete(f"leases/{held['lease_id']}")
    assert explained(agent)["last_lease"] is not None
    monkeypatch.setattr(resources, "LOOKED_AT", 3)
    said = explained(agent)
    assert said["last_lease"] is None and len(said["history"]) == 3
    assert explained(teammate)["last_lease"]["lease_id"] == held["lease_id"]
