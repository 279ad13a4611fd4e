from typing import Any

from tests.conftest import Caster, error_of


def test_a_free_resource_is_granted_with_a_token_and_an_expiry(agent: Caster) -> None:
    response = agent.acquire(purpose="release 41")
    granted = response.json()["data"]
    assert response.status_code == 201
    assert response.headers["Location"] == f"/v1/leases/{granted['lease_id']}"
    assert granted["expires_in_ms"] == 60_000
    assert not granted["took_over_expired"]
    assert granted["previous"] is None


def test_a_second_agent_is_refused_and_told_when_to_retry_but_not_by_whom(agent: Caster, teammate: Caster) -> None:
    agent.acquire(purpose="secret plan")
    response = teammate.acquire()
    refused = error_of(response)
    assert (refused["status"], refused["code"], refused["held_by_self"]) == (409, "CONFLICT", False)
    assert 0 < refused["retry_after_ms"] <= 60_000
    assert response.headers["Retry-After"] == "60"
    assert b"secret plan" not in response.content
    assert b"agent" not in response.content


def test_an_expired_lease_is_taken_over_loudly_without_the_reaper(agent: Caster, teammate: Caster, clock: Any) -> None:
    lost = agent.acquire().json()["data"]
    clock.move(seconds=60)
    taken = teammate.acquire().json()["data"]
    assert taken["took_over_expired"]
    assert taken["previous"]["lease_id"] == lost["lease_id"]
    assert taken["fencing_token"] > lost["fencing_token"]
    beat = agent.post(f"leases/{lost['lease_id']}/heartbeat", {"fencing_token": lost["fencing_token"]})
    assert error_of(beat) | {"code": "LEASE_LOST", "ended_by": "taken_over"} == error_of(beat)
