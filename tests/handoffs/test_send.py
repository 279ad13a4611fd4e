import time
from datetime import timedelta
from typing import Any

import pytest

from handoffs import credentials
from leasehub.db.clock import iso
from leasehub.errors import ValidationError
from tests.conftest import Caster, cast, error_of
from tests.handoffs.conftest import events_of, resolve, send, sent, show

CONTENT = {
    "message": "half of the fleet runs 41",
    "next_action": "./deploy --from web-07",
    "done": ["web-01 to web-06"],
    "decisions": ["canary first", {"what": "no database change", "why": "it was done in 40"}],
    "failed_approaches": [{"what": "all at once", "why": "the balancer times out"}],
    "blockers": ["web-09 is in repair"],
    "artifacts": [{"kind": "log", "uri": "https://ci.example/41", "sha256": "a" * 64, "note": "the last green run"}],
    "state": {"repo": "shop", "branch": "release-41", "commit": "3f9d51f", "dirty": False},
}


def test_a_handoff_arrives_with_everything_it_carries(agent: Caster, teammate: Caster, lease: Any, clock: Any) -> None:
    checkpoint = agent.put("checkpoints/deploy-41/task_state", {"state": {"done": 6}}).json()["data"]
    response = send(
        agent,
        teammate,
        **CONTENT,
        context_id="sprint-9",
        checkpoint_id=checkpoint["checkpoint_id"],
        lease_ids=[lease["lease_id"]],
        accept_by=iso(clock.now() + timedelta(hours=1)),
    )
    assert response.status_code == 201
    answer = response.json()["data"]
    assert answer["status"] == "pending"
    assert response.headers["Location"] == f"/v1/handoffs/{answer['handoff_id']}"
    (shown,) = teammate.get("handoffs").json()["data"]["handoffs"]
    assert shown == show(teammate, answer["handoff_id"]) | {name: shown[name] for name in ("accept_by_in_ms", "leases")}
    assert (shown["from_principal"], shown["to_principal"]) == ("agent", "teammate")
    assert (shown["message"], shown["next_action"]) == (CONTENT["message"], CONTENT["next_action"])
    assert shown["decisions"][0] == {"what": "canary first"}
    assert shown["artifacts"] == CONTENT["artifacts"]
    assert shown["state"] == CONTENT["state"]
    assert shown["state_hash"] == answer["state_hash"]
    assert (shown["checkpoint_id"], shown["checkpoint_version"]) == (checkpoint["checkpoint_id"], 1)
    assert (shown["leases"][0]["lease_id"], shown["leases"][0]["outcome"]) == (lease["lease_id"], "offered")
    assert shown["leases"][0]["fencing_token"] is None
    assert 0 < shown["accept_by_in_ms"] <= 3_600_000


def test_the_giver_is_the_key_and_cannot_be_named(agent: Caster, teammate: Caster) -> None:
    refused = error_of(send(agent, teammate, from_principal="teammate"))
    assert (refused["status"], refused["fields"]) == (400, {"from_principal": "is not a known member"})


@pytest.mark.parametrize("handle", ["teamate", "TEAMMATE", "team-mate"])
def test_an_unknown_addressee_is_refused_with_what_was_meant(agent: Caster, teammate: Caster, handle: str) -> None:
    refused = error_of(send(agent, handle))
    assert (refused["status"], refused["code"], refused["did_you_mean"]) == (404, "NOT_FOUND", ["teammate"])


def test_a_retired_addressee_and_one_elsewhere_are_unknown(agent: Caster, operator: Caster, stranger: Caster) -> None:
    cast(agent.principal.organization, "leaver")
    operator.post("principals/leaver/retire")
    assert error_of(send(agent, "leaver")) == error_of(send(agent, "nobody")) == error_of(send(agent, stranger))


