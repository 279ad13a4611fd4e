"""/metrics: what it says, to whom, and that dashboard, alerts and documentation speak of nothing else."""

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.db import DatabaseError, connection
from django.test.utils import CaptureQueriesContext
from prometheus_client.parser import text_string_to_metric_families

from leasehub.api import timing
from leasehub.events import feed
from leasehub.management import gauges, metrics
from tests.conftest import Caster
from tests.wsgi import call

ROOT = Path(__file__).resolve().parent.parent.parent
NAME = re.compile(r"leasehub_[a-z_]+")
NEAR = {"REMOTE_ADDR": "127.0.0.1"}


@pytest.fixture(autouse=True)
def fresh() -> None:
    metrics.kept.forget()


def scrape() -> dict[str, Any]:
    metrics.kept.forget()
    answer = call("GET", "/metrics", **NEAR)
    assert answer.status_code == 200, answer.content
    return {family.name: family for family in text_string_to_metric_families(answer.content.decode())}


def value(name: str, **labels: str) -> float | None:
    for sample in scrape()[name].samples:
        if sample.name == name and labels.items() <= sample.labels.items():
            return float(sample.value)
    return None


# --- what it says ----------------------------------------------------------------------------------------------


def test_leases_are_counted_by_type_live_and_expired(agent: Caster, clock: Any) -> None:
    agent.acquire("short", ttl_seconds=10)
    agent.acquire("long", ttl_seconds=600)
    agent.acquire("free")
    agent.delete(f"leases/{agent.acquire('free').json()['data']['lease_id']}")
    clock.move(seconds=30)
    assert value("leasehub_leases", resource_type="deploy", state="live") == 1
    assert value("leasehub_leases", resource_type="deploy", state="expired") == 1
    assert value("leasehub_reaper_overdue_seconds") == pytest.approx(20, abs=15)
    assert value("leasehub_leases_capped") == 0


def test_a_count_that_is_cut_off_says_so(agent: Caster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauges, "MOST_LEASES", 2)
    for name in "abcd":
        agent.acquire(name)
    assert value("leasehub_leases_capped") == 1
    assert value("leasehub_leases", resource_type="deploy", state="live") == 3


def test_many_types_are_shown_together(agent: Caster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauges, "SHOWN_TYPES", 2)
    for name in "abcd":
        agent.acquire(resource_type=name)
    types = {sample.labels["resource_type"] for sample in scrape()["leasehub_leases"].samples}
    assert len(types) == 3 and "other" in types


def test_queues_say_their_depth_and_their_oldest_task(agent: Caster, clock: Any) -> None:
    agent.post("queues/builds/tasks", {"priority": 5})
    clock.move(seconds=100)
    agent.post("queues/builds/tasks", {"priority": 9})
    agent.post("queues/builds/tasks", {"delay_seconds": 60})
    at = {"organization": "acme", "queue": "builds"}
    assert [value("leasehub_queue_tasks", **at, state=state) for state in ("ready", "delayed", "leased", "dead")] == [
        2, 1, 0, 0,
    ]  # fmt: skip
    assert value("leasehub_queue_oldest_ready_seconds", **at) == pytest.approx(100, abs=15)
    claimed = agent.post("leases/hot-claim", {"queue": "builds"}).json()
    agent.post(
        f"tasks/{claimed['task_id']}/fail", {"fencing_token": claimed["fencing_token"], "error": "x", "final": True}
    )
    agent.post("leases/hot-claim", {"queue": "builds"})
    assert [value("leasehub_queue_tasks", **at, state=state) for state in ("ready", "leased", "dead")] == [0, 1, 1]
    assert value("leasehub_queue_oldest_ready_seconds", **at) == 0


def test_pools_say_their_slots_and_who_waits(agent: Caster, operator: Caster) -> None:
    operator.put("pools/gpus", {"slots": [{"id": name} for name in ("a", "b", "c")]})
    operator.post("pools/gpus/slots/c/drain", {})
    for mode in ("async", "blocking", "blocking"):
        agent.post("pools/gpus/requests", {"mode": mode, "holder": "agent"})
    at = {"organization": "acme", "pool": "gpus"}
    assert {state: value("leasehub_pool_slots", **at, state=state) for state in ("held", "free", "draining")} == {
        "held": 2, "free": 0, "draining": 1,
    }  # fmt: skip
    assert value("leasehub_pool_requests", **at, state="queued") == 1
    assert value("leasehub_pool_requests", **at, state="ready") == 2


