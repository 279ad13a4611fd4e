"""Every verb on a task in every state: what it answers, and what the task is afterwards."""

from collections.abc import Callable
from typing import Any

import pytest

from leases.queues import services
from tests.conftest import Caster
from tests.queues.conftest import claim, events, put, token


class Scene:
    """A task, the claim that its worker has or had, and what the others do with it."""

    def __init__(self, agent: Caster, teammate: Caster, operator: Caster, clock: Any, queue: str) -> None:
        self.queue = queue
        self.agent, self.teammate, self.operator, self.clock = agent, teammate, operator, clock
        self.task_id = put(agent, queue)
        self.claim = claim(agent, queue, ttl_seconds=60)

    def step(self, verb: str, **members: Any) -> Any:
        return self.agent.post(f"tasks/{self.task_id}/{verb}", {**token(self.claim), **members})

    def state(self) -> str | None:
        answer = self.agent.get(f"tasks/{self.task_id}")
        return None if answer.status_code == 404 else answer.json()["data"]["state"]


def ready(scene: Scene) -> None:
    assert give_back(scene).status_code == 200


def delayed(scene: Scene) -> None:
    assert scene.step("fail", error="no", retry_in_seconds=300).status_code == 200


def leased(scene: Scene) -> None:
    """As it is after its claim."""


def expired(scene: Scene) -> None:
    scene.clock.move(seconds=60)


def done(scene: Scene) -> None:
    assert scene.step("complete").status_code == 200


def dead(scene: Scene) -> None:
    assert scene.step("fail", error="no", final=True).status_code == 200


def pruned(scene: Scene) -> None:
    done(scene)
    scene.clock.move(days=8)
    assert services.prune() == 1


def give_back(scene: Scene) -> Any:
    return scene.agent.delete(f"leases/{scene.task_id}?fencing_token={scene.claim['fencing_token']}")


def force_release(scene: Scene) -> Any:
    body = {**token(scene.claim), "reason": "stuck"}
    return scene.operator.post(f"leases/{scene.task_id}/force-release", body)


VERBS: dict[str, Callable[[Scene], Any]] = {
    "claim": lambda scene: scene.teammate.post("leases/hot-claim", {"queue": scene.queue}),
    "heartbeat": lambda scene: scene.agent.post(f"leases/{scene.task_id}/heartbeat", token(scene.claim)),
    "complete": lambda scene: scene.step("complete"),
    "fail": lambda scene: scene.step("fail", error="no", retry_in_seconds=0),
    "return": give_back,
    "retry": lambda scene: scene.operator.post(f"tasks/{scene.task_id}/retry"),
    "show": lambda scene: scene.agent.get(f"tasks/{scene.task_id}"),
    "force-release": force_release,
    "reap": lambda scene: scene.agent.post("leases/reap", {"resource_type": "task", "resource_id": scene.task_id}),
}
STATES = (ready, delayed, leased, expired, done, dead, pruned)

# The status; then the state that the task is in afterwards, where that is another one, or how the claim had ended
# (410 LEASE_LOST), or the code of the refusal. The worker speaks with the token of its claim, whatever became of it.
TABLE = """
              | ready        | delayed      | leased       | expired     | done          | dead         | pruned
claim         | 200 leased   | 204          | 204          | 200 leased  | 204           | 204          | 204
heartbeat     | 410 released | 410 failed   | 200          | 410 expired | 410 completed | 410 failed   | 410 completed
complete      | 410 released | 410 failed   | 200 done     | 410 expired | 410 completed | 410 failed   | 410 completed
fail          | 410 released | 410 failed   | 200 ready    | 410 expired | 410 completed | 410 failed   | 410 completed
return        | 404          | 404          | 200 ready    | 200 ready   | 404           | 404          | 404
retry         | 409 CONFLICT | 409 CONFLICT | 409 CONFLICT | 409 CONFLICT| 409 CONFLICT  | 200 ready    | 404
show          | 200          | 200          | 200          | 200         | 200           | 200          | 404
force-release | 404          | 404          | 200 ready    | 200 ready   | 404           | 404          | 404
reap          | 404          | 404          | 409 CONFLICT | 200 ready   | 404           | 404          | 404
"""
SHOWN = {"ready": "ready", "delayed": "ready", "expired": "leased", "pruned": None}


def column(state: str) -> dict[str, tuple[int, str]]:
    """What each verb comes to: the status, and the word that follows it."""
    head, *rows = [[cell.strip() for cell in line.split("|")] for line in TABLE.strip("\n").splitlines()]
    place = head.index(state)
    cells = {row[0]: row[place].partition(" ") for row in rows}
    return {verb: (int(status), word) for verb, (status, _, word) in cells.items()}


def test_the_table_has_every_state_and_verb() -> None:
    assert TABLE.split("\n")[1].replace("|", "").split() == [state.__name__ for state in STATES]
    assert column("ready").keys() == VERBS.keys()


@pytest.mark.parametrize("state", STATES)
def test_every_verb_in_every_state(
    state: Callable[[Scene], None], agent: Caster, teammate: Caster, operator: Caster, clock: Any
) -> None:
    was = SHOWN.get(state.__name__, state.__name__)
    for verb, (status, word) in column(state.__name__).items():
        scene = Scene(agent, teammate, operator, clock, queue=verb)
        state(scene)
        assert scene.state() == was
        journaled = len(events(scene.task_id))
        answer = VERBS[verb](scene)
        error = answer.json().get("error", {}) if answer.content else {}
        code = {404: "NOT_FOUND", 410: "LEASE_LOST"}.get(status) or (word if status == 409 else None)
        assert (answer.status_code, error.get("code")) == (status, code), verb
        assert error.get("ended_by", word) == word, verb
        changes = status == 200 and word != ""
        assert scene.state() == (word if changes else was), verb
        # A takeover is one event too: what ended the claim before is told by what began the next.
        assert (len(events(scene.task_id)) > journaled) == changes, verb