def test_only_a_live_lease_of_ones_own_can_be_offered(
    agent: Caster, teammate: Caster, stranger: Caster, lease: Any, clock: Any
) -> None:
    foreign = stranger.acquire().json()["data"]["lease_id"]
    answers = {
        send(giver, to, lease_ids=[lease_id]).content
        for giver, to, lease_id in [
            (teammate, agent, lease["lease_id"]),
            (agent, teammate, foreign),
            (agent, teammate, "lease_" + "0" * 32),
            (agent, teammate, "t_" + "0" * 32),
        ]
    }
    assert len(answers) == 1
    clock.move(seconds=60)
    assert send(agent, teammate, lease_ids=[lease["lease_id"]]).status_code == 404
    assert not teammate.get("handoffs").json()["data"]["handoffs"]


def test_a_key_cannot_offer_a_lease_outside_its_fence(agent: Caster, teammate: Caster) -> None:
    other = agent.acquire(holder="night-1").json()["data"]
    fenced = cast(agent.principal.organization, "agent", holder_pattern="^day-[0-9]+$")
    assert send(fenced, teammate, lease_ids=[other["lease_id"]]).status_code == 404
    assert send(agent, teammate, lease_ids=[other["lease_id"]]).status_code == 201


def test_a_key_that_only_observes_cannot_send(agent: Caster, teammate: Caster) -> None:
    watcher = cast(agent.principal.organization, "agent", (1,))
    assert error_of(send(watcher, teammate))["status"] == 403


@pytest.mark.parametrize(
    ("member", "value", "named"),
    [
        ("message", "use ghp_0123456789abcdefghij0123456789abcdef", "message"),
        ("next_action", "curl -H 'Authorization: Bearer abcdefghijkl'", "next_action"),
        ("done", ["fine", "exported AKIAIOSFODNN7EXAMPLE"], "done.1"),
        ("decisions", [{"what": "key", "why": "-----BEGIN RSA PRIVATE KEY-----"}], "decisions.0.why"),
        ("artifacts", [{"kind": "db", "uri": "postgres://app:hunter2@db/shop"}], "artifacts.0.uri"),
        ("state", {"repo": "https://x:glpat-abcdefghijklmnopqrst@git.example/shop"}, "state.repo"),
        ("blockers", ["lh_AAAAAAAA_" + "b" * 49], "blockers.0"),
        ("blockers", ["sk-proj-abcdefghijklmnop"], "blockers.0"),
    ],
)
def test_what_looks_like_a_credential_is_refused_by_name(
    agent: Caster, teammate: Caster, member: str, value: Any, named: str
) -> None:
    refused = error_of(send(agent, teammate, **{member: value}))
    assert (refused["status"], refused["code"]) == (400, "VALIDATION_ERROR")
    assert list(refused["fields"]) == [named]


@pytest.mark.parametrize(
    "text",
    [
        "lh_AAAAAAAA_" + "b" * 49,
        "titen_sk_" + "a" * 20,
        "gho_" + "0" * 20,
        "github_pat_" + "a" * 20,
        "glpat-" + "a" * 16,
        "sk-" + "a" * 16,
        "rk_live_" + "a" * 16,
        "sk_test_" + "a" * 16,
        "ASIA" + "A" * 16,
        "AIza" + "a" * 30,
        "xoxb-" + "1" * 10,
        "npm_" + "a" * 30,
        "pypi-" + "a" * 40,
        "dop_v1_" + "0" * 40,
        "whsec_" + "a" * 20,
        "mcp_" + "a" * 20,
        "eyJ" + "a" * 10 + ".eyJ" + "a" * 10 + ".sig",
        "-----BEGIN EC PRIVATE KEY-----",
        "amqp://guest:guest@broker",
        "Authorization: Basic dXNlcjpwYXNz",
    ],
)
def test_every_kind_of_credential_is_known(text: str) -> None:
    for given in (text, f"use {text} there"):
        with pytest.raises(ValidationError):
            credentials.refuse(message=given)


@pytest.mark.parametrize(
    "text", ["task-sk-learn-is-used", "the risk-averse-approach-we-took", "https://a.example:8080/x@y"]
)
def test_ordinary_words_are_no_credentials(agent: Caster, teammate: Caster, text: str) -> None:
    assert send(agent, teammate, message=text).status_code == 201


