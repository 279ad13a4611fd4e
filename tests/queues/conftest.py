"""The verbs of the queues, by HTTP, in each way that the database has of carrying them out."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings

from leases.queues import services
from leases.queues.engines import portable
from tests.conftest import Caster

ON_SQLITE = "sqlite" in settings.DATABASES["default"]["ENGINE"]


def engines() -> list[str]:
    return ["portable"] if ON_SQLITE else ["plpgsql", "portable"]


def use(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "portable":
        monkeypatch.setattr("leases.queues.services.engine", lambda: portable)
        monkeypatch.setattr("leases.services.tasks.engine", lambda: portable)


@pytest.fixture(params=engines(), autouse=True)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    services._looked.clear()
    use(request.param, monkeypatch)
    yield request.param


def put(agent: Caster, queue: str = "build", **members: Any) -> str:
    answer = agent.post(f"queues/{queue}/tasks", members)
    assert answer.status_code in (200, 201), answer.content
    return str(answer.json()["data"]["task_id"])


def claim(agent: Caster, queue: str = "build", **members: Any) -> Any:
    """The claim; None when there was nothing."""
    answer = agent.post("leases/hot-claim", {"queue": queue, **members})
    if answer.status_code == 204:
        return None
    assert answer.status_code == 200, answer.content
    return answer.json()


def task(agent: Caster, task_id: str) -> Any:
    answer = agent.get(f"tasks/{task_id}")
    assert answer.status_code == 200, answer.content
    return answer.json()["data"]


def token(claimed: Any) -> dict[str, int]:
    return {"fencing_token": claimed["fencing_token"]}


def events(task_id: str) -> list[Any]:
    from leasehub.events.models import Event

    return list(Event.objects.filter(resource_type="task", resource_id=task_id).order_by("pk"))
