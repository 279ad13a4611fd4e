"""A wrong setting stops the start, with a sentence that names it. Each in a process of its own, as it happens."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

WRONG = [
    ({"LEASEHUB_MIN_TTL_SECONDS": "0"}, "LEASEHUB_MIN_TTL_SECONDS must be a whole number"),
    ({"LEASEHUB_MIN_TTL_SECONDS": "ten"}, "LEASEHUB_MIN_TTL_SECONDS must be a whole number"),
    ({"LEASEHUB_MIN_TTL_SECONDS": "1.5"}, "LEASEHUB_MIN_TTL_SECONDS must be a whole number"),
    ({"LEASEHUB_MIN_TTL_SECONDS": "٣"}, "LEASEHUB_MIN_TTL_SECONDS must be a whole number"),
    ({"LEASEHUB_MIN_TTL_SECONDS": "100000"}, "LEASEHUB_MIN_TTL_SECONDS must not be above LEASEHUB_MAX_TTL_SECONDS"),
    ({"LEASEHUB_MAX_TTL_SECONDS": "-1"}, "LEASEHUB_MAX_TTL_SECONDS must be a whole number"),
    ({"LEASEHUB_MAX_TTL_SECONDS": "9" * 40}, "LEASEHUB_MAX_TTL_SECONDS must be a whole number"),
    ({"LEASEHUB_REAPER_SECONDS": "0"}, "LEASEHUB_REAPER_SECONDS must be a whole number"),
    ({"LEASEHUB_REAPER_SECONDS": "5s"}, "LEASEHUB_REAPER_SECONDS must be a whole number"),
    ({"LEASEHUB_IDEMPOTENCY_HOURS": "x"}, "LEASEHUB_IDEMPOTENCY_HOURS must be a whole number"),
    ({"LEASEHUB_LOCK_TIMEOUT_MS": ""}, "LEASEHUB_LOCK_TIMEOUT_MS must be a whole number"),
    ({"LEASEHUB_STATEMENT_TIMEOUT_MS": "0x10"}, "LEASEHUB_STATEMENT_TIMEOUT_MS must be a whole number"),
    ({"LEASEHUB_WEBHOOK_ALLOW": "10.0.0.1/8"}, "LEASEHUB_WEBHOOK_ALLOW: '10.0.0.1/8' is neither a host nor a network"),
    ({"LEASEHUB_WEBHOOK_ALLOW": "http://a.example"}, "LEASEHUB_WEBHOOK_ALLOW must be names like"),
    ({"LEASEHUB_WEBHOOK_ALLOW": "10.0.0"}, "LEASEHUB_WEBHOOK_ALLOW: '10.0.0' is neither"),
    ({"LEASEHUB_DELIVERY_DAYS": "0"}, "LEASEHUB_DELIVERY_DAYS must be a whole number"),
    ({"LEASEHUB_PROXIES": "-1"}, "LEASEHUB_PROXIES must be a whole number from 0 to 10"),
    ({"LEASEHUB_HTTPS": "yes"}, "LEASEHUB_HTTPS must be 'on' or 'off'"),
    ({"LEASEHUB_JSON_LOGS": "1"}, "LEASEHUB_JSON_LOGS must be 'on' or 'off'"),
    ({"LEASEHUB_LOG_LEVEL": "LOUD"}, "LEASEHUB_LOG_LEVEL must be one of"),
    ({"LEASEHUB_SECRET_KEY": "short"}, "LEASEHUB_SECRET_KEY must have at least 32 characters"),
    ({"LEASEHUB_ALLOWED_HOSTS": "http://a.example"}, "LEASEHUB_ALLOWED_HOSTS"),
    ({"LEASEHUB_TRUSTED_ORIGINS": "a.example"}, "LEASEHUB_TRUSTED_ORIGINS"),
    ({"DATABASE_URL": "mysql://root@localhost/x"}, "DATABASE_URL must name"),
    ({"DATABASE_URL": "nonsense"}, "DATABASE_URL"),
    ({"DATABASE_URL": "postgres://h:port/x"}, "DATABASE_URL cannot be read"),
    ({"DATABASE_URL": "postgres://h/x", "LEASEHUB_DATA": ""}, "LEASEHUB_SECRET_KEY must be set when DATABASE_URL is"),
    ({"CELERY_BROKER_URL": "filesystem://"}, "CELERY_BROKER_URL must name"),
    ({"CELERY_BROKER_URL": "redis"}, "CELERY_BROKER_URL must name"),
    ({"LEASEHUB_DATA": "/proc/nowhere/data"}, "LEASEHUB_DATA"),
    ({"LEASEHUB_EVENT_DAYS": "0"}, "LEASEHUB_EVENT_DAYS must be a whole number"),
    ({"LEASEHUB_EVENT_ARCHIVE": "events"}, "LEASEHUB_EVENT_ARCHIVE must be the absolute path"),
    ({"LEASEHUB_METRICS_ALLOW": "10.0.0.1/8"}, "LEASEHUB_METRICS_ALLOW must be networks"),
    ({"LEASEHUB_METRICS_ALLOW": "example.org"}, "LEASEHUB_METRICS_ALLOW must be networks"),
    ({"LEASEHUB_METRICS_TOKEN": "short"}, "LEASEHUB_METRICS_TOKEN must have at least 16"),
]
RIGHT = [
    {},
    {"LEASEHUB_MIN_TTL_SECONDS": "1", "LEASEHUB_REAPER_SECONDS": "1"},
    {"LEASEHUB_METRICS_ALLOW": "10.0.0.0/8, fd00::/8", "LEASEHUB_METRICS_TOKEN": "x" * 16},
    {"LEASEHUB_HTTPS": "ON", "LEASEHUB_JSON_LOGS": "on", "LEASEHUB_LOG_LEVEL": "debug"},
    {"DATABASE_URL": "postgres://h/x", "LEASEHUB_SECRET_KEY": "x" * 32, "CELERY_BROKER_URL": "redis://h:6379/0"},
    {
        "CELERY_BROKER_URL": "amqp://guest@h//",
        "LEASEHUB_TRUSTED_ORIGINS": "https://a.example",
        "LEASEHUB_ALLOWED_HOSTS": "a.example,[::1]",
        "LEASEHUB_WEBHOOK_ALLOW": "hooks.internal,localhost,10.0.0.0/8,fd00::/8,::1,192.168.1.7",
    },
]
LOAD = "import django; django.setup(); print('started')"


def start(folder: Path, given: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("LEASEHUB_", "DATABASE", "CELERY"))}
    environment = {**kept, "DJANGO_SETTINGS_MODULE": "leasehub.settings", "LEASEHUB_DATA": str(folder), **given}
    environment = {name: text for name, text in environment.items() if (name, text) != ("LEASEHUB_DATA", "")}
    return subprocess.run(
        [sys.executable, "-c", LOAD], env=environment, cwd=folder, capture_output=True, text=True, timeout=60
    )


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, "subprocess.CompletedProcess[str]"]:
    """All of them at once: each is mostly the start of an interpreter."""
    every = [given for given, _ in WRONG] + RIGHT
    with ThreadPoolExecutor(4) as pool:
        done = pool.map(lambda given: start(tmp_path_factory.mktemp("data"), given), every)
        return {repr(given): one for given, one in zip(every, done, strict=True)}


@pytest.mark.parametrize(("given", "says"), WRONG, ids=[" ".join(given) for given, _ in WRONG])
def test_a_wrong_setting_stops_the_start_and_is_named(given: dict[str, str], says: str, starts: dict):
    ended = starts[repr(given)]
    last = ended.stderr.strip().splitlines()[-1]
    assert ended.returncode != 0
    assert last.startswith("django.core.exceptions.ImproperlyConfigured: ") and says in last


@pytest.mark.parametrize("given", RIGHT, ids=[" ".join(given) or "none" for given in RIGHT])
def test_a_right_setting_does_not(given: dict[str, str], starts: dict):
    ended = starts[repr(given)]
    assert (ended.returncode, ended.stdout.strip()) == (0, "started"), ended.stderr
