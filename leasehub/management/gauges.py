"""What the database says of itself, for /metrics and doctor: each figure by statements of bounded cost.

Every one goes along an index that holds only what is open (live leases, waiting tasks, pending handoffs), and
counts no further than anybody needs: a table of millions costs no more. Figures are of the whole server; what is
a tenant's name stands in labels alone.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from django.db import connection, transaction

from leasehub.db import clock
from leasehub.events.webhooks.queries import webhook_backlog

STATEMENT_TIMEOUT_MS = 1000
#: Beyond this a count of leases stops: it says "at least".
MOST_LEASES = 50_000
MOST_IN_A_QUEUE = 10_000
MOST_QUEUES = 50
MOST_LANES = 500
MOST_POOLS = 200
MOST_SLOTS = 50_000
MOST_UNNUMBERED = 10_000
MOST_HANDOFFS = 10_000
#: Types of resources that are shown by name; all others together are "other".
SHOWN_TYPES = 30
OTHER = "other"
SCANS = "LeaseHub: "

Labels = tuple[str, ...]


@dataclass
class Figures:
    """A gauge's values by its labels. A gauge without labels has one, under ()."""

    name: str
    help: str
    labels: Labels = ()
    values: dict[Labels, float] = field(default_factory=dict)

    def add(self, value: float, *labels: str) -> None:
        self.values[labels] = self.values.get(labels, 0.0) + value


@contextmanager
def bounded() -> Iterator[None]:
    """One statement that gives up rather than load the server. On SQLite a read locks nobody out."""
    if connection.vendor != "postgresql":
        yield
        return
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL statement_timeout = {STATEMENT_TIMEOUT_MS}")
        yield


