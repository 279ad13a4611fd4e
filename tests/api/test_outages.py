"""The database away or busy: 503 that says when to come back, and nothing half done."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, connections, transaction

from leasehub.events.models import Event
from leasehub.identity.models import ApiKey, RememberedAnswer
from leases.models import Resource
from tests import wsgi
from tests.api.samples import SAMPLES, Names
from tests.conftest import Caster, cast
from tests.leases.conftest import Held

pytestmark = pytest.mark.django_db(transaction=True)
on_postgresql = pytest.mark.skipif(
    "postgresql" not in str(connection.settings_dict["ENGINE"]), reason="row locks and backends are PostgreSQL's"
)
on_sqlite = pytest.mark.skipif("sqlite" not in str(connection.settings_dict["ENGINE"]), reason="SQLite's one writer")


def is_unavailable(response: Any) -> bool:
    error = response.json()["error"]
    return bool(
        (response.status_code, error["code"]) == (503, "UNAVAILABLE")
        and error["retry_after_ms"] > 0
        and int(response.headers["Retry-After"]) >= 1
    )


def everything() -> list[Any]:
    return [list(model.objects.order_by("pk").values()) for model in (Resource, Event, RememberedAnswer)] + [
        list(ApiKey.objects.order_by("pk").values_list("pk", "revoked_at", "expires_at"))
    ]


@contextmanager
def elsewhere(block: Callable[[], Any]) -> Iterator[None]:
    """Another thread, with a connection of its own, is inside ``block``'s transaction meanwhile."""
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            with transaction.atomic():
                block()
                inside.set()
                leave.wait(timeout=20)
        finally:
            connections.close_all()

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(timeout=10)
    try:
        yield
    finally:
        leave.set()
        thread.join(timeout=20)


@pytest.fixture
def impatient(settings: Any) -> Iterator[None]:
    """Nobody waits longer than 100 ms for a lock."""
    settings.LEASEHUB_LOCK_TIMEOUT_MS = 100
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = 100")
    yield
    connection.close()


WRITES = ["lease_acquire", "lease_heartbeat", "lease_heartbeats", "lease_release", "lease_force_release", "lease_reap"]
WITH_AND_WITHOUT_KEY: list[dict[str, str]] = [{}, {"Idempotency-Key": "k"}]


@pytest.fixture
def boss(organization: Any) -> Caster:
    return cast(organization, "boss", (1, 2, 3))


def about(held: Held, boss: Caster) -> Names:
    return Names(held.lease_id, held.token, boss.caller.key_id, "somebody", held.resource_id)


def lock_every_lease() -> None:
    list(Resource.objects.select_for_update().all())


# Each of these loops over the verbs: emptying the tables after a test that commits costs more than the test.
@on_postgresql
def test_a_row_locked_too_long_is_a_503_and_nothing_is_done(boss: Caster, impatient: None) -> None:
    for name in WRITES:
        for headers in WITH_AND_WITHOUT_KEY:
            refused_and_then_done(boss, name, headers, lock_every_lease)


@on_sqlite
def test_a_writer_that_writes_too_long_is_a_503_and_nothing_is_done(boss: Caster, impatient: None) -> None:
    for name in [*WRITES, "key_create", "lease_reconcile"]:
        for headers in WITH_AND_WITHOUT_KEY:
            refused_and_then_done(boss, name, headers, lambda: None)


def refused_and_then_done(boss: Caster, name: str, headers: dict[str, str], meanwhile: Callable[[], Any]) -> None:
    sample, case = SAMPLES[name], f"{name} {headers}"
    headers = {header: f"{value}-{name}" for header, value in headers.items()}
    names = about(Held.by(boss, f"{name}{len(headers)}"), boss)
    before = everything()
    with elsewhere(meanwhile):
        assert is_unavailable(sample.send(boss, names, **headers)), case
        # Reads go on.
        assert boss.get("leases").status_code == 200, case
    assert everything() == before, case
    # A live lease is not reaped, but that is said now.
    assert sample.send(boss, names, **headers).status_code in (200, 201, 409 if name == "lease_reap" else 200), case


