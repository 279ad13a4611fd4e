from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings
from django.core.checks import run_checks
from django.core.management import call_command
from django.core.management.base import SystemCheckError

from leasehub.db import checks

SAFE = {
    "ENGINE": "leasehub.db.sqlite",
    "OPTIONS": {
        "transaction_mode": "IMMEDIATE",
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON",
    },
}


@pytest.fixture
def configure(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    return lambda **database: monkeypatch.setitem(settings.DATABASES, "default", {**SAFE, **database})


def found() -> list[str]:
    return [message.msg for message in run_checks(tags=[checks.TAG])]


def test_what_the_settings_make_is_safe(configure: Any):
    assert found() == []
    configure()
    assert found() == []


@pytest.mark.parametrize(
    ("database", "says"),
    [
        ({"ENGINE": "django.db.backends.sqlite3"}, "ENGINE leasehub.db.sqlite"),
        ({"OPTIONS": {**SAFE["OPTIONS"], "transaction_mode": "DEFERRED"}}, "transaction_mode IMMEDIATE"),
        ({"OPTIONS": {"init_command": SAFE["OPTIONS"]["init_command"]}}, "transaction_mode IMMEDIATE"),
        ({"OPTIONS": {"transaction_mode": "IMMEDIATE"}}, "journal_mode=WAL"),
        (
            {"OPTIONS": {"transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode=WAL"}},
            "synchronous=FULL",
        ),
        ({"ATOMIC_REQUESTS": True}, "ATOMIC_REQUESTS"),
    ],
)
def test_a_database_that_could_lose_a_lease_is_refused(configure: Any, database: dict[str, Any], says: str):
    configure(**database)
    assert any(says in message for message in found())


def test_postgresql_needs_no_pragma(configure: Any):
    configure(ENGINE="django.db.backends.postgresql", OPTIONS={})
    assert found() == []


def test_the_worker_does_not_start_on_an_unsafe_database(configure: Any):
    configure(ATOMIC_REQUESTS=True)
    with pytest.raises(SystemCheckError, match="ATOMIC_REQUESTS"):
        call_command("worker", skip_checks=False)
