"""Asking for slots: at once, in the queue, no more."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, connections

from leasehub.events.models import Event
from leases import services as leases
from pools import services
from pools.models import Request, Slot
from tests.conftest import Caster, error_of
from tests.pools.conftest import Declare, ask, look, on_slot, passes, slots, status


def test_a_free_slot_is_granted_at_once(agent: Caster, declare: Declare) -> None:
    declare(slots=[{"id": 1, "port": 4000}], grantEnv={"APP_PORT": "{port}"}, grantFields={"url": "http://h:{port}"})
    response = agent.post("pools/e2e/requests", {"mode": "blocking"})
    given = response.json()["data"]
    assert response.status_code == 201
    assert response.headers["Location"] == f"/v1/pools/e2e/requests/{given['request_id']}"
    assert (given["state"], given["position"], given["eta_ms"]) == ("ready", None, None)
    (grant,) = given["grants"]
    assert grant["slot_id"] == 1
    assert grant["attrs"] == {"port": 4000}
    assert grant["env"] == {"APP_PORT": "4000"}
    assert grant["url"] == "http://h:4000"
    assert grant["ttl_minutes"] == 30
    assert 0 < grant["expires_in_ms"] <= 30 * 60_000
    assert agent.get(f"leases/{grant['lease_id']}").json()["data"]["resource_id"] == "e2e/1"


def test_the_next_ones_wait_in_order_with_a_position_and_an_eta(
    agent: Caster, teammate: Caster, declare: Declare
) -> None:
    declare(slots=slots(1))
    first = ask(agent)
    second, third = ask(teammate), ask(agent, mode="async")
    assert (second["state"], second["position"], second["eta_ms"]) == ("queued", 1, 480_000)
    assert (third["position"], third["eta_ms"]) == (2, 960_000)
    assert on_slot(agent, first["grants"][0], "release").status_code == 200
    assert look(teammate, second)["state"] == "ready"
    assert look(agent, third)["position"] == 1


def test_who_does_not_want_to_wait_is_told_what_waiting_would_mean(
    agent: Caster, teammate: Caster, declare: Declare
) -> None:
    declare(slots=slots(1))
    ask(agent)
    refused = error_of(teammate.post("pools/e2e/requests", {"mode": "blocking", "no_wait": True}))
    assert (refused["status"], refused["code"]) == (409, "SATURATED")
    assert (refused["position"], refused["eta_ms"]) == (1, 480_000)
    assert Request.objects.count() == 1


def test_what_can_never_be_is_refused_at_once(agent: Caster, declare: Declare) -> None:
    declare(slots=slots(2, region="eu"))
    for wish in ({"count": 3}, {"selector": {"region": "us"}}, {"selector": {"region": "eu"}, "count": 3}):
        refused = error_of(agent.post("pools/e2e/requests", {"mode": "blocking", **wish}))
        assert (refused["status"], refused["code"]) == (422, "UNSATISFIABLE")


def test_a_waiter_learns_when_the_pool_shrinks_below_its_wish(agent: Caster, declare: Declare) -> None:
    declare(slots=slots(2))
    ask(agent)
    waiter = ask(agent, count=2)
    declare(slots=slots(1))
    refused = error_of(agent.get(f"pools/e2e/requests/{waiter['request_id']}"))
    assert (refused["status"], refused["code"], refused["state"]) == (422, "UNSATISFIABLE", "dropped")


def test_a_selector_waits_for_its_own_slots_alone(agent: Caster, teammate: Caster, declare: Declare) -> None:
    declare(slots=[{"id": "a", "box": {"region": "eu"}, "tags": ["fast"]}, {"id": "b", "box": {"region": "us"}}])
    held = ask(agent, selector={"box.region": "eu", "tags.0": "fast"})
    assert held["grants"][0]["slot_id"] == "a"
    waits = ask(teammate, selector={"box.region": "eu"})
    passes_by = ask(teammate, selector={"box.region": "us"})
    assert (waits["state"], passes_by["state"]) == ("queued", "ready")


def test_a_large_request_is_not_starved_by_small_ones(agent: Caster, teammate: Caster, declare: Declare) -> None:
    declare(slots=slots(2))
    one, two = ask(agent), ask(agent)
    large = ask(teammate, count=2)
    small = ask(agent)
    on_slot(agent, one["grants"][0], "release")
    assert (look(teammate, large)["state"], look(agent, small)["state"]) == ("queued", "queued")
    on_slot(agent, two["grants"][0], "release")
    granted = look(teammate, large)
    assert granted["state"] == "ready"
    assert {grant["slot_id"] for grant in granted["grants"]} == {1, 2}
    assert look(agent, small)["state"] == "queued"


def test_a_silent_waiter_is_dropped_and_does_not_block_the_next(
    agent: Caster, teammate: Caster, declare: Declare, clock: Any
) -> None:
    declare(slots=slots(1))
    held, silent, next_one = ask(agent), ask(teammate), ask(agent)
    clock.move(seconds=60)
    look(agent, next_one)
    clock.move(seconds=60)
    look(agent, next_one)
    on_slot(agent, held["grants"][0], "release")
    assert look(agent, next_one)["state"] == "ready"
    dropped = look(teammate, silent)
    assert (dropped["state"], dropped["reason"]) == ("dropped", "silent")
    assert Event.objects.get(type="pool.dropped").data["request_id"] == silent["request_id"]


def test_a_waiter_does_not_wait_for_the_reaper(agent: Caster, teammate: Caster, declare: Declare, clock: Any) -> None:
    declare(slots=slots(1), ttlMinutes=1)
    held, waiter = ask(agent), ask(teammate)
    clock.move(seconds=61)
    assert look(teammate, waiter)["state"] == "ready"
    lost = look(agent, held)
    assert (lost["state"], lost["reason"], lost["grants"]) == ("lease_lost", "reaped", [])
    beat = error_of(on_slot(agent, held["grants"][0], "heartbeat"))
    assert (beat["status"], beat["code"], beat["ended_by"]) == (410, "LEASE_LOST", "reaped")
    assert len(agent.get("leases/reaped").json()["data"]["leases"]) == 1


def test_leaving_the_queue_and_giving_back(agent: Caster, teammate: Caster, declare: Declare) -> None:
    declare(slots=slots(1))
    held, waiter, last = ask(agent), ask(teammate), ask(agent)
    address = f"pools/e2e/requests/{waiter['request_id']}"
    assert error_of(agent.delete(address))["status"] == 404
    assert teammate.delete(address).json()["data"]["state"] == "cancelled"
    assert look(agent, last)["position"] == 1
    assert agent.delete(f"pools/e2e/requests/{held['request_id']}").json()["data"]["state"] == "cancelled"
    assert look(agent, last)["state"] == "ready"
    assert teammate.delete(address).json()["data"]["state"] == "cancelled"


def test_grants_that_nobody_fetches_go_back(agent: Caster, teammate: Caster, declare: Declare, clock: Any) -> None:
    from pools import services

    declare(slots=slots(1), claimWindowMs=60_000)
    held, abandoned = ask(agent), ask(teammate, mode="async")
    on_slot(agent, held["grants"][0], "release")
    assert look(teammate, abandoned, "?peek=true")["grants"] == []
    last = ask(agent)
    clock.move(seconds=61)
    services.sweep_pools()
    assert look(agent, last)["state"] == "ready"
    gone = look(teammate, abandoned)
    assert (gone["state"], gone["reason"]) == ("dropped", "unclaimed")


def test_a_fetched_grant_stays(agent: Caster, teammate: Caster, declare: Declare, clock: Any) -> None:
    from pools import services

    declare(slots=slots(1), claimWindowMs=60_000)
    held, fetched = ask(agent), ask(teammate, mode="async")
    on_slot(agent, held["grants"][0], "release")
    assert len(look(teammate, fetched)["grants"]) == 1
    clock.move(seconds=61)
    services.sweep_pools()
    assert look(teammate, fetched)["state"] == "ready"


def test_others_see_a_request_without_its_grants(agent: Caster, teammate: Caster, declare: Declare) -> None:
    declare()
    given = ask(agent)
    seen = look(teammate, given)
    assert (seen["state"], seen["grants"]) == ("ready", [])
    shown = status(teammate)
    assert "fencing_token" not in str(shown)
    assert {slot["holder"] for slot in shown["slots"]} == {"agent", None}


def test_nothing_is_visible_across_organizations(agent: Caster, stranger: Caster, declare: Declare) -> None:
    declare()
    given = ask(agent)
    nowhere = stranger.get("pools/nowhere").content
    assert stranger.get("pools/e2e").content == nowhere
    for response in (
        stranger.get(f"pools/e2e/requests/{given['request_id']}"),
        stranger.post("pools/e2e/requests", {"mode": "blocking"}),
        stranger.post("pools/e2e/slots/1/drain"),
        on_slot(stranger, given["grants"][0], "release"),
    ):
        assert (response.status_code, response.content) == (404, nowhere)


def test_a_token_that_was_never_ones_own_is_stale(agent: Caster, teammate: Caster, declare: Declare) -> None:
    declare(slots=slots(1))
    (grant,) = ask(agent)["grants"]
    assert error_of(on_slot(teammate, grant, "release"))["code"] == "STALE_TOKEN"
    assert error_of(on_slot(agent, {**grant, "fencing_token": 7}, "heartbeat"))["code"] == "STALE_TOKEN"
    assert on_slot(agent, grant, "heartbeat").json()["data"]["fencing_token"] == grant["fencing_token"]
    assert on_slot(agent, grant, "release").json()["data"]["was_expired"] is False
    assert error_of(on_slot(agent, grant, "release")) | {"ended_by": "released", "status": 410} == error_of(
        on_slot(agent, grant, "release")
    )


def test_a_repeated_request_takes_one_place(agent: Caster, declare: Declare) -> None:
    declare(slots=slots(1))
    key = {"Idempotency-Key": "once"}
    answers = [agent.request("POST", "pools/e2e/requests", {"mode": "blocking"}, **key) for _ in range(2)]
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["data"]["request_id"] for answer in answers}) == 1
    assert Request.objects.count() == 1
    assert Slot.objects.exclude(lease_id=None).count() == 1


def test_a_slot_that_an_earlier_request_is_short_of_is_kept_from_other_selectors(
    agent: Caster, teammate: Caster, declare: Declare
) -> None:
    declare(slots=[{"id": 1, "region": "eu", "fast": True}, {"id": 2, "region": "eu"}, {"id": 3, "fast": True}])
    held = ask(agent, selector={"id": 2})
    other = ask(agent, selector={"id": 3})
    pair = ask(teammate, selector={"region": "eu"}, count=2)
    fast = ask(agent, selector={"fast": True})
    assert (pair["state"], fast["state"]) == ("queued", "queued"), "slot 1 is free, and kept"
    on_slot(agent, other["grants"][0], "release")
    assert look(agent, fast)["grants"][0]["slot_id"] == 3
    on_slot(agent, held["grants"][0], "release")
    assert look(teammate, pair)["state"] == "ready"


def test_one_of_many_free_slots_is_granted_at_once_wherever_it_stands(agent: Caster, declare: Declare) -> None:
    many = [{"id": n, "region": "far" if n == 90 else "near"} for n in range(1, 91)]
    declare(slots=many)
    for region, expected in (("far", 90), ("near", 1), ("near", 2)):
        made = ask(agent, selector={"region": region})
        (grant,) = made["grants"]
        assert (made["state"], grant["slot_id"], grant["attrs"]["region"]) == ("ready", expected, region)
    assert ask(agent, selector={"region": "far"})["position"] == 1


@pytest.mark.skipif(connection.vendor != "postgresql", reason="on SQLite the pool is locked before it is read")
@pytest.mark.parametrize("members", [{"ttlMinutes": 7}, {"provision": "true", "worker": "here"}])
def test_a_pool_that_is_declared_anew_meanwhile_is_granted_as_it_is_now(
    members: dict[str, Any], agent: Caster, declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = declare()
    declare(**members)
    monkeypatch.setattr(services, "known_row", lambda *_, **__: before)
    asked = ask(agent)
    if "provision" in members:
        assert asked["state"] == "provisioning"
    else:
        assert asked["grants"][0]["ttl_minutes"] == 7


def test_many_who_ask_at_once_get_a_slot_each_and_a_ticket_each(
    agent: Caster, declare: Declare, transactional_db: None
) -> None:
    declare(slots=slots(12, region="eu"))
    caller = agent.caller

    def take(_: int) -> Request:
        try:
            return services.request(caller=caller, pool="e2e", mode="blocking", selector={"region": "eu"})
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(take, range(16)))
    assert sorted(request.ticket for request in made) == list(range(1, 17))
    ready = [request for request in made if request.state == "ready"]
    assert sorted(request.ticket for request in ready) == list(range(1, 13))
    assert len({request.granted[0][0].pk for request in ready}) == 12  # type: ignore[attr-defined]


def test_a_grant_that_is_heartbeaten_is_taken_from_nobody(
    agent: Caster, teammate: Caster, declare: Declare, clock: Any
) -> None:
    """By one who learnt of it otherwise, from the event of its grant, and never fetched it."""
    declare(slots=slots(1), claimWindowMs=20_000, ttlMinutes=1)
    first = ask(agent)
    waits = ask(teammate, mode="async")
    on_slot(agent, first["grants"][0], "release")
    granted = Event.objects.filter(type="pool.granted").latest("pk")
    token = {"slot_id": 1, "fencing_token": granted.fencing_token}
    for _ in range(4):
        clock.move(seconds=10)
        assert on_slot(teammate, token, "heartbeat").status_code == 200
        services.sweep_pools()
    assert look(teammate, waits, "?peek=true")["state"] == "ready"


def test_what_the_commands_of_a_grant_beat_is_no_sign_of_its_holder(
    agent: Caster, declare: Declare, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(slots=slots(1), provision="make-clean", claimWindowMs=20_000, ttlMinutes=10)
    asked = ask(agent, mode="async")
    keep_alive = leases.keep_alive

    def later(**which: Any) -> None:
        # Its beat is of another millisecond than the end of the commands.
        clock.move(seconds=5)
        keep_alive(**which)

    monkeypatch.setattr(leases, "keep_alive", later)
    passes()
    clock.move(seconds=30)
    services.sweep_pools()
    dropped = look(agent, asked, "?peek=true")
    assert (dropped["state"], dropped["reason"]) == ("dropped", "unclaimed")


def test_an_operator_ends_no_grant_without_a_reason(agent: Caster, operator: Caster, declare: Declare) -> None:
    declare(slots=slots(1))
    held, waits = ask(agent), ask(agent)
    refused = error_of(operator.delete(f"pools/e2e/requests/{held['request_id']}"))
    assert (refused["status"], refused["code"]) == (409, "CONFLICT")
    assert 0 < refused["retry_after_ms"] <= held["grants"][0]["expires_in_ms"]
    assert on_slot(agent, held["grants"][0], "heartbeat").status_code == 200
    assert operator.delete(f"pools/e2e/requests/{waits['request_id']}").json()["data"]["state"] == "dropped"


def test_what_was_granted_at_once_is_answered_again_after_its_end(agent: Caster, declare: Declare) -> None:
    declare(slots=slots(1))
    key = {"Idempotency-Key": "once"}
    first = agent.request("POST", "pools/e2e/requests", {"mode": "blocking"}, **key)
    on_slot(agent, first.json()["data"]["grants"][0], "release")
    again = agent.request("POST", "pools/e2e/requests", {"mode": "blocking"}, **key)
    assert (again.status_code, again.headers["Location"]) == (201, first.headers["Location"])
    (was,), (now,) = (answer.json()["data"].pop("grants") for answer in (first, again))
    assert now == {**was, "expires_in_ms": 0}
    assert first.json()["data"]["request_id"] == again.json()["data"]["request_id"]


def test_a_release_is_repeated_without_harm(agent: Caster, declare: Declare) -> None:
    declare(slots=slots(1))
    (grant,) = ask(agent)["grants"]
    body = {"fencing_token": grant["fencing_token"]}
    path, key = f"pools/e2e/slots/{grant['slot_id']}/release", {"Idempotency-Key": "once"}
    answers = [agent.request("POST", path, body, **key) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].content == answers[1].content
    assert agent.request("POST", path, {"fencing_token": 1}, **key).status_code == 422


def test_text_of_a_session_is_text(agent: Caster, declare: Declare) -> None:
    declare(slots=slots(1))
    for session in ("\0", "a\nb", "\u202ea", " "):
        refused = error_of(agent.post("pools/e2e/requests", {"mode": "async", "session": session}))
        assert (refused["status"], list(refused["fields"])) == (400, ["session"])