def test_parts_are_bounded_one_by_one_and_together(agent: Caster, teammate: Caster) -> None:
    for members in (
        {"done": ["x"] * 51},
        {"message": "x" * 4001},
        {"artifacts": [{"kind": "log", "uri": "x"}] * 51},
        {"state": {"commit": "not hex"}},
        {"done": ["x" * 2000] * 40},
        {"subject_id": "\u0000"},
    ):
        assert error_of(send(agent, teammate, **members))["status"] == 400, members


def test_accept_by_must_be_in_the_future(agent: Caster, teammate: Caster, clock: Any) -> None:
    for past in (clock.now(), clock.now() - timedelta(days=1), clock.now() + timedelta(days=400)):
        refused = error_of(send(agent, teammate, accept_by=iso(past)))
        assert (refused["status"], list(refused["fields"])) == (400, ["accept_by"])


def test_work_is_handed_on_five_times_and_no_more(agent: Caster, teammate: Caster) -> None:
    parties = [agent, teammate]
    last = sent(agent, teammate)
    for hop in range(1, 6):
        giver, to = parties[hop % 2], parties[(hop + 1) % 2]
        assert resolve(giver, last).status_code == 200
        last = sent(giver, to, parent_id=last)
        assert show(to, last)["hop"] == hop
    assert resolve(agent, last).status_code == 200
    refused = error_of(send(agent, teammate, parent_id=last))
    assert (refused["status"], list(refused["fields"])) == (400, ["parent_id"])


def test_a_parent_is_a_handoff_of_ones_own(agent: Caster, teammate: Caster, third: Caster) -> None:
    first = sent(agent, teammate)
    assert send(third, teammate, parent_id=first).content == send(third, teammate, parent_id="hoff_" + "0" * 32).content


def test_a_handoff_to_oneself_is_allowed(agent: Caster) -> None:
    mine = sent(agent, agent)
    assert resolve(agent, mine, holder="night-shift").status_code == 200


def test_a_repeated_request_makes_one_handoff(agent: Caster, teammate: Caster) -> None:
    body = {"to_principal": "teammate", "subject_id": "deploy-41"}
    answers = [agent.post("handoffs", body, **{"Idempotency-Key": "once"}).content for _ in range(2)]
    assert answers[0] == answers[1]
    assert len(teammate.get("handoffs").json()["data"]["handoffs"]) == 1


def test_the_event_says_who_and_what_about_but_not_what_it_carries(
    agent: Caster, teammate: Caster, third: Caster, lease: Any
) -> None:
    handoff_id = sent(agent, teammate, **CONTENT, lease_ids=[lease["lease_id"]])
    (event,) = events_of(third, "handoff.created")
    assert event["data"] == {
        "handoff_id": handoff_id,
        "to_principal": "teammate",
        "subject_id": "deploy-41",
        "status": "pending",
        "lease_ids": [lease["lease_id"]],
    }
    assert (event["principal"], event["addressee"]) == ("agent", "teammate")
    assert event["actor"]["principal"] == "agent"


def test_with_ring_2_alone_the_parties_see_its_events_and_nobody_else_does(agent: Caster, teammate: Caster) -> None:
    organization = agent.principal.organization
    giver, addressee, other = (cast(organization, handle, (2,)) for handle in ("agent", "teammate", "third"))
    handoff_id = sent(giver, addressee)
    resolve(addressee, handoff_id, "rejected")
    for party in (giver, addressee):
        assert [event["type"] for event in events_of(party)] == ["handoff.created", "handoff.rejected"]
    assert events_of(other) == []


def test_credentials_are_looked_for_in_linear_time() -> None:
    """What an engine that backtracks takes a quarter of a minute for, with every other thread waiting."""
    began = time.perf_counter()
    credentials.refuse(result="-eyJ" * 64_000)
    assert time.perf_counter() - began < 1
