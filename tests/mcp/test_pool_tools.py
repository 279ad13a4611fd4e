"""Pools through MCP."""

from typing import Any

import pytest

from tests.mcp.conftest import Session


@pytest.fixture
def pool(operating: Session) -> str:
    document = {"slots": [{"id": 1, "port": 5001}], "grantEnv": {"PORT": "{port}"}}
    assert operating.who.put("pools/phones", document).status_code == 201
    return "phones"


def test_a_free_slot_is_granted_at_once(mine: Session, pool: str) -> None:
    got = mine.call("pool_acquire", pool=pool)
    assert (got["granted"], got["queued"], got["pending"], got["state"]) == (True, False, False, "ready")
    (grant,) = got["grants"]
    assert (grant["slot_id"], grant["attrs"]["port"]) == (1, 5001)
    named = {"lease_id": grant["lease_id"], "fencing_token": grant["fencing_token"]}
    assert mine.call("lease_heartbeat", **named)
    released = mine.call("pool_release", pool=pool, slot_id="1", fencing_token=grant["fencing_token"])
    assert released["lease_id"] == grant["lease_id"]


def test_the_next_one_waits_in_the_queue_and_gets_its_turn(mine: Session, theirs: Session, pool: str) -> None:
    (grant,) = mine.call("pool_acquire", pool=pool)["grants"]
    waits = theirs.call("pool_acquire", pool=pool)
    assert (waits["granted"], waits["queued"], waits["pending"], waits["position"]) == (False, True, True, 1)
    assert waits["eta_s"] == 8 * 60
    waited = theirs.call("pool_wait", pool=pool, request_id=waits["request_id"], wait_seconds=0)
    assert (waited["pending"], waited["position"]) == (True, 1)
    mine.call("pool_release", pool=pool, slot_id="1", fencing_token=grant["fencing_token"])
    waited = theirs.call("pool_wait", pool=pool, request_id=waits["request_id"], wait_seconds=0)
    assert (waited["granted"], waited["grants"][0]["slot_id"]) == (True, 1)


def test_a_place_in_the_queue_can_be_left(mine: Session, theirs: Session, operating: Session, pool: str) -> None:
    mine.call("pool_acquire", pool=pool)
    waits = theirs.call("pool_acquire", pool=pool)
    named = {"pool": pool, "request_id": waits["request_id"]}
    for other in (mine, operating):
        assert other.refused("pool_release", **named)["code"] == "NOT_FOUND"
    assert theirs.call("pool_release", **named)["state"] == "cancelled"


def test_now_or_not_at_all(mine: Session, theirs: Session, pool: str) -> None:
    mine.call("pool_acquire", pool=pool)
    refusal = theirs.refused("pool_acquire", pool=pool, no_wait=True)
    assert (refusal["code"], refusal["position"]) == ("SATURATED", 1)
    assert refusal["retry_after_s"] >= 1
    assert theirs.refused("pool_acquire", pool=pool, count=2)["code"] == "UNSATISFIABLE"
    assert theirs.refused("pool_release", pool=pool)["fields"] == {"slot_id": "is required without request_id"}


def test_a_pool_is_shown_in_short(mine: Session, theirs: Session, pool: str) -> None:
    mine.call("pool_acquire", pool=pool)
    theirs.call("pool_acquire", pool=pool)
    shown: dict[str, Any] = theirs.call("pool_status", pool=pool)
    assert (shown["slots_held"], shown["slots_free"], shown["waiting"]) == (1, 0, 1)
    assert shown["slots"][0]["holder"] == "agent"
    assert shown["queue"][0]["position"] == 1
