from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import ProtectedError

from handoffs import queries, services
from handoffs.models import Handoff
from leasehub.db.clock import iso
from leasehub.identity import services as identity
from leasehub.identity.models import Principal
from tests.conftest import Caster, cast, error_of
from tests.handoffs.conftest import events_of, resolve, send, sent, show


def test_accepting_moves_the_lease_with_a_larger_token_and_no_gap(
    agent: Caster, teammate: Caster, third: Caster, lease: Any, clock: Any
) -> None:
    handoff_id = sent(agent, teammate, lease_ids=[lease["lease_id"]])
    clock.move(seconds=50)
    answer = resolve(teammate, handoff_id, holder="night-1").json()["data"]
    (moved,) = answer["leases"]
    assert (answer["status"], answer["lost"]) == ("accepted", [])
    assert moved["fencing_token"] > lease["fencing_token"]
    assert moved["previous_lease_id"] == lease["lease_id"]
    assert moved["expires_in_ms"] == 60_000
    beat = agent.post(f"leases/{lease['lease_id']}/heartbeat", {"fencing_token": lease["fencing_token"]})
    assert error_of(beat) | {"status": 410, "code": "LEASE_LOST", "ended_by": "transferred"} == error_of(beat)
    assert third.acquire().status_code == 409
    mine = teammate.post(f"leases/{moved['lease_id']}/heartbeat", {"fencing_token": moved["fencing_token"]})
    assert mine.status_code == 200
    assert teammate.get(f"leases/{moved['lease_id']}").json()["data"]["holder"] == "night-1"
    assert [event["type"] for event in events_of(third)] == [
        "lease.acquired",
        "handoff.created",
        "lease.transferred",
        "handoff.accepted",
    ]


def test_while_it_is_pending_the_lease_is_the_givers(agent: Caster, teammate: Caster, lease: Any) -> None:
    sent(agent, teammate, lease_ids=[lease["lease_id"]])
    beat = {"fencing_token": lease["fencing_token"]}
    assert agent.post(f"leases/{lease['lease_id']}/heartbeat", beat).status_code == 200
    assert teammate.post(f"leases/{lease['lease_id']}/heartbeat", beat).status_code == 404


def test_what_lapsed_is_told_before_and_after_accepting(
    agent: Caster, teammate: Caster, lease: Any, clock: Any
) -> None:
    other = agent.acquire("docs", ttl_seconds=600).json()["data"]
    handoff_id = sent(agent, teammate, lease_ids=[lease["lease_id"], other["lease_id"]])
    clock.move(seconds=60)
    assert [row["outcome"] for row in show(teammate, handoff_id)["leases"]] == ["lost", "offered"]
    answer = resolve(teammate, handoff_id).json()["data"]
    assert [row["previous_lease_id"] for row in answer["leases"]] == [other["lease_id"]]
    assert [(row["lease_id"], row["outcome"]) for row in answer["lost"]] == [(lease["lease_id"], "lost")]


def test_a_reacquired_lease_is_another_acquisition_and_does_not_move(
    agent: Caster, teammate: Caster, lease: Any
) -> None:
    handoff_id = sent(agent, teammate, lease_ids=[lease["lease_id"]])
    again = agent.acquire().json()["data"]
    assert len(resolve(teammate, handoff_id).json()["data"]["lost"]) == 1
    beat = agent.post(f"leases/{again['lease_id']}/heartbeat", {"fencing_token": again["fencing_token"]})
    assert beat.status_code == 200


def test_a_person_gets_eight_hours_and_ttl_seconds_says_otherwise(agent: Caster, lease: Any, settings: Any) -> None:
    person = cast(agent.principal.organization, "person")
    type(person.principal).objects.filter(pk=person.principal.pk).update(kind="human")
    first = sent(agent, person, lease_ids=[lease["lease_id"]])
    (moved,) = resolve(person, first).json()["data"]["leases"]
    assert moved["expires_in_ms"] == 8 * 3600 * 1000
    back = sent(person, person, lease_ids=[moved["lease_id"]])
    (moved,) = resolve(person, back, ttl_seconds=120).json()["data"]["leases"]
    assert moved["expires_in_ms"] == 120_000
    settings.LEASEHUB_MAX_TTL_SECONDS = 3600
    again = sent(person, person, lease_ids=[moved["lease_id"]])
    (moved,) = resolve(person, again).json()["data"]["leases"]
    assert moved["expires_in_ms"] == 3600 * 1000


def test_a_lifetime_stays_when_the_lease_moves(agent: Caster, teammate: Caster, clock: Any) -> None:
    lease = agent.acquire(max_lifetime_seconds=90).json()["data"]
    handoff_id = sent(agent, teammate, lease_ids=[lease["lease_id"]])
    clock.move(seconds=50)
    (moved,) = resolve(teammate, handoff_id).json()["data"]["leases"]
    assert 30_000 < moved["expires_in_ms"] <= 40_000


