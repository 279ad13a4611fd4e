"""Queues through MCP."""

from typing import Any

from tests.mcp.conftest import Session


def put(session: Session, *payloads: Any, **members: Any) -> None:
    for payload in payloads:
        assert session.who.post("queues/thumbs/tasks", {"payload": payload, **members}).status_code == 201


def claimed(session: Session, **arguments: Any) -> dict[str, Any]:
    claim = session.call("task_claim", queue="thumbs", **arguments)
    assert claim["claimed"] is True
    return {name: claim[name] for name in ("task_id", "fencing_token")}


def test_a_task_is_claimed_kept_and_completed(mine: Session) -> None:
    put(mine, {"picture": 1})
    claim = mine.call("task_claim", queue="thumbs")
    assert (claim["payload"], claim["attempt"]) == ({"picture": 1}, 1)
    named = {"task_id": claim["task_id"], "fencing_token": claim["fencing_token"]}
    assert mine.call("task_heartbeat", **named)["task_id"] == claim["task_id"]
    status = mine.call("task_status", task_id=claim["task_id"])
    assert (status["state"], status["lease"]["holder"]) == ("leased", "agent")
    assert mine.call("task_complete", **named, result={"drawn": 1})["state"] == "done"
    assert mine.call("task_status", task_id=claim["task_id"])["result"] == {"drawn": 1}


def test_an_empty_queue_is_no_error(mine: Session) -> None:
    assert mine.call("task_claim", queue="thumbs") == {
        "claimed": False,
        "pending": True,
        "hint": "Nothing to claim now: call again with wait_seconds 25.",
    }


def test_a_failed_task_is_ready_again_and_a_returned_one_at_once(mine: Session) -> None:
    put(mine, 1)
    failed = mine.call("task_fail", **claimed(mine), error="broken", retry_in_seconds=0)
    assert failed["state"] == "ready"
    returned = mine.call("task_release", **claimed(mine))
    assert returned["was_expired"] is False
    assert mine.call("task_fail", **claimed(mine), error="broken", final=True)["state"] == "dead"


def test_a_stale_claim_is_refused(mine: Session, theirs: Session, clock: Any) -> None:
    put(mine, 1)
    old = claimed(mine, ttl_seconds=10)
    clock.move(seconds=10)
    claimed(theirs)
    refusal = mine.refused("task_complete", **old)
    assert refusal["code"] == "LEASE_LOST"
    assert "Stop" in refusal["hint"]


def test_what_is_no_task_id_is_not_found(mine: Session) -> None:
    assert mine.refused("task_complete", task_id="t_1", fencing_token=1)["code"] == "NOT_FOUND"
    assert mine.refused("task_status", task_id="\0")["code"] == "NOT_FOUND"
