import random
import uuid
from typing import Any

import pytest

from tests.conftest import Caster, cast
from tests.leases.conftest import Endings, Held


def beats(agent: Caster, *leases: tuple[str, int]) -> Any:
    body = {"leases": [{"lease_id": lease_id, "fencing_token": token} for lease_id, token in leases]}
    response = agent.post("leases/heartbeats", body)
    assert response.status_code == 200
    return response.json()["data"]["leases"]


def codes(answers: Any) -> list[str]:
    return ["ok" if answer["ok"] else answer["error"]["code"] for answer in answers]


def test_a_session_with_several_leases_beats_once(agent: Caster, clock: Any) -> None:
    held = [Held.by(agent, f"r{number}", ttl_seconds=60 + number) for number in range(10)]
    clock.move(seconds=30)
    answers = beats(agent, *[(one.lease_id, one.token) for one in held])
    assert codes(answers) == ["ok"] * 10
    for number, (answer, one) in enumerate(zip(answers, held, strict=True)):
        assert (answer["lease_id"], answer["fencing_token"]) == (one.lease_id, one.token)
        assert answer["expires_in_ms"] == 60_000 + number * 1000


def test_the_answers_stand_in_the_order_of_the_question(agent: Caster) -> None:
    held = [Held.by(agent, f"r{number}") for number in range(20)]
    shuffled = random.Random(7).sample(held, k=20)
    assert [answer["lease_id"] for answer in beats(agent, *[(one.lease_id, one.token) for one in shuffled])] == [
        one.lease_id for one in shuffled
    ]


def test_each_lease_has_its_own_success_or_error(
    agent: Caster, teammate: Caster, stranger: Caster, endings: Endings
) -> None:
    mine, theirs, foreign = Held.by(agent, "mine"), Held.by(teammate, "theirs"), Held.by(stranger, "foreign")
    unknown = f"lease_{uuid.uuid4().hex}"
    asked = [
        (mine.lease_id, mine.token),
        (mine.lease_id, mine.token + 1),
        (theirs.lease_id, theirs.token),
        (foreign.lease_id, foreign.token),
        (unknown, 1),
        ("garbage", 1),
        *[(ended.lease_id, ended.token) for ended in endings.values()],
    ]
    answers = beats(agent, *asked)
    assert [answer["lease_id"] for answer in answers] == [lease_id for lease_id, _ in asked]
    assert codes(answers) == ["ok", "STALE_TOKEN", *["NOT_FOUND"] * 4, *["LEASE_LOST"] * len(endings)]
    assert [answer["error"]["ended_by"] for answer in answers[6:]] == list(endings)
    texts = {str(answers[index]["error"]) for index in (2, 3, 4, 5)}
    assert len(texts) == 1


def test_the_same_lease_twice_has_two_equal_answers(agent: Caster) -> None:
    held, other = Held.by(agent, "a"), Held.by(agent, "b")
    answers = beats(agent, (held.lease_id, held.token), (other.lease_id, other.token), (held.lease_id, held.token))
    assert codes(answers) == ["ok"] * 3
    assert answers[0] == answers[2]


@pytest.mark.parametrize("order", [[0, 1], [1, 0], [0, 1, 0, 1], [-1, 0, 1]])
def test_the_same_lease_with_several_tokens_has_each_its_answer(held: Held, order: list[int]) -> None:
    answers = beats(held.agent, *[(held.lease_id, held.token + off) for off in order])
    assert codes(answers) == ["ok" if off == 0 else "STALE_TOKEN" for off in order]


def test_two_hundred_fit_in_one_call(agent: Caster) -> None:
    held = Held.by(agent)
    answers = beats(agent, *[(f"lease_{uuid.uuid4().hex}", 1) for _ in range(199)], (held.lease_id, held.token))
    assert codes(answers) == ["NOT_FOUND"] * 199 + ["ok"]


def test_one_bad_member_refuses_the_whole_call_and_beats_nothing(held: Held, clock: Any) -> None:
    clock.move(seconds=30)
    body = {"leases": [{"lease_id": held.lease_id, "fencing_token": held.token}, {"lease_id": "x"}]}
    assert held.agent.post("leases/heartbeats", body).status_code == 400
    assert held.show()["expires_at"] == held.expires_at


def test_a_key_with_a_fence_of_its_own_beats_inside_it_alone(agent: Caster, organization: Any) -> None:
    fenced = cast(organization, "agent", holder_pattern=r"^ci-.*$")
    inside, outside = Held.by(agent, "inside", holder="ci-1"), Held.by(agent, "outside", holder="muse")
    answers = beats(fenced, (outside.lease_id, outside.token), (inside.lease_id, inside.token))
    assert codes(answers) == ["NOT_FOUND", "ok"]


@pytest.mark.parametrize("lease_id", ["garbage", f"lease_{'0' * 32}"])
def test_a_revoked_key_is_refused_even_when_it_names_nothing(agent: Caster, operator: Caster, lease_id: str) -> None:
    key_id = agent.caller.key_id
    assert codes(beats(agent, (lease_id, 1))) == ["NOT_FOUND"]
    operator.delete(f"keys/{key_id}")
    body = {"leases": [{"lease_id": lease_id, "fencing_token": 1}]}
    assert agent.post("leases/heartbeats", body).status_code == 401


def test_a_revoked_key_with_a_fence_is_refused_even_when_all_is_outside(
    agent: Caster, operator: Caster, organization: Any
) -> None:
    fenced = cast(organization, "agent", holder_pattern=r"^ci-.*$")
    outside = Held.by(agent, "outside", holder="muse")
    operator.delete(f"keys/{fenced.caller.key_id}")
    body = {"leases": [{"lease_id": outside.lease_id, "fencing_token": outside.token}]}
    assert fenced.post("leases/heartbeats", body).status_code == 401