@pytest.mark.parametrize(
    ("observed", "drift"), [("3F9D51F0" + "0" * 32, False), ("3f9d51f", False), ("8fe5643", True), (None, None)]
)
def test_an_observed_commit_reports_drift(agent: Caster, teammate: Caster, observed: Any, drift: Any) -> None:
    handoff_id = sent(agent, teammate, state={"commit": "3f9d51f"})
    members = {} if observed is None else {"observed_commit": observed}
    assert resolve(teammate, handoff_id, **members).json()["data"]["state_drift"] is drift
    assert events_of(agent, "handoff.accepted")[0]["data"].get("state_drift") is drift


def test_rejecting_wants_a_reason_and_gives_the_work_back(agent: Caster, teammate: Caster, lease: Any) -> None:
    handoff_id = sent(agent, teammate, lease_ids=[lease["lease_id"]])
    refused = error_of(teammate.post(f"handoffs/{handoff_id}/resolve", {"status": "rejected"}))
    assert (refused["status"], list(refused["fields"])) == (400, ["reason"])
    assert resolve(teammate, handoff_id, "rejected", reason="busy").status_code == 200
    shown = show(agent, handoff_id)
    assert (shown["status"], shown["reason"], shown["leases"][0]["outcome"]) == ("rejected", "busy", "kept")
    beat = agent.post(f"leases/{lease['lease_id']}/heartbeat", {"fencing_token": lease["fencing_token"]})
    assert beat.status_code == 200


def test_not_the_addressee_is_400_and_an_outsider_learns_nothing(
    agent: Caster, teammate: Caster, third: Caster, stranger: Caster
) -> None:
    handoff_id = sent(agent, teammate)
    unknown = "hoff_" + "0" * 32
    for verb, body in [
        ("resolve", {"status": "accepted"}),
        ("resolve", {"status": "rejected", "reason": "x"}),
        ("complete", {}),
    ]:
        for other in (agent, third):
            refused = error_of(other.post(f"handoffs/{handoff_id}/{verb}", body))
            assert (refused["status"], refused["code"]) == (400, "VALIDATION_ERROR")
    assert error_of(teammate.post(f"handoffs/{handoff_id}/withdraw"))["status"] == 400
    private = cast(agent.principal.organization, "third", (2,))
    for outsider in (stranger, private):
        for method, suffix, body in [
            ("GET", "", None),
            ("POST", "/resolve", {"status": "accepted"}),
            ("POST", "/withdraw", {}),
            ("POST", "/complete", {}),
        ]:
            there = outsider.request(method, f"handoffs/{handoff_id}{suffix}", body)
            nowhere = outsider.request(method, f"handoffs/{unknown}{suffix}", body)
            assert (there.status_code, there.content) == (404, nowhere.content)
    assert third.get(f"handoffs/{handoff_id}").content == third.get(f"handoffs/{unknown}").content
    for outsider in (third, stranger):
        for box in ("inbox", "sent"):
            assert outsider.get(f"handoffs?box={box}").json()["data"]["handoffs"] == []


@pytest.mark.parametrize("name", ["hoff_", "hoff_zz", "hoff_" + "g" * 32, "lease_" + "0" * 32, "0" * 32, "%00"])
def test_a_malformed_id_names_nothing(agent: Caster, name: str) -> None:
    assert agent.get(f"handoffs/{name}").status_code == 404
    assert resolve(agent, name).status_code == 404


def test_past_accept_by_it_is_expired_before_and_after_the_scan(
    agent: Caster, teammate: Caster, lease: Any, clock: Any
) -> None:
    handoff_id = sent(
        agent, teammate, accept_by=iso(clock.now() + timedelta(seconds=30)), lease_ids=[lease["lease_id"]]
    )
    clock.move(seconds=30)
    assert show(agent, handoff_id)["status"] == "expired"
    assert teammate.get("handoffs").json()["data"]["handoffs"] == []
    assert resolve(teammate, handoff_id).status_code == 404
    assert agent.post(f"handoffs/{handoff_id}/withdraw").status_code == 404
    assert services.expire_due() == 1
    assert services.expire_due() == 0
    assert show(agent, handoff_id)["status"] == "expired"
    assert resolve(teammate, handoff_id).status_code == 404
    (event,) = events_of(agent, "handoff.expired")
    assert event["actor"] is None
    beat = agent.post(f"leases/{lease['lease_id']}/heartbeat", {"fencing_token": lease["fencing_token"]})
    assert beat.status_code == 200


