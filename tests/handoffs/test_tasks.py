"""A claimed task goes with the work, named by its own id."""

from tests.conftest import Caster, error_of
from tests.handoffs.conftest import resolve, sent


def test_a_claimed_task_moves_and_is_completed_by_whoever_accepted_it(agent: Caster, teammate: Caster) -> None:
    task_id = agent.post("queues/build/tasks", {"payload": {"step": 3}}).json()["data"]["task_id"]
    claim = agent.post("leases/hot-claim", {"queue": "build"}).json()
    assert claim["task_id"] == task_id
    handoff_id = sent(agent, teammate, lease_ids=[task_id])
    (moved,) = resolve(teammate, handoff_id).json()["data"]["leases"]
    assert (moved["resource_type"], moved["resource_id"]) == ("task", task_id)
    late = error_of(agent.post(f"tasks/{task_id}/complete", {"fencing_token": claim["fencing_token"]}))
    assert late["status"] in (409, 410)
    beat = error_of(agent.post(f"leases/{claim['lease_id']}/heartbeat", {"fencing_token": claim["fencing_token"]}))
    assert (beat["status"], beat["ended_by"]) == (410, "transferred")
    done = teammate.post(f"tasks/{task_id}/complete", {"fencing_token": moved["fencing_token"], "result": 1})
    assert done.status_code == 200
    assert teammate.get(f"tasks/{task_id}").json()["data"]["state"] == "done"
