"""Every verb on a handoff, in every state, by everybody: what it answers, and what the handoff is afterwards."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from handoffs import services
from handoffs.models import Handoff
from leasehub.db.clock import iso
from tests.conftest import Caster
from tests.handoffs.conftest import events_of, resolve, sent, show

STATES = tuple(status.value for status in Handoff.Status)
VERBS: dict[str, Callable[[Caster, str], Any]] = {
    "show": lambda caster, handoff: caster.get(f"handoffs/{handoff}"),
    "accept": resolve,
    "reject": lambda caster, handoff: resolve(caster, handoff, "rejected"),
    "withdraw": lambda caster, handoff: caster.post(f"handoffs/{handoff}/withdraw"),
    "complete": lambda caster, handoff: caster.post(f"handoffs/{handoff}/complete"),
}


def in_state(state: str, giver: Caster, addressee: Caster, clock: Any) -> str:
    handoff = sent(giver, addressee, accept_by=iso(clock.now() + timedelta(seconds=30)))
    if state in ("accepted", "completed"):
        assert VERBS["accept"](addressee, handoff).status_code == 200
    if state == "completed":
        assert VERBS["complete"](addressee, handoff).status_code == 200
    if state == "rejected":
        assert VERBS["reject"](addressee, handoff).status_code == 200
    if state == "withdrawn":
        assert VERBS["withdraw"](giver, handoff).status_code == 200
    if state == "expired":
        clock.move(seconds=30)
        assert services.expire_due() == 1
    return handoff


# The only ones that change anything: by whom, from which state, to which.
MOVES = {
    "accept": ("addressee", "pending", "accepted"),
    "reject": ("addressee", "pending", "rejected"),
    "withdraw": ("giver", "pending", "withdrawn"),
    "complete": ("addressee", "accepted", "completed"),
}


def expected(verb: str, party: str, state: str) -> tuple[int, str | None, str]:
    """Status, code, and the state afterwards."""
    if party == "stranger":
        return 404, "NOT_FOUND", state
    if verb == "show":
        return (200, None, state) if party in ("giver", "addressee") else (404, "NOT_FOUND", state)
    whose, before, after = MOVES[verb]
    if party != whose:
        return 400, "VALIDATION_ERROR", state
    return (200, None, after) if state == before else (404, "NOT_FOUND", state)


@pytest.mark.parametrize("state", STATES)
def test_every_verb_by_everybody(
    state: str, agent: Caster, teammate: Caster, third: Caster, operator: Caster, stranger: Caster, clock: Any
) -> None:
    everybody = {"giver": agent, "addressee": teammate, "teammate": third, "operator": operator, "stranger": stranger}
    handoff = in_state(state, agent, teammate, clock)
    for verb, carry_out in VERBS.items():
        for party, caster in everybody.items():
            status, code, after = expected(verb, party, state)
            journaled = events_of(agent, "")
            answer = carry_out(caster, handoff)
            assert (answer.status_code, answer.json().get("error", {}).get("code")) == (status, code), (verb, party)
            assert show(agent, handoff)["status"] == after, (verb, party)
            assert len(events_of(agent)) - len(journaled) == (after != state), (verb, party)
            if after != state:
                handoff = in_state(state, agent, teammate, clock)


@pytest.mark.parametrize("verb", VERBS)
def test_to_a_stranger_it_is_like_one_that_does_not_exist(
    verb: str, agent: Caster, teammate: Caster, stranger: Caster
) -> None:
    handoff = sent(agent, teammate)
    assert VERBS[verb](stranger, handoff).content == VERBS[verb](stranger, "hoff_" + "0" * 32).content
