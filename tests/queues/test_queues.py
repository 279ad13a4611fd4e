from typing import Any

from leases.queues.models import Queue
from tests.conftest import Caster, cast
from tests.queues.conftest import claim, put, token


def figures(agent: Caster, queue: str = "build") -> Any:
    answer = agent.get(f"queues/{queue}")
    assert answer.status_code == 200, answer.content
    return answer.json()["data"]


def test_a_queue_in_numbers(agent: Caster, clock: Any) -> None:
    put(agent)
    clock.move(seconds=30)
    for _ in range(4):
        put(agent)
    put(agent, delay_seconds=3600)
    done, dead = claim(agent), claim(agent)
    agent.post(f"tasks/{done['task_id']}/complete", token(done))
    agent.post(f"tasks/{dead['task_id']}/fail", {**token(dead), "error": "no", "final": True})
    claim(agent)
    shown = figures(agent)
    assert {name: shown[name] for name in ("ready", "delayed", "leased", "dead", "claims_per_minute")} == {
        "ready": 2, "delayed": 1, "leased": 1, "dead": 1, "claims_per_minute": 3,
    }  # fmt: skip
    assert 0 <= shown["oldest_age_ms"] < 30_000
    clock.move(seconds=3600)
    later = figures(agent)
    assert (later["ready"], later["delayed"], later["claims_per_minute"]) == (3, 0, 0)
    assert 3600_000 <= later["oldest_age_ms"] < 3630_000


def test_an_empty_queue_has_no_oldest(agent: Caster) -> None:
    put(agent)
    claimed = claim(agent)
    agent.post(f"tasks/{claimed['task_id']}/complete", token(claimed))
    assert figures(agent)["oldest_age_ms"] is None
    assert figures(agent)["ready"] == 0


def test_the_queues_of_an_organization_in_pages(agent: Caster, stranger: Caster) -> None:
    for n in range(5):
        put(agent, f"queue-{n}")
    put(stranger, "theirs")
    put(agent, "queue-3")
    first = agent.get("queues?limit=3").json()["data"]
    assert [queue["queue"] for queue in first["queues"]] == ["queue-0", "queue-1", "queue-2"]
    rest = agent.get(f"queues?limit=3&after={first['next']}").json()["data"]
    assert [(queue["queue"], queue["ready"]) for queue in rest["queues"]] == [("queue-3", 2), ("queue-4", 1)]
    assert rest["next"] is None
    assert agent.get("queues/theirs").status_code == 404


def test_the_settings_of_a_queue_count_for_its_tasks(agent: Caster) -> None:
    put(agent)
    Queue.objects.update(max_attempts=1)
    answer = put(agent)
    assert agent.get(f"tasks/{answer}").json()["data"]["max_attempts"] == 1
    assert agent.get(f"tasks/{put(agent, max_attempts=9)}").json()["data"]["max_attempts"] == 9


def test_the_rate_is_that_of_the_own_organization(agent: Caster, stranger: Caster) -> None:
    put(agent), put(stranger)
    claim(stranger)
    assert figures(agent)["claims_per_minute"] == 0
    assert figures(stranger)["claims_per_minute"] == 1


def test_ring_1_alone_reads(organization: Any) -> None:
    put(cast(organization, "worker"))
    watcher = cast(organization, "watcher", (1,))
    assert figures(watcher)["ready"] == 1
    assert watcher.get("queues").status_code == 200
