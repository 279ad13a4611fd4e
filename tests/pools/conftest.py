"""Pools for the tests, and commands carried out in the test's own process instead of by a worker."""

from collections.abc import Callable
from typing import Any

import pytest

from pools import runs
from pools.models import CommandRun, Pool
from pools.runs import Outcome, Report
from tests.conftest import Caster

WORKER = "here/boot:1:1"
#: Declares a pool: members of the file, its slots by default one and two.
Declare = Callable[..., Pool]


def slots(count: int, **attributes: Any) -> list[dict[str, Any]]:
    return [{"id": number, **attributes} for number in range(1, count + 1)]


@pytest.fixture
def declare(operator: Caster) -> Declare:
    def declared(name: str = "e2e", **members: Any) -> Pool:
        response = operator.put(f"pools/{name}", {"slots": slots(2), **members})
        assert response.status_code in (200, 201), response.content
        return Pool.objects.get(name=name)

    return declared


def ask(caster: Caster, pool: str = "e2e", **members: Any) -> dict[str, Any]:
    response = caster.post(f"pools/{pool}/requests", {"mode": "blocking", **members})
    assert response.status_code in (201, 202), response.content
    return dict(response.json()["data"])


def look(caster: Caster, request: dict[str, Any], query: str = "") -> dict[str, Any]:
    response = caster.get(f"pools/{request['pool']}/requests/{request['request_id']}{query}")
    assert response.status_code == 200, response.content
    return dict(response.json()["data"])


def status(caster: Caster, pool: str = "e2e") -> dict[str, Any]:
    return dict(caster.get(f"pools/{pool}").json()["data"])


def on_slot(caster: Caster, grant: dict[str, Any], verb: str, pool: str = "e2e", **members: Any) -> Any:
    body = {"fencing_token": grant["fencing_token"], **members}
    return caster.post(f"pools/{pool}/slots/{grant['slot_id']}/{verb}", body)


def take(queue: str = "default", worker: str = WORKER) -> CommandRun:
    run = runs.claim(worker_name=worker, queues=[queue], nudges=True)
    assert run is not None, "no command waits"
    return run


def passes(run: CommandRun | None = None) -> CommandRun:
    run = run or take()
    assert runs.finish(run=run.pk, worker_name=run.worker_name or WORKER, report=Report(Outcome.PASSED))
    return run


def fails(run: CommandRun | None = None, action: str = "provision", error: str = "reset failed") -> CommandRun:
    run = run or take()
    report = Report(Outcome.FAILED, action, error)
    assert runs.finish(run=run.pk, worker_name=run.worker_name or WORKER, report=report)
    return run


def waiting_runs() -> int:
    return CommandRun.objects.filter(state=CommandRun.State.WAITING).count()