def test_a_key_never_used_before_can_read_while_somebody_writes(
    boss: Caster, organization: Any, impatient: None
) -> None:
    """The note of its first use is not worth a refusal."""
    fresh = cast(organization, "fresh")

    def lock() -> None:
        list(ApiKey.objects.select_for_update().all())

    with elsewhere(lock):
        assert fresh.get("whoami").status_code == 200
        assert fresh.get("leases").status_code == 200


def terminate_backends() -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def in_another_thread(work: Callable[[], Any]) -> None:
    def run() -> None:
        try:
            work()
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(timeout=20)


@on_postgresql
def test_a_connection_that_broke_while_idle_is_replaced_before_it_is_used(boss: Caster) -> None:
    for name in ("whoami", "lease_list", "lease_status", "lease_force_release", "lease_reconcile"):
        sample, names = SAMPLES[name], about(Held.by(boss, name), boss)
        content = json.dumps(sample.body(names)).encode() if sample.body(names) is not None else b""
        request = (sample.method, f"/v1/{sample.path(names)}", content, {"Authorization": f"Bearer {boss.secret}"})
        in_another_thread(terminate_backends)
        assert wsgi.call(*request).status_code == 200, name


@on_postgresql
def test_the_hot_path_sees_that_the_server_hung_up_and_connects_again(boss: Caster) -> None:
    for name in ("lease_acquire", "lease_heartbeat", "lease_heartbeats", "lease_release"):
        names = about(Held.by(boss, name), boss)
        in_another_thread(terminate_backends)
        assert SAMPLES[name].send(boss, names).status_code in (200, 201), name


@on_postgresql
def test_a_connection_that_breaks_in_the_middle_leaves_nothing_half_done(boss: Caster) -> None:
    """The backend is ended while the verb waits for a row: its transaction is rolled back whole."""
    held = Held.by(boss)
    names = about(held, boss)
    before = everything()

    def lock() -> None:
        lock_every_lease()
        # A moment later, from a thread of its own: by then the verb waits for the row.
        threading.Timer(0.5, lambda: in_another_thread(terminate_waiting)).start()

    for name in ("lease_release", "lease_force_release", "lease_acquire"):
        with elsewhere(lock):
            assert is_unavailable(SAMPLES[name].send(boss, names, **{"Idempotency-Key": name}))
        connection.close()
        assert everything() == before, name


def terminate_waiting() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )


def test_with_the_database_away_every_operation_is_a_503(boss: Caster, monkeypatch: pytest.MonkeyPatch) -> None:
    names = about(Held.by(boss), boss)
    with away(monkeypatch):
        for name, sample in SAMPLES.items():
            for headers in WITH_AND_WITHOUT_KEY:
                assert is_unavailable(sample.send(boss, names, **headers)), name
    assert SAMPLES["lease_heartbeat"].send(boss, names).status_code == 200


@contextmanager
def away(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Connecting fails, as it does when the server is down or the file cannot be opened."""
    parameters = dict(connection.get_connection_params())
    parameters |= {"port": 1} if connection.vendor == "postgresql" else {"database": "/nowhere/at/all.sqlite3"}
    connection.close()
    with monkeypatch.context() as patched:
        patched.setattr(connection, "get_connection_params", lambda: parameters)
        yield
    connection.close()


def test_with_the_database_away_health_is_told_apart_from_readiness(
    boss: Caster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with away(monkeypatch):
        assert wsgi.call("GET", "/healthz").status_code == 200
        ready = wsgi.call("GET", "/readyz")
        assert is_unavailable(ready)
    assert wsgi.call("GET", "/readyz").status_code == 200


@on_postgresql
def test_a_read_only_database_is_503(agent: Caster) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
    try:
        assert is_unavailable(agent.acquire())
    finally:
        with connection.cursor() as cursor:
            cursor.execute("SET default_transaction_read_only = off")
    assert agent.acquire().status_code == 201
