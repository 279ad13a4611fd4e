"""The lease through MCP: expected outcomes are answers, refusals say what to do next."""

from typing import Any

import pytest

from tests.conftest import Caster, cast
from tests.mcp.conftest import Session


def test_a_lease_is_taken_kept_and_given_back(mine: Session) -> None:
    granted = mine.acquire(ttl_seconds=60, purpose="deploying")
    assert granted["granted"] is True
    named = {"lease_id": granted["lease_id"], "fencing_token": granted["fencing_token"]}
    beaten = mine.call("lease_heartbeat", **named)
    assert beaten["expires_at"] >= granted["expires_at"]
    status = mine.call("lease_status", resource_type="deploy", resource_id="checkout")
    assert (status["state"], status["mine"], status["purpose"]) == ("held", True, "deploying")
    released = mine.call("lease_release", **named)
    assert (released["lease_id"], released["was_expired"]) == (named["lease_id"], False)
    assert mine.call("lease_status", resource_type="deploy", resource_id="checkout")["state"] == "free"


def test_what_is_taken_is_answered_with_when_to_come_back(mine: Session, theirs: Session) -> None:
    mine.acquire(ttl_seconds=60)
    answer = theirs.acquire()
    assert (answer["granted"], answer["held_by_self"]) == (False, False)
    assert (answer["holder"], answer["principal"]) == ("agent", "agent")
    assert 1 <= answer["retry_after_s"] <= 60
    assert "lease_wait" in answer["hint"]


def test_an_outsider_learns_until_when_and_nothing_else(mine: Session, organization: Any) -> None:
    mine.acquire(purpose="secret")
    blind = Session(cast(organization, "blind", (2,)))
    assert set(blind.acquire()) == {"granted", "expires_at", "held_by_self", "retry_after_s", "hint"}
    shown = blind.call("lease_status", resource_type="deploy", resource_id="checkout")
    assert set(shown) == {"resource_type", "resource_id", "state", "mine", "expires_at", "expires_in_ms"}


def test_the_same_holder_is_not_given_a_second_lease(mine: Session) -> None:
    first = mine.acquire()
    again = mine.acquire()
    assert (again["granted"], again["held_by_self"]) == (False, True)
    assert mine.call("lease_heartbeat", lease_id=first["lease_id"], fencing_token=first["fencing_token"])


def test_two_processes_on_one_key_are_two_holders(agent: Caster) -> None:
    first, second = Session(agent, "agent.1"), Session(agent, "agent.2")
    assert first.acquire()["holder"] == "agent.1"
    taken = second.acquire()
    assert (taken["granted"], taken["held_by_self"], taken["holder"]) == (False, False, "agent.1")
    assert second.acquire("search", holder="agent.3")["holder"] == "agent.3"


def test_a_holder_outside_the_fence_is_refused(organization: Any) -> None:
    fenced = Session(cast(organization, "fenced", holder_pattern="^fenced(-.*)?$"))
    assert fenced.refused("lease_acquire", resource_type="a", resource_id="b", holder="other")["code"] == "FORBIDDEN"
    outside = Session(fenced.who, "other")
    refusal = outside.refused("lease_acquire", resource_type="a", resource_id="b")
    assert (refusal["code"], refusal["holder"]) == ("FORBIDDEN", "other")
    assert Session(fenced.who, "fenced-1").acquire()["granted"] is True


def test_a_stale_token_is_told_to_stop(mine: Session) -> None:
    granted = mine.acquire()
    refusal = mine.refused("lease_heartbeat", lease_id=granted["lease_id"], fencing_token=granted["fencing_token"] + 1)
    assert refusal["code"] == "STALE_TOKEN"
    assert "Stop" in refusal["hint"]


def test_a_lost_lease_says_how(mine: Session, theirs: Session, clock: Any) -> None:
    granted = mine.acquire(ttl_seconds=10)
    clock.move(seconds=10)
    taken = theirs.acquire()
    assert (taken["took_over_expired"], taken["previous"]["lease_id"]) == (True, granted["lease_id"])
    refusal = mine.refused("lease_heartbeat", lease_id=granted["lease_id"], fencing_token=granted["fencing_token"])
    assert (refusal["code"], refusal["ended_by"]) == ("LEASE_LOST", "taken_over")


def test_waiting_says_pending_or_that_it_is_free(mine: Session, theirs: Session, clock: Any) -> None:
    mine.acquire(ttl_seconds=10)
    named = {"resource_type": "deploy", "resource_id": "checkout", "wait_seconds": 0}
    waited = theirs.call("lease_wait", **named)
    assert (waited["pending"], waited["state"], waited["retry_after_s"]) == (True, "held", 10)
    clock.move(seconds=10)
    waited = theirs.call("lease_wait", **named)
    assert (waited["pending"], waited["state"]) == (False, "unknown")


def test_nobody_is_sent_to_acquire_a_task_or_a_slot(mine: Session) -> None:
    for resource_type, tool in (("task", "task_claim"), ("slot", "pool_acquire")):
        named = {"resource_type": resource_type, "resource_id": "a/b"}
        for said in (mine.call("lease_wait", **named)["hint"], mine.call("explain", **named)["explanation"]):
            assert (tool in said, "lease_acquire" in said, "be acquired" in said) == (True, False, False)


def test_only_an_operator_is_shown_how_to_force(mine: Session, operating: Session) -> None:
    granted = mine.acquire()
    assert "lease_force_release" not in mine.tools()
    assert "force" not in str(mine.send("tools/list").json()).lower()
    assert "lease_force_release" in operating.tools()
    unknown = mine.send("tools/call", {"name": "lease_force_release", "arguments": {}}).json()
    assert unknown["error"]["code"] == -32602
    named = {"lease_id": granted["lease_id"], "fencing_token": granted["fencing_token"]}
    assert operating.call("lease_force_release", **named, reason="stuck")["was_expired"] is False
    assert mine.refused("lease_heartbeat", **named)["ended_by"] == "force_released"


@pytest.mark.parametrize("ttl_seconds", [9, 86401])
def test_a_ttl_beyond_the_server_s_bounds_is_named(mine: Session, ttl_seconds: int) -> None:
    refusal = mine.refused("lease_acquire", resource_type="a", resource_id="b", ttl_seconds=ttl_seconds)
    assert (refusal["code"], set(refusal["fields"])) == ("VALIDATION_ERROR", {"ttl_seconds"})