def rows(sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    with bounded(), connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        found: list[tuple[Any, ...]] = cursor.fetchall()
    return found


def held() -> list[Figures]:
    """Leases by type and tasks by queue: one walk over what is held serves both."""
    counted = Figures("leasehub_leases", "Leases by the type of their resource: live, or expired and not reaped yet.",
                      ("resource_type", "state"))  # fmt: skip
    capped = Figures("leasehub_leases_capped", f"1 when there are more leases than the {MOST_LEASES} counted.")
    now = clock.now()
    found = rows(
        "SELECT resource_type, queue_id, sum(CASE WHEN expires_at > %s THEN 1 ELSE 0 END), count(*) FROM ("
        " SELECT resource_type, queue_id, expires_at FROM leases_resource WHERE lease_id IS NOT NULL LIMIT %s"
        ") AS leases GROUP BY resource_type, queue_id",
        [database_value(now), MOST_LEASES + 1],
    )
    by_type: dict[str, int] = {}
    leased: dict[int, int] = {}
    for resource_type, queue, _, total in found:
        by_type[resource_type] = by_type.get(resource_type, 0) + total
        if queue is not None:
            leased[queue] = leased.get(queue, 0) + total
    shown = set(sorted(by_type, key=lambda name: -by_type[name])[:SHOWN_TYPES])
    for resource_type, _, live, total in found:
        name = resource_type if resource_type in shown else OTHER
        counted.add(float(live), name, "live")
        counted.add(float(total - live), name, "expired")
    capped.add(float(sum(by_type.values()) > MOST_LEASES))
    return [counted, capped, *queues(leased, now)]


def reaper() -> list[Figures]:
    """How long the lease that waits for the reaper for longest has been over."""
    overdue = Figures("leasehub_reaper_overdue_seconds", "Age of the oldest expiry that nobody has reaped; 0: none.")
    now = clock.now()
    found = rows(
        "SELECT min(expires_at) FROM (SELECT expires_at FROM leases_resource"
        " WHERE lease_id IS NOT NULL AND check_at <= %s ORDER BY check_at LIMIT 200) AS due WHERE expires_at <= %s",
        [database_value(now), database_value(now)],
    )
    overdue.add(age(found[0][0], now))
    return [overdue]


def queues(leased: dict[int, int], now: datetime) -> list[Figures]:
    labels = ("organization", "queue")
    depth = Figures("leasehub_queue_tasks", "Tasks by queue: ready (claimable), delayed, leased, dead; each counted up "
                    f"to {MOST_IN_A_QUEUE}.", (*labels, "state"))  # fmt: skip
    oldest = Figures("leasehub_queue_oldest_ready_seconds", "How long ago the oldest claimable task was put.", labels)
    conditions = {
        "ready": "t.state = 'ready' AND t.ready_at IS NULL",
        "delayed": "t.state = 'ready' AND t.ready_at IS NOT NULL",
        "dead": "t.state = 'dead'",
    }
    columns = ", ".join(
        "(SELECT count(*) FROM (SELECT 1 FROM leases_task AS t"
        f" WHERE t.queue_id = q.id AND {condition} LIMIT {MOST_IN_A_QUEUE}) AS counted)"
        for condition in conditions.values()
    )
    found = rows(
        f"SELECT q.id, o.name, q.name, {columns} FROM leases_queue AS q"
        f" JOIN identity_organization AS o ON o.id = q.organization_id ORDER BY q.id LIMIT {MOST_QUEUES}"
    )
    first = first_put([queue for queue, *_ in found])
    for queue, organization, name, *counts in found:
        for state, count in zip(conditions, counts, strict=True):
            depth.add(float(count), organization, name, state)
        depth.add(float(leased.get(queue, 0)), organization, name, "leased")
        oldest.add(age(first.get(queue), now), organization, name)
    return [depth, oldest]


def first_put(queues: list[int]) -> dict[int, datetime]:
    """When the oldest claimable task of each queue was put: the first entry of each lane in the claim's index."""
    if not queues:
        return {}
    of_lane = (
        "(SELECT t.created_at FROM leases_task AS t WHERE t.queue_id = l.queue_id AND t.out_of_turn = {turn}"
        " AND t.priority = l.priority AND t.state = 'ready' AND t.ready_at IS NULL{start} ORDER BY t.place LIMIT 1)"
    )
    no, yes = ("false", "true") if connection.vendor == "postgresql" else ("0", "1")
    # From the low water on: before it are dead entries alone.
    in_turn = of_lane.format(turn=no, start=" AND t.place >= l.low_water")
    marks = ", ".join(["%s"] * len(queues))
    found = rows(
        f"SELECT l.queue_id, {in_turn}, {of_lane.format(turn=yes, start='')} FROM leases_lane AS l"
        f" WHERE l.queue_id IN ({marks}) ORDER BY l.queue_id LIMIT {MOST_LANES}",
        queues,
    )
    first: dict[int, datetime] = {}
    for queue, *times in found:
        for at in map(moment, times):
            if at is not None:
                first[queue] = min(at, first.get(queue, at))
    return first


def pools() -> list[Figures]:
    labels = ("organization", "pool", "state")
    slots = Figures("leasehub_pool_slots", "Slots: free, held, busy (a command runs on a free one), draining, broken, "
                    "removed (and still held).", labels)  # fmt: skip
    requests = Figures("leasehub_pool_requests", "Open requests: queued (they wait), provisioning, ready.", labels)
    names = {
        pool: (organization, name)
        for pool, organization, name in rows(
            "SELECT p.id, o.name, p.name FROM pools_pool AS p JOIN identity_organization AS o"
            f" ON o.id = p.organization_id ORDER BY p.id LIMIT {MOST_POOLS}"
        )
    }
    for pool, state, count in rows(
        "SELECT pool_id, CASE WHEN lease_id IS NOT NULL AND NOT is_declared THEN 'removed'"
        " WHEN NOT is_declared THEN 'gone' WHEN is_broken THEN 'broken' WHEN lease_id IS NOT NULL THEN 'held'"
        " WHEN is_draining THEN 'draining' WHEN is_busy THEN 'busy' ELSE 'free' END AS state, count(*)"
        " FROM (SELECT pool_id, lease_id, is_declared, is_broken, is_draining, is_busy FROM pools_slot"
        f" LIMIT {MOST_SLOTS}) AS slots GROUP BY pool_id, state"
    ):
        if pool in names and state != "gone":
            slots.add(float(count), *names[pool], state)
    waiting = rows("SELECT pool_id, 'queued', count(*) FROM pools_request WHERE state = 'queued' GROUP BY pool_id")
    served = rows(
        "SELECT r.pool_id, r.state, count(DISTINCT r.id) FROM pools_slot AS s JOIN pools_request AS r"
        " ON r.id = s.request_id WHERE s.request_id IS NOT NULL AND r.state IN ('provisioning', 'ready')"
        " GROUP BY r.pool_id, r.state"
    )
    for name in names.values():
        for state in ("queued", "provisioning", "ready"):
            requests.add(0.0, *name, state)
        for state in ("free", "held", "busy", "draining", "broken", "removed"):
            slots.add(0.0, *name, state)
    for pool, state, count in (*waiting, *served):
        if pool in names:
            requests.add(float(count), *names[pool], state)
    return [slots, requests]


def commands() -> list[Figures]:
    runs = Figures("leasehub_command_runs", "Commands of pools that wait for a worker or run.", ("worker", "state"))
    for worker, state, count in rows(
        "SELECT worker, state, count(*) FROM pools_commandrun WHERE NOT state = 'ended' GROUP BY worker, state"
    ):
        runs.add(float(count), worker, state)
    return [runs]


def handoffs() -> list[Figures]:
    pending = Figures("leasehub_handoffs_pending", f"Handoffs that wait for an answer, counted up to {MOST_HANDOFFS}.")
    oldest = Figures("leasehub_handoffs_oldest_pending_seconds", "Age of the oldest pending handoff; 0: none.")
    found = rows(
        "SELECT count(*), min(created_at) FROM (SELECT created_at FROM handoffs_handoff WHERE status = 'pending'"
        f" ORDER BY id LIMIT {MOST_HANDOFFS}) AS waiting"
    )
    pending.add(float(found[0][0]))
    oldest.add(age(found[0][1], clock.now()))
    return [pending, oldest]


def feed() -> list[Figures]:
    lag = Figures("leasehub_feed_unnumbered_events", "Events that have no position in the feed yet, counted up to "
                  f"{MOST_UNNUMBERED}.")  # fmt: skip
    oldest = Figures("leasehub_feed_oldest_unnumbered_seconds", "Age of the oldest event without a position; 0: none.")
    found = rows(
        "SELECT count(*), min(at) FROM (SELECT e.at FROM identity_organization AS o"
        " LEFT JOIN events_feed AS f ON f.organization_id = o.id JOIN events_event AS e ON e.organization_id = o.id"
        " WHERE e.position IS NULL AND e.id > coalesce(f.low_water, 0)"
        f" LIMIT {MOST_UNNUMBERED}) AS fresh"
    )
    lag.add(float(found[0][0]))
    oldest.add(age(found[0][1], clock.now()))
    return [lag, oldest]


def webhooks() -> list[Figures]:
    backlog = Figures("leasehub_webhook_backlog", "What active webhook endpoints are still to be sent.")
    oldest = Figures("leasehub_webhook_oldest_seconds", "Age of the oldest of it; 0: nothing waits.")
    with bounded():
        waiting, seconds = webhook_backlog()
    backlog.add(float(waiting))
    oldest.add(seconds)
    return [backlog, oldest]


def beat() -> list[Figures]:
    """Beat notes every 15 seconds what it ran (leasehub.beat)."""
    ages = Figures("leasehub_beat_age_seconds", "Since beat last ran a scan, as far as it has noted; -1: never.")
    workers = Figures("leasehub_worker_age_seconds", "Since a worker of this Celery queue was last seen.", ("queue",))
    now = clock.now()
    found = rows("SELECT max(last_run_at) FROM django_celery_beat_periodictask WHERE name LIKE %s", [f"{SCANS}%"])
    last = moment(found[0][0])
    ages.add(-1.0 if last is None else max(0.0, (now - last).total_seconds()))
    for queue, seen in rows("SELECT worker, max(seen_at) FROM pools_servedqueue GROUP BY worker"):
        workers.add(age(seen, now), queue)
    return [ages, workers]


def database() -> list[Figures]:
    oldest = Figures("leasehub_database_oldest_transaction_seconds", "Age of the oldest open transaction of any client "
                     "of this PostgreSQL server: it keeps dead rows from going away. Not on SQLite.")  # fmt: skip
    if connection.vendor == "postgresql":
        found = rows(
            "SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0) FROM pg_stat_activity"
            " WHERE xact_start IS NOT NULL AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        oldest.add(float(found[0][0]))
    return [oldest]


#: What /metrics reads, each by itself: one that fails leaves the others.
READINGS = (held, reaper, pools, commands, handoffs, feed, webhooks, beat, database)


def age(at: Any, now: datetime) -> float:
    began = moment(at)
    return 0.0 if began is None else max(0.0, (now - began).total_seconds())


def moment(value: Any) -> datetime | None:
    """A time from a statement of one's own: SQLite has it as text, and without its zone."""
    at = datetime.fromisoformat(value) if isinstance(value, str) else value
    return at if at is None or at.tzinfo else at.replace(tzinfo=UTC)


def database_value(at: datetime) -> Any:
    return connection.ops.adapt_datetimefield_value(at)
