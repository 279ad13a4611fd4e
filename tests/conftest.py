"""The cast: an agent that acts, a teammate of the same organization, an operator, and a stranger from another."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.http import HttpResponse
from django.test import Client, TransactionTestCase
from whitenoise.middleware import WhiteNoiseMiddleware

from leasehub.db.sqlite import clock as sqlite_clock
from leasehub.identity import services as identity
from leasehub.identity.authentication import Caller, authenticate
from leasehub.identity.models import Organization, Principal
from tests import contract
from tests.installation import bootstrapped, first_run, installation

__all__ = ["bootstrapped", "first_run", "installation"]


@pytest.fixture(scope="session")
def django_db_modify_db_settings(django_db_modify_db_settings_parallel_suffix: None) -> Iterator[None]:
    """Making and dropping the test database may take longer than a statement of a request may."""
    wrapper = connections["default"]
    if wrapper.vendor != "postgresql":
        yield
        return
    without_database = wrapper._nodb_cursor

    @contextmanager
    def patient() -> Iterator[Any]:
        with without_database() as cursor:
            cursor.execute("SET statement_timeout = 0")
            yield cursor

    wrapper._nodb_cursor = patient
    yield


@pytest.fixture(scope="session", autouse=True)
def static_files_are_looked_for_once() -> Iterator[None]:
    """Each test client builds the middleware anew, and finding the files took longer than most tests' requests."""
    found: dict[str, Any] = {}
    find = WhiteNoiseMiddleware.add_files_from_finders

    def find_once(middleware: WhiteNoiseMiddleware) -> None:
        if not found:
            find(middleware)
            found.update(middleware.files)
        middleware.files.update(found)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WhiteNoiseMiddleware, "add_files_from_finders", find_once)
        yield


@pytest.fixture(scope="session", autouse=True)
def committed_rows_are_deleted() -> Iterator[None]:
    """After a test that commits; the flush of Django's makes what the migrations made anew, and truncates slowly."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", lambda case: delete_rows())
        yield


# What migrations and their signals made.
KEPT_TABLES = ("django_migrations", "django_content_type", "django_celery_beat_", "auth_permission")
# PostgreSQL passes over deleted rows again and again, so large tables are truncated.
LARGE_BYTES = 2**20


def delete_rows() -> None:
    tables = [name for name in connection.introspection.django_table_names() if not name.startswith(KEPT_TABLES)]
    with transaction.atomic(), connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT max(pg_table_size(oid)) FROM pg_class WHERE relname = ANY (%s)", [tables])
            if cursor.fetchone()[0] > LARGE_BYTES:
                cursor.execute(f"TRUNCATE {', '.join(tables)}")
            else:
                cursor.execute(";".join(f"DELETE FROM {name}" for name in tables))
        else:
            for name in tables:
                cursor.execute(f"DELETE FROM {name}")


@dataclass
class Caster:
    """Somebody with a key: speaks HTTP, and is the ``caller`` of services."""

    principal: Principal
    secret: str

    @property
    def caller(self) -> Caller:
        return authenticate(f"Bearer {self.secret}")

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        media_type = headers.pop("Content-Type", "application/json")
        client = Client(raise_request_exception=True, headers={"Authorization": f"Bearer {self.secret}", **headers})
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        response = client.generic(method, f"/v1/{path}", content, content_type=media_type)
        if response.streaming:
            return first_part(response)
        # Every answer that any test gets is held against the OpenAPI document.
        answered = json.loads(response.content) if response.content else None
        contract.check(method, f"/v1/{path}", response.status_code, response.headers, answered)
        return response

    def get(self, path: str, **headers: str) -> Any:
        return self.request("GET", path, **headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        return self.request("POST", path, {} if body is None else body, **headers)

    def put(self, path: str, body: Any = None, **headers: str) -> Any:
        return self.request("PUT", path, {} if body is None else body, **headers)

    def delete(self, path: str, **headers: str) -> Any:
        return self.request("DELETE", path, **headers)

    def acquire(self, resource_id: str = "checkout", *, resource_type: str = "deploy", **members: Any) -> Any:
        body = {"resource_type": resource_type, "resource_id": resource_id, "ttl_seconds": 60, **members}
        return self.post("leases", body)


def first_part(stream: Any) -> HttpResponse:
    """What a stream begins with, as an answer of its own; nobody reads the rest."""
    part = next(iter(stream))
    # Through the test client's own generator: it keeps the end of the request from closing the test's connection.
    stream._iterator.close()
    return HttpResponse(part, status=stream.status_code, headers=dict(stream.headers))


def cast(organization: Organization, handle: str, rings: tuple[int, ...] = (1, 2), **key: Any) -> Caster:
    principal = Principal.objects.filter(organization=organization, handle=handle).first()
    principal = principal or identity.create_principal(organization=organization.pk, handle=handle)
    _, secret = identity.issue_key(principal=principal, rings=rings, **key)
    return Caster(principal, secret)


@pytest.fixture
def organization(db: None) -> Organization:
    return identity.create_organization(name="acme")


@pytest.fixture
def agent(organization: Organization) -> Caster:
    return cast(organization, "agent")


@pytest.fixture
def teammate(organization: Organization) -> Caster:
    return cast(organization, "teammate")


@pytest.fixture
def operator(organization: Organization) -> Caster:
    return cast(organization, "operator", (1, 2, 3))


@pytest.fixture
def stranger(db: None) -> Caster:
    return cast(identity.create_organization(name="other"), "stranger", (1, 2, 3))


class MovableClock:
    """Database time plus an offset that the test sets, on both databases."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.offset = timedelta()
        real = sqlite_clock.now
        self.frozen: datetime | None = None
        monkeypatch.setattr(sqlite_clock, "now", lambda: self.frozen or real() + self.offset)

    def move(self, **by: float) -> None:
        self.set(self.offset + timedelta(**by))

    def set(self, offset: timedelta) -> None:
        self.offset, self.frozen = offset, None
        self._on_postgresql("clock_timestamp() + interval %s", f"{offset.total_seconds()} seconds")

    def freeze(self, at: datetime) -> None:
        """Stops the clock at this very millisecond, until it is moved."""
        self.frozen = at
        self._on_postgresql("timestamptz %s", at.isoformat())

    def _on_postgresql(self, now: str, value: str) -> None:
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute(POSTGRESQL_CLOCK.format(now=now), [value])

    def now(self) -> datetime:
        from leasehub.db import clock

        return clock.now()


POSTGRESQL_CLOCK = """
CREATE OR REPLACE FUNCTION leasehub_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS $clock$
    SELECT date_trunc('milliseconds', {now})
$clock$
"""


@pytest.fixture
def clock(db: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    movable = MovableClock(monkeypatch)
    yield movable
    movable.set(timedelta())


def error_of(response: Any) -> dict[str, Any]:
    """The refusal: its status, code and fields."""
    return {"status": response.status_code, **response.json()["error"]}
