"""Every pair of verbs on one resource, stepped against each other in every order; without full rounds some pairs.

Whatever the order of the steps, the two callers' answers, the row and the journal must be those of one verb after
the other: the clock stands still, so that both serial outcomes are known exactly.
"""

import random
from collections.abc import Iterator
from itertools import combinations_with_replacement
from typing import Any

import pytest

from leases.engines import portable
from tests.concurrency.fixtures import Acme
from tests.concurrency.frozen import FrozenClock
from tests.concurrency.stage import Stage, make_stage
from tests.concurrency.verbs import SKIPPING, VERBS, Scene, make_scene, observed, operation, using
from tests.rounds import FULL, rounds

STATES = ("held", "expired", "free", "missing")
# On a free resource the others are refused, whatever happens meanwhile.
ON_FREE = {"acquire", "reacquire", "prune"}


def pairs(state: str) -> list[tuple[str, str]]:
    """All of them, or such a choice that many runs come to all: pytest-randomly's seed says which."""
    every = list(combinations_with_replacement(VERBS, 2))
    possible = [pair for pair in every if state in ("held", "expired") or ON_FREE.intersection(pair)]
    return random.sample(possible, min(len(possible), rounds(12, full=len(possible))))


def plays() -> list[tuple[str, str]]:
    """(engine, state): the engine of the database in every state, and the other one on PostgreSQL too."""
    from django.conf import settings

    if "sqlite" in settings.DATABASES["default"]["ENGINE"]:
        return [("portable", state) for state in STATES]
    own = [("plpgsql", state) for state in STATES]
    return own + [("portable", state) for state in STATES] if FULL else own


@pytest.fixture
def stage(frozen: FrozenClock) -> Iterator[Stage]:
    stage = make_stage(3)
    yield stage
    stage.close()


@pytest.mark.parametrize(("engine", "state"), plays())
def test_every_pair_of_verbs_ends_as_one_after_the_other(
    engine: str, state: str, acme: Acme, frozen: FrozenClock, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = make_scene(acme, frozen, state)
    known = {caller.key: (caller.principal, caller.organization) for caller in scene.callers.values()}
    # The key is not the matter here, and its clock reading would double the number of orders.
    monkeypatch.setattr(portable, "owner_of", known.get)
    with using(engine, monkeypatch):
        for pair in pairs(state):
            play_pair(stage, scene, engine, pair)


def play_pair(stage: Stage, scene: Scene, engine: str, pair: tuple[str, str]) -> None:
    serial = serial_outcomes(stage, scene, engine, pair)

    def operations() -> list[Any]:
        scene.restore()
        return [operation(verb, scene, engine) for verb in pair]

    played = 0
    for play in stage.every_order(operations):
        played += 1
        outcome = observed(scene, play.results)
        assert outcome in serial, f"{pair} stepped {play.steps}: {outcome} is neither of {serial}"
    assert played > 1


def serial_outcomes(stage: Stage, scene: Scene, engine: str, pair: tuple[str, str]) -> list[Any]:
    """One verb after the other, both ways round; and, for one that passes over locked rows, the other one alone."""
    outcomes = []
    for order in ((0, 1), (1, 0)):
        scene.restore()
        results: dict[int, Any] = {}
        for number in order:
            results[number] = stage.play([operation(pair[number], scene, engine)]).results[0]
        outcomes.append(observed(scene, [results[0], results[1]]))
    for number in (0, 1):
        if pair[number] in SKIPPING:
            scene.restore()
            result = stage.play([operation(pair[1 - number], scene, engine)]).results[0]
            results = {number: 0, 1 - number: result}
            outcomes.append(observed(scene, [results[0], results[1]]))
    return outcomes