def test_the_scan_leaves_what_is_not_due(agent: Caster, teammate: Caster, clock: Any) -> None:
    sent(agent, teammate)
    sent(agent, teammate, accept_by=iso(clock.now() + timedelta(seconds=30)))
    clock.move(seconds=25)
    assert services.expire_due() == 0


def test_a_repeated_acceptance_replays_with_the_time_that_is_left(
    agent: Caster, teammate: Caster, lease: Any, clock: Any
) -> None:
    handoff_id = sent(agent, teammate, lease_ids=[lease["lease_id"]])

    def accept() -> Any:
        body = {"status": "accepted"}
        return teammate.post(f"handoffs/{handoff_id}/resolve", body, **{"Idempotency-Key": "a"}).json()["data"]

    first = accept()
    clock.move(seconds=10)
    again = accept()
    (one,), (two,) = first["leases"], again["leases"]
    assert (two["lease_id"], two["fencing_token"]) == (one["lease_id"], one["fencing_token"])
    assert 0 < two["expires_in_ms"] <= one["expires_in_ms"] - 10_000
    token = {"fencing_token": one["fencing_token"]}
    beaten = teammate.post(f"leases/{one['lease_id']}/heartbeat", token).json()["data"]
    assert accept()["leases"][0]["expires_at"] == beaten["expires_at"] > one["expires_at"]
    teammate.delete(f"leases/{one['lease_id']}")
    assert accept()["leases"][0]["expires_in_ms"] == 0
    assert resolve(teammate, handoff_id).status_code == 404


def test_the_acceptor_completes_it_with_a_result(agent: Caster, teammate: Caster) -> None:
    handoff_id = sent(agent, teammate)
    assert teammate.post(f"handoffs/{handoff_id}/complete", {"result": 1}).status_code == 404
    resolve(teammate, handoff_id)
    secret = {"log": "exported AKIAIOSFODNN7EXAMPLE"}
    refused = error_of(teammate.post(f"handoffs/{handoff_id}/complete", {"result": secret}))
    assert list(refused["fields"]) == ["result.log"]
    result = {"url": "https://ci.example/42", "green": True}
    answer = teammate.post(f"handoffs/{handoff_id}/complete", {"result": result})
    assert answer.json()["data"]["status"] == "completed"
    assert show(agent, handoff_id)["result"] == result
    assert b"ci.example" not in agent.get("events").content


def test_when_the_giver_retires_its_work_can_be_accepted(
    agent: Caster, teammate: Caster, operator: Caster, lease: Any
) -> None:
    handoff_id = sent(agent, teammate, lease_ids=[lease["lease_id"]])
    operator.post("principals/agent/retire")
    assert show(teammate, handoff_id)["from_principal"] == "agent"
    assert len(resolve(teammate, handoff_id).json()["data"]["leases"]) == 1


def test_when_the_addressee_retires_the_work_goes_back_by_withdrawal(
    agent: Caster, teammate: Caster, operator: Caster, lease: Any
) -> None:
    handoff_id = sent(agent, teammate, lease_ids=[lease["lease_id"]])
    operator.post("principals/teammate/retire")
    assert resolve(teammate, handoff_id).status_code == 401
    assert show(agent, handoff_id)["status"] == "pending"
    assert agent.post(f"handoffs/{handoff_id}/withdraw", {"reason": "left"}).status_code == 200


def test_when_the_givers_key_is_revoked_nothing_is_lost(agent: Caster, teammate: Caster, lease: Any) -> None:
    handoff_id = sent(agent, teammate, lease_ids=[lease["lease_id"]])
    identity.revoke_key(
        organization=agent.caller.organization, key=type(agent.principal.keys.get()).objects.get(pk=agent.caller.key)
    )
    assert len(resolve(teammate, handoff_id).json()["data"]["leases"]) == 1


def test_an_operator_withdraws_in_the_admin(agent: Caster, teammate: Caster, operator: Caster) -> None:
    from handoffs.queries import parse_handoff_id
    from leases.services import Actor

    handoff_id = sent(agent, teammate)
    services.withdraw(
        actor=Actor(operator.caller.organization, operator.caller.principal),
        handoff_id=parse_handoff_id(handoff_id),
        reason="stuck",
        as_operator=True,
    )
    (event,) = events_of(agent, "handoff.withdrawn")
    assert event["actor"] == {"principal": "operator", "key_id": None}


def test_boxes_are_paged_in_order(agent: Caster, teammate: Caster) -> None:
    ids = [sent(agent, teammate) for _ in range(5)]
    assert paged(teammate, "handoffs?limit=2") == ids
    assert paged(agent, "handoffs?box=sent&limit=2") == ids[::-1]
    resolve(teammate, ids[0])
    assert paged(teammate, "handoffs?limit=2") == ids[1:]
    assert paged(teammate, "handoffs?limit=2&status=accepted") == ids[:1]
    assert paged(agent, "handoffs?box=sent&status=pending&limit=3") == ids[:0:-1]


