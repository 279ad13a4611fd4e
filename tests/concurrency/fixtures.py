"""A cast whose rows are committed, so that other connections and processes see them, and a clock that stands still."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import connection

from leasehub.identity import services as identity
from tests.concurrency.frozen import FrozenClock
from tests.conftest import Caster, cast, delete_rows

TABLES = (
    "leases_resource",
    "leases_taskcontent",
    "leases_task",
    "leases_lane",
    "leases_queue",
    "events_event",
    "events_feed",
    "identity_rememberedanswer",
    "identity_apikey",
    "identity_principal",
    "identity_organization",
)


def hurry() -> None:
    """Commits of this connection need not survive a power cut: what is proved here is not durability."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SET synchronous_commit = off" if connection.vendor == "postgresql" else "PRAGMA synchronous=OFF"
        )


def sweep(tables: tuple[str, ...] = TABLES) -> None:
    assert "test_" in str(connection.settings_dict["NAME"])
    with connection.cursor() as cursor:
        for table in tables:
            cursor.execute(f"DELETE FROM {table}")


@pytest.fixture
def transactional_db(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """pytest-django's of that name, but that it empties our tables alone: a flush of all of them takes longer."""
    with django_db_blocker.unblock():
        hurry()
        delete_rows()
        try:
            yield
        finally:
            sweep()
            connection.close()


@dataclass
class Acme:
    """Alice holds, bob wants, the operator forces, the sweeper may act for alice's holders alone."""

    organization: int
    alice: Caster
    bob: Caster
    operator: Caster
    sweeper: Caster


@pytest.fixture
def acme(transactional_db: None) -> Acme:
    organization = identity.create_organization(name="acme")
    return Acme(
        organization.pk,
        cast(organization, "alice"),
        cast(organization, "bob"),
        cast(organization, "operator", (1, 2, 3)),
        cast(organization, "sweeper", holder_pattern="^alice(-.*)?$"),
    )


@pytest.fixture
def frozen(transactional_db: None) -> Iterator[FrozenClock]:
    with FrozenClock() as clock:
        yield clock
