"""The operator of the server at the admin, and a member of staff who may do only what is allowed one by one."""

import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from leasehub.db import clock as database_clock
from leasehub.events.models import Event
from leases.models import Resource
from tests.browser import browser
from tests.conftest import Caster

__all__ = ["browser"]

MANY = 20_000
LARGE = ("events_event", "leases_resource", "leases_task")


@pytest.fixture
def root(db: None) -> Client:
    return signed_in(User.objects.create_superuser("root", password="not-used-here"))


@pytest.fixture
def staff(db: None) -> Callable[..., Client]:
    """A member of staff with these permissions: staff("leases.view_lease")."""

    def make(*permissions: str) -> Client:
        user = User.objects.create_user("staff", is_staff=True)
        for permission in permissions:
            app, codename = permission.split(".")
            user.user_permissions.add(Permission.objects.get(content_type__app_label=app, codename=codename))
        return signed_in(user)

    return make


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def act(client: Client, page: str, action: str, *rows: Any, **form: Any) -> Any:
    """Chooses rows of a list and an action on them."""
    chosen = {"action": action, "_selected_action": [str(row) for row in rows], **form}
    return client.post(f"/admin/{page}/", chosen, follow=True)


def told(response: Any) -> list[str]:
    return [str(message) for message in response.context["messages"]]


def plans(client: Client, page: str) -> list[str]:
    """How the database finds what the page shows of the large tables: a plan for each of its queries."""
    with CaptureQueriesContext(connection) as queries:
        response = client.get(f"/admin/{page}")
    assert response.status_code == 200
    reads = [query["sql"] for query in queries if any(f'"{table}"' in query["sql"] for table in LARGE)]
    assert reads
    return [plan(sql) for sql in reads]


def plan(sql: str) -> str:
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(f"EXPLAIN {sql}")
            return "\n".join(row[0] for row in cursor.fetchall())
        # Django's log shows SQLite's parameters filled in.
        cursor.execute(f"EXPLAIN QUERY PLAN {sql}")
        return "\n".join(row[3] for row in cursor.fetchall())


def scans(plan: str) -> bool:
    """Goes through a large table row by row."""
    if connection.vendor == "postgresql":
        return any(f"Seq Scan on {table}" in plan for table in LARGE)
    return any(line.startswith(tuple(f"SCAN {table}" for table in LARGE)) for line in plan.splitlines())


def reads_everything(plan: str) -> bool:
    """Goes through a large table to its end, even for a page of it."""
    if connection.vendor == "postgresql":
        return scans(plan)
    # In the order of the ids or of an index, it stops when the page is full.
    return scans(plan) and "TEMP B-TREE FOR ORDER BY" in plan


@pytest.fixture
def many(agent: Caster) -> None:
    """Enough rows that a planner would rather not read them all."""
    organization, principal = agent.principal.organization_id, agent.principal.pk
    at = database_clock.now()
    Event.objects.bulk_create(
        [
            Event(
                organization_id=organization,
                position=number,
                type="lease.released" if number % 2 else "lease.acquired",
                at=at - timedelta(minutes=MANY - number),
                resource_type="t",
                resource_id=f"service-{number // 2}",
                lease_id=uuid.UUID(int=number // 2),
                principal_id=principal,
                holder="muse",
            )
            for number in range(1, MANY)
        ],
        batch_size=1000,
    )
    Resource.objects.bulk_create(
        [
            Resource(
                organization_id=organization,
                resource_type="t",
                resource_id=f"service-{number}",
                last_token=number,
                **held(principal, at) if number % 50 == 0 else {},
            )
            for number in range(MANY // 2)
        ],
        batch_size=1000,
    )
    if connection.vendor == "postgresql":
        # As its autovacuum does; nothing does on SQLite.
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE events_event, leases_resource")


def held(principal: int, at: datetime) -> dict[str, Any]:
    end = at + timedelta(hours=1)
    times = {"acquired_at": at, "heartbeat_at": at, "expires_at": end, "check_at": end}
    return {"lease_id": uuid.uuid4(), "principal_id": principal, "holder": "muse", "ttl_ms": 3_600_000, **times}