def test_handoffs_and_the_feed(agent: Caster, teammate: Caster, clock: Any) -> None:
    agent.post("handoffs", {"to_principal": "teammate", "subject_id": "s"})
    clock.move(seconds=50)
    assert value("leasehub_handoffs_pending") == 1
    assert value("leasehub_handoffs_oldest_pending_seconds") == pytest.approx(50, abs=15)
    assert value("leasehub_feed_unnumbered_events") == 1
    assert value("leasehub_feed_oldest_unnumbered_seconds") == pytest.approx(50, abs=15)
    feed.stamp_all()
    assert value("leasehub_feed_unnumbered_events") == 0


def test_beat_and_workers_are_as_old_as_what_they_noted(db: None, clock: Any) -> None:
    from django_celery_beat.models import PeriodicTask

    from leasehub import schedule
    from pools import runs

    schedule.install()
    assert value("leasehub_beat_age_seconds") == -1
    PeriodicTask.objects.filter(task="leases.reap").update(last_run_at=clock.now() - timedelta(seconds=40))
    runs.announce(worker_name="host/boot:1:1", queues=["default"])
    clock.move(seconds=70)
    assert value("leasehub_beat_age_seconds") == pytest.approx(110, abs=15)
    assert value("leasehub_worker_age_seconds", queue="default") == pytest.approx(70, abs=15)