def paged(caster: Caster, path: str) -> list[str]:
    found: list[str] = []
    following: str | None = ""
    while following is not None:
        answer = caster.get(path + (f"&after={following}" if following else "")).json()["data"]
        found += [row["handoff_id"] for row in answer["handoffs"]]
        following = answer["next"]
    return found


def test_statistics_say_how_long_acceptance_took_and_why_work_was_rejected(
    agent: Caster, teammate: Caster, clock: Any
) -> None:
    first, second, third_one, _ = [sent(agent, teammate) for _ in range(4)]
    clock.move(seconds=10)
    resolve(teammate, first)
    clock.move(seconds=20)
    resolve(teammate, second)
    resolve(teammate, third_one, "rejected", reason="busy")
    mine = teammate.get("handoffs/statistics").json()["data"]
    assert (mine["accepted"], mine["rejected"], mine["pending"]) == (2, 1, 1)
    assert 20 <= mine["mean_seconds_to_accept"] < 21
    assert 30 <= mine["longest_seconds_to_accept"] < 31
    assert mine["reject_reasons"] == [{"reason": "busy", "count": 1}]
    theirs = agent.get("handoffs/statistics?principal=teammate").json()["data"]
    assert theirs == mine | {"reject_reasons": None}
    private = cast(agent.principal.organization, "agent", (2,))
    assert private.get("handoffs/statistics?principal=teammate").status_code == 403
    assert agent.get("handoffs/statistics?principal=nobody").status_code == 404


def test_refusals_name_what_is_wrong(agent: Caster, teammate: Caster) -> None:
    handoff_id = sent(agent, teammate)
    for body, member in [
        ({"status": "maybe"}, "status"),
        ({"status": "accepted", "ttl_seconds": 1}, "ttl_seconds"),
        ({"status": "accepted", "ttl_seconds": True}, "ttl_seconds"),
        ({"status": "rejected", "reason": "token ghp_0123456789abcdefghij0123456789"}, "reason"),
        ({"status": "accepted", "observed_commit": "?"}, "observed_commit"),
        ({}, "status"),
    ]:
        refused = error_of(teammate.post(f"handoffs/{handoff_id}/resolve", body))
        assert (refused["status"], list(refused["fields"])) == (400, [member])
    fenced = cast(agent.principal.organization, "teammate", holder_pattern="^day-[0-9]+$")
    assert resolve(fenced, handoff_id).status_code == 403
    assert send(agent, teammate, lease_ids="x").status_code == 400
    assert show(agent, handoff_id)["status"] == "pending"


def test_more_than_a_batch_expires_in_one_scan(agent: Caster, teammate: Caster, clock: Any) -> None:
    accept_by = clock.now() + timedelta(seconds=30)
    Handoff.objects.bulk_create(handoffs(agent, teammate, services.EXPIRE_BATCH + 1, accept_by=accept_by))
    clock.move(seconds=31)
    assert services.expire_due() == services.EXPIRE_BATCH + 1
    assert set(Handoff.objects.values_list("status", flat=True)) == {"expired"}


def handoffs(giver: Caster, to: Caster, count: int, **members: Any) -> list[Handoff]:
    return [
        Handoff(
            organization=giver.principal.organization,
            giver=giver.principal,
            addressee=to.principal,
            subject_id=f"s{number}",
            created_at=giver.principal.created_at,
            **members,
        )
        for number in range(count)
    ]


def test_boxes_and_the_scan_read_their_indexes(agent: Caster, teammate: Caster, third: Caster, clock: Any) -> None:
    Handoff.objects.bulk_create(handoffs(agent, teammate, 3000) + handoffs(third, agent, 20))
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE handoffs_handoff")
    at = clock.now()
    plans = {
        "handoff_inbox": queries.inbox(principal=agent.principal.pk, at=at),
        "handoff_sent": queries.sent(principal=third.principal.pk, at=at),
    }
    for index, rows in plans.items():
        assert index in rows.order_by("pk")[:51].explain(), index
    due = Handoff.objects.filter(status="pending", accept_by__lte=at).order_by("accept_by")[:50]
    assert "handoff_due" in due.explain()


def test_a_party_is_never_deleted_and_a_user_that_is_loses_nothing(agent: Caster, teammate: Caster) -> None:
    person = cast(agent.principal.organization, "person")
    user = User.objects.create_user("person")
    Principal.objects.filter(pk=person.principal.pk).update(user=user, kind="human")
    handoff_id = sent(agent, person)
    user.delete()
    assert show(agent, handoff_id)["to_principal"] == "person"
    assert resolve(person, handoff_id).status_code == 200
    with pytest.raises(ProtectedError):
        Principal.objects.get(handle="person").delete()
