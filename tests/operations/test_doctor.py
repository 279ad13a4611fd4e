"""doctor: what is wrong is said, with what to do; one's own pools alone are named."""

import json
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import DatabaseError, connection
from django_celery_beat.models import PeriodicTask

from leasehub import schedule
from leasehub.cli import doctor as command_line
from leasehub.db import clock as database_clock
from leasehub.events import feed
from leasehub.management import doctor
from leasehub.management.doctor import FAIL, OK, WARN
from pools import runs
from pools.models import Pool, ServedQueue
from tests.conftest import Caster, error_of


@pytest.fixture
def well(db: None) -> None:
    """Beat and a worker have been there."""
    schedule.install()
    PeriodicTask.objects.filter(task="leases.reap").update(last_run_at=database_clock.now())
    runs.announce(worker_name="host/boot:1:1", queues=["default"])


def statuses(organization: int | None = None) -> dict[str, str]:
    return {verdict.check: verdict.status for verdict in doctor.examine(organization=organization)}


def test_a_server_that_is_well(well: None, operator: Caster) -> None:
    found = doctor.examine()
    assert [verdict for verdict in found if verdict.status == FAIL] == []
    own = "sqlite" if connection.vendor == "sqlite" else "oldest_transaction"
    assert {verdict.check for verdict in found} == {
        "database", "migrations", "settings", "disk", "clock_of_database", own, "beat", "workers", "feed", "reaper",
        "webhooks", "pool_workers",
    }  # fmt: skip
    told = operator.get("doctor").json()["data"]
    assert told["status"] in (OK, WARN) and len(told["checks"]) == len(found)


def test_what_is_wrong_comes_with_what_to_do(well: None, operator: Caster, clock: Any) -> None:
    operator.acquire("lost", ttl_seconds=10)
    # A worker of its own serves it, for now.
    runs.announce(worker_name="gpu/boot:1:1", queues=["gpu-host"])
    declared = {"slots": [{"id": "a"}], "provision": "true", "worker": "gpu-host"}
    assert operator.put("pools/gpus", declared).status_code == 201
    assert statuses()["pool_workers"] == OK
    clock.move(minutes=30)
    found = {verdict.check: verdict for verdict in doctor.examine()}
    wrong = {name for name, verdict in found.items() if verdict.status == FAIL}
    assert {"beat", "workers", "feed", "reaper", "pool_workers", "clock_of_database"} <= wrong
    assert all(bool(verdict.todo) == (verdict.status != OK) for verdict in found.values())
    assert 'gpus ("gpu-host")' in found["pool_workers"].message
    feed.stamp_all()
    assert statuses()["feed"] == OK


def test_the_pools_and_hosts_of_others_are_not_named(well: None, operator: Caster, stranger: Caster) -> None:
    runs.announce(worker_name="gpu/boot:1:1", queues=["gpu-host"])
    operator.put("pools/secret-pool", {"slots": [{"id": "a"}], "provision": "true", "worker": "gpu-host"})
    assert "served: default, gpu-host" in operator.get("doctor").content.decode()
    assert "served: default and 1 more" in stranger.get("doctor").content.decode()
    ServedQueue.objects.filter(worker="gpu-host").delete()
    Pool.objects.update(worker="nobody")
    assert "secret-pool" in operator.get("doctor").content.decode()
    assert "secret-pool" not in stranger.get("doctor").content.decode()


def test_without_migrations_or_a_database_the_rest_is_not_asked(well: None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lacking:
        loader: Any = type("loader", (), {"graph": type("graph", (), {"leaf_nodes": lambda self: []})()})()

        def __init__(self, connection: object) -> None: ...

        def migration_plan(self, nodes: object) -> list[object]:
            return [object()]

    def away() -> Any:
        raise DatabaseError("connection refused")
        yield

    with monkeypatch.context() as patched:
        patched.setattr(doctor, "MigrationExecutor", Lacking)
        found = statuses()
    assert found["migrations"] == FAIL and "beat" not in found
    away.__name__ = "database"
    monkeypatch.setattr(doctor, "database", away)
    found = statuses()
    assert found["database"] == FAIL and "beat" not in found and "disk" in found


def test_a_full_disk_is_told(well: None, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("usage", (), {"total": 100 * doctor.GIB, "free": 10_000_000})
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda folder: usage)
    assert statuses()["disk"] == FAIL


def test_the_command_without_a_server(well: None) -> None:
    out, errors = StringIO(), StringIO()
    call_command("doctor", stdout=out, stderr=errors)
    told = json.loads(out.getvalue())
    assert told["ok"] and told["code"] == "healthy"
    assert "ok   database: " in errors.getvalue()
    ServedQueue.objects.all().delete()
    with pytest.raises(SystemExit) as ended:
        call_command("doctor", stdout=StringIO(), stderr=errors)
    assert ended.value.code == 1 and "-> Start one" in errors.getvalue()


def test_only_operators_ask(agent: Caster) -> None:
    assert error_of(agent.get("doctor"))["status"] == 403


# --- the command line ----------------------------------------------------------------------------------------------


class Answers:
    """A connection to a server whose clock is off, and one of whose checks may fail."""

    behind = timedelta()
    status = OK

    def __init__(self, url: str, token: str) -> None: ...

    def call(self, method: str, path: str) -> dict[str, Any]:
        at = (datetime.now(UTC) - self.behind).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        check = {"check": "beat", "status": self.status, "message": "ran", "todo": "Start it." if self.status else ""}
        return {"status": self.status, "version": "0", "at": at, "checks": [check]}


@pytest.mark.parametrize(
    ("behind", "status", "exit_status", "of_client"),
    [(0, OK, 0, OK), (10, OK, 0, WARN), (-3600, OK, 1, FAIL), (0, FAIL, 1, OK), (0, WARN, 0, OK)],
)
def test_the_verb_says_what_can_be_seen_from_here_too(
    behind: int, status: str, exit_status: int, of_client: str, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setenv("LEASEHUB_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("LEASEHUB_TOKEN", "lh_x")
    answers = type("Answering", (Answers,), {"behind": timedelta(seconds=behind), "status": status})
    monkeypatch.setattr(command_line, "Connection", answers)
    assert command_line.doctor([]) == exit_status
    told = capfd.readouterr()
    said = json.loads(told.out)
    assert (said["ok"], said["code"]) == (exit_status == 0, "unhealthy" if exit_status else "healthy")
    assert {check["check"]: check["status"] for check in said["checks"]} == {
        "server": OK, "clock_of_client": of_client, "beat": status,
    }  # fmt: skip
    assert f"{status:4} beat: ran" in told.err