def test_the_time_of_requests_is_told_by_operation(agent: Caster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_cells", {})
    key = {"Authorization": f"Bearer {agent.secret}"}
    for _ in range(3):
        call("GET", "/v1/whoami", headers=key)
    call("GET", "/v1/whoami")
    call("BREW", "/v1/whoami")
    call("GET", "/v1/nowhere")
    family = scrape()["leasehub_request_duration_seconds"]
    counts = {
        (sample.labels["operation"], sample.labels["method"], sample.labels["status"]): sample.value
        for sample in family.samples
        if sample.name.endswith("_count")
    }
    assert counts == {
        ("whoami", "GET", "2xx"): 3,
        ("whoami", "GET", "4xx"): 1,
        ("other", "other", "4xx"): 1,
        ("other", "GET", "4xx"): 1,
    }
    buckets = [sample.value for sample in family.samples if sample.name.endswith("_bucket")]
    assert len(buckets) == 4 * (len(timing.BOUNDS) + 1)


def test_a_request_is_in_the_bucket_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_cells", {})
    for seconds in (0.0005, 0.001, 0.0011, 40.0):
        timing.note("op", "GET", 200, seconds)
    (timed,) = timing.read()
    assert timed.buckets[:2] == [("0.001", 2.0), ("0.0025", 3.0)] and timed.buckets[-2:] == [("30.0", 3.0), ("+Inf", 4)]
    assert timed.seconds == pytest.approx(40.0026)


# --- at what cost ----------------------------------------------------------------------------------------------


def test_scrapes_ask_the_database_once_in_a_while(agent: Caster) -> None:
    scrape()
    with CaptureQueriesContext(
        connection,
    ) as asked:
        assert call("GET", "/metrics", **NEAR).status_code == 200
    assert len(asked) == 0


def test_a_group_that_cannot_be_read_leaves_the_others(agent: Caster, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise DatabaseError("too slow")

    monkeypatch.setattr(gauges, "READINGS", (broken, *gauges.READINGS))
    assert value("leasehub_readings_failed", group="broken") == 1
    assert value("leasehub_handoffs_pending") == 0


@pytest.mark.parametrize("reading", gauges.READINGS, ids=lambda reading: reading.__name__)
def test_every_reading_goes_along_an_index(reading: Any, agent: Caster, operator: Caster) -> None:
    """No statement may walk a table that keeps what has ended: events, resources, tasks, requests, handoffs, runs."""
    operator.put("pools/gpus", {"slots": [{"id": "a"}]})
    agent.post("queues/builds/tasks", {})
    with CaptureQueriesContext(connection) as asked:
        reading()
    for sql in (query["sql"] for query in asked if query["sql"].startswith("SELECT") and "FROM" in query["sql"]):
        for step in plan(sql):
            assert not re.search(WALKS[connection.vendor], step), (sql, step)


WHOLE = "events_event|leases_resource|leases_task|pools_request|handoffs_handoff|pools_commandrun"
WALKS = {
    "postgresql": rf"Seq Scan on ({WHOLE})\b",
    # A step through a partial index says so; one through the table names none.
    "sqlite": r"^SCAN (leases_resource|e|r|t|leases_task|pools_request|handoffs_handoff|pools_commandrun)$",
}


def plan(sql: str) -> list[str]:
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute(f"EXPLAIN QUERY PLAN {sql}")
            return [row[3] for row in cursor.fetchall()]
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(f"EXPLAIN {sql}")
        return [row[0] for row in cursor.fetchall()]


# --- to whom ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "headers", "status"),
    [
        ({"REMOTE_ADDR": "127.0.0.1"}, {}, 200),
        ({"REMOTE_ADDR": "::1"}, {}, 200),
        ({"REMOTE_ADDR": "::ffff:127.0.0.1"}, {}, 200),
        ({"REMOTE_ADDR": "10.1.2.3"}, {}, 401),
        ({"REMOTE_ADDR": ""}, {}, 401),
        ({"REMOTE_ADDR": "nonsense"}, {}, 401),
        # A proxy on this machine speaks for somebody else.
        ({"REMOTE_ADDR": "127.0.0.1"}, {"X-Forwarded-For": "127.0.0.1"}, 401),
        ({"REMOTE_ADDR": "127.0.0.1"}, {"Forwarded": "for=127.0.0.1"}, 401),
        ({"REMOTE_ADDR": "10.1.2.3"}, {"Authorization": "Bearer a-token-for-the-scraper"}, 200),
        ({"REMOTE_ADDR": "10.1.2.3"}, {"Authorization": "Bearer a-token-for-the-scrapeR"}, 401),
        ({"REMOTE_ADDR": "10.1.2.3"}, {"Authorization": "Bearer"}, 401),
        (
            {"REMOTE_ADDR": "127.0.0.1"},
            {"X-Forwarded-For": "x", "Authorization": "Bearer a-token-for-the-scraper"},
            200,
        ),
    ],
)
def test_who_may_read_it(
    environ: dict[str, str], headers: dict[str, str], status: int, agent: Caster, settings: Any
) -> None:
    settings.LEASEHUB_METRICS_TOKEN = "a-token-for-the-scraper"
    agent.post("queues/a-secret-queue/tasks", {})
    answer = call("GET", "/metrics", headers=headers, **environ)
    assert answer.status_code == status
    assert (b"a-secret-queue" in answer.content) == (status == 200)
    if status == 401:
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")


def test_without_a_token_no_bearer_is_let_in(agent: Caster, operator: Caster) -> None:
    for headers in ({"Authorization": "Bearer "}, {"Authorization": f"Bearer {operator.secret}"}):
        assert call("GET", "/metrics", headers=headers, REMOTE_ADDR="10.1.2.3").status_code == 401
    assert call("POST", "/metrics", **NEAR).status_code == 405
    assert (call("HEAD", "/metrics", **NEAR).status_code, call("HEAD", "/metrics", **NEAR).content) == (200, b"")


# --- dashboard, alerts, documentation --------------------------------------------------------------------------


def series(text: str) -> set[str]:
    """The metrics that are named, without what a histogram adds to its name."""
    return {re.sub(r"_(bucket|count|sum)$", "", name) for name in NAME.findall(text)}


def test_the_dashboard_and_the_alerts_speak_of_what_there_is(agent: Caster) -> None:
    exported = {name for name in scrape() if name.startswith("leasehub_")}
    dashboard = json.loads((ROOT / "docs/grafana-dashboard.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    rules = [
        rule for group in yaml.safe_load((ROOT / "docs/alerts.yml").read_text())["groups"] for rule in group["rules"]
    ]
    alerts = [rule["expr"] for rule in rules]
    assert expressions and alerts
    for expression in (*expressions, *alerts):
        assert series(expression) and series(expression) <= exported, expression
    # And nothing is exported that nobody looks at.
    assert set().union(*map(series, expressions)) == exported
    assert all(rule["annotations"]["summary"] and rule["annotations"]["description"] for rule in rules)


def test_every_metric_is_documented_with_its_labels(agent: Caster, operator: Caster) -> None:
    agent.acquire()
    agent.post("queues/builds/tasks", {})
    operator.put("pools/gpus", {"slots": [{"id": "a"}]})
    rows = re.findall(r"^\| `(leasehub_\w+)` \|([\w, ]*)\|", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE)
    documented = {name: {label.strip() for label in labels.split(",") if label.strip()} for name, labels in rows}
    families = {name: family for name, family in scrape().items() if name.startswith("leasehub_")}
    assert set(documented) == set(families)
    for name, family in families.items():
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == documented[name], name
