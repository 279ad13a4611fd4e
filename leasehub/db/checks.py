"""System checks that refuse a database set up so that leases could be lost."""

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core import checks

TAG = "leasehub"


def sqlite_is_safe(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[checks.CheckMessage]:
    """SQLite without WAL and IMMEDIATE transactions fails half of all writes (docs/locking.md)."""
    database: dict[str, Any] = settings.DATABASES["default"]
    if "sqlite" not in database["ENGINE"]:
        return []
    options = database.get("OPTIONS", {})
    start = str(options.get("init_command", "")).replace(" ", "").lower()
    wrong = [
        word
        for word, present in {
            "transaction_mode IMMEDIATE": options.get("transaction_mode") == "IMMEDIATE",
            "journal_mode=WAL": "journal_mode=wal" in start,
            "synchronous=FULL": "synchronous=full" in start,
            "ENGINE leasehub.db.sqlite": database["ENGINE"] == "leasehub.db.sqlite",
        }.items()
        if not present
    ]
    return [checks.Error(f"SQLite must be opened with {word}.", id="leasehub.E001") for word in wrong]


def no_atomic_requests(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[checks.CheckMessage]:
    """A transaction around a whole request would hold row locks until the answer is rendered."""
    database: dict[str, Any] = settings.DATABASES["default"]
    if database.get("ATOMIC_REQUESTS"):
        return [checks.Error("ATOMIC_REQUESTS must be off.", id="leasehub.E002")]
    return []


def register() -> None:
    checks.register(sqlite_is_safe, TAG)
    checks.register(no_atomic_requests, TAG)
