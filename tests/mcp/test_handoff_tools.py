"""Handoffs through MCP."""

from typing import Any

from tests.mcp.conftest import Session


def offered(mine: Session, **members: Any) -> str:
    handoff_id: str = mine.call("handoff_offer", to_principal="teammate", subject_id="issue-7", **members)["handoff_id"]
    return handoff_id


def test_work_is_handed_on_with_its_lease(mine: Session, theirs: Session) -> None:
    granted = mine.acquire()
    handoff_id = offered(
        mine, lease_ids=[granted["lease_id"]], next_action="run the tests", done=["the model"], decisions=["no cache"]
    )
    (waiting,) = theirs.call("handoff_inbox")["handoffs"]
    assert (waiting["handoff_id"], waiting["leases"], waiting["next_action"]) == (handoff_id, 1, "run the tests")
    whole = theirs.call("handoff_get", handoff_id=handoff_id)
    assert (whole["done"], whole["leases"][0]["outcome"]) == (["the model"], "offered")
    accepted = theirs.call("handoff_accept", handoff_id=handoff_id)
    (lease,) = accepted["leases"]
    assert lease["fencing_token"] > granted["fencing_token"]
    assert theirs.call("lease_heartbeat", lease_id=lease["lease_id"], fencing_token=lease["fencing_token"])
    lost = mine.refused("lease_heartbeat", lease_id=granted["lease_id"], fencing_token=granted["fencing_token"])
    assert (lost["code"], lost["ended_by"]) == ("LEASE_LOST", "transferred")
    assert theirs.call("handoff_complete", handoff_id=handoff_id, result="done")["status"] == "completed"
    (sent,) = mine.call("handoff_inbox", box="sent")["handoffs"]
    assert sent["status"] == "completed"


def test_an_offer_is_rejected_or_withdrawn(mine: Session, theirs: Session) -> None:
    rejected = theirs.call("handoff_reject", handoff_id=offered(mine), reason="busy")
    assert rejected["status"] == "rejected"
    handoff_id = offered(mine)
    assert theirs.refused("handoff_withdraw", handoff_id=handoff_id)["code"] == "VALIDATION_ERROR"
    assert mine.call("handoff_withdraw", handoff_id=handoff_id)["status"] == "withdrawn"
    assert theirs.refused("handoff_accept", handoff_id=handoff_id)["code"] == "NOT_FOUND"


def test_an_unknown_addressee_is_told_who_may_be_meant(mine: Session, theirs: Session) -> None:
    refusal = mine.refused("handoff_offer", to_principal="taemmate", subject_id="issue-7")
    assert (refusal["code"], refusal["did_you_mean"]) == ("NOT_FOUND", ["teammate"])


def test_who_is_who(mine: Session, theirs: Session) -> None:
    who = Session(mine.who, "agent.1").call("agent_whoami")
    assert (who["principal"], who["holder"], who["rings"]) == ("agent", "agent.1", [1, 2])
    assert [agent["handle"] for agent in mine.call("agent_list")["agents"]] == ["agent", "teammate"]
    page = mine.call("agent_list", limit=1)
    assert mine.call("agent_list", limit=1, cursor=page["next"])["agents"][0]["handle"] == "teammate"


def test_what_is_new_goes_on_from_its_cursor(mine: Session, theirs: Session) -> None:
    mine.acquire("one")
    seen = theirs.call("whats_new")
    assert [(event["type"], event["resource"]) for event in seen["events"]] == [("lease.acquired", "deploy/one")]
    assert theirs.call("whats_new", cursor=seen["cursor"])["pending"] is True
    mine.acquire("two")
    seen = theirs.call("whats_new", cursor=seen["cursor"], types="lease.acquired", resource="deploy/two")
    assert [event["resource"] for event in seen["events"]] == ["deploy/two"]
    assert theirs.refused("whats_new", types="lease.frobbed")["code"] == "VALIDATION_ERROR"
