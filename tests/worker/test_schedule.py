from datetime import timedelta
from typing import Any

import pytest
from celery import current_app
from django.conf import settings
from django.core.management import call_command
from django_celery_beat.models import IntervalSchedule, PeriodicTask
from django_celery_beat.schedulers import ModelEntry

from leasehub import schedule
from leasehub.schedule import OURS, Scan

REAPER = OURS + "reap leases that ran out"


@pytest.fixture(autouse=True)
def fresh(db: None) -> None:
    PeriodicTask.objects.all().delete()
    IntervalSchedule.objects.all().delete()
    call_command("migrate", verbosity=0)


def scanned(monkeypatch: pytest.MonkeyPatch, *scans: Scan) -> None:
    monkeypatch.setattr(schedule, "scans", lambda: list(scans))
    schedule.install()


def test_every_scan_has_a_row_that_runs_a_known_task():
    rows = {row.name: row for row in PeriodicTask.objects.all()}
    assert set(rows) == {OURS + scan.name for scan in schedule.scans()}
    current_app.loader.import_default_modules()
    assert {row.task for row in rows.values()} <= set(current_app.tasks)
    assert all(row.enabled for row in rows.values())
    assert rows[REAPER].interval.every == settings.LEASEHUB_REAPER_SECONDS


def test_messages_expire_so_that_a_stopped_worker_finds_no_backlog():
    """django-celery-beat passes `expires` on only when it is given as `expire_seconds`."""
    for row in PeriodicTask.objects.all():
        assert row.expire_seconds
        assert ModelEntry(row).options["expires"] == row.expire_seconds


def test_installing_again_changes_nothing():
    before = list(PeriodicTask.objects.order_by("pk").values())
    schedule.install()
    assert list(PeriodicTask.objects.order_by("pk").values()) == before


def test_what_an_admin_changed_stays_whatever_the_settings_say(settings: Any):
    slow = IntervalSchedule.objects.create(every=1, period=IntervalSchedule.MINUTES)
    PeriodicTask.objects.filter(name=REAPER).update(interval=slow, enabled=False, expire_seconds=77)
    PeriodicTask.objects.create(name="mine", task="leases.reap", interval=slow)
    settings.LEASEHUB_REAPER_SECONDS = 9
    schedule.install()
    row = PeriodicTask.objects.get(name=REAPER)
    assert (row.interval, row.enabled, row.expire_seconds) == (slow, False, 77)
    assert PeriodicTask.objects.get(name="mine").enabled


def test_a_changed_setting_reaches_rows_that_nobody_changed(settings: Any):
    settings.LEASEHUB_REAPER_SECONDS = 2
    schedule.install()
    assert PeriodicTask.objects.get(name=REAPER).schedule.run_every == timedelta(seconds=2)
    settings.LEASEHUB_REAPER_SECONDS = 9
    PeriodicTask.objects.filter(name=REAPER).update(enabled=False)
    schedule.install()
    row = PeriodicTask.objects.get(name=REAPER)
    assert row.schedule.run_every == timedelta(seconds=9) and not row.enabled


def test_a_row_whose_scan_is_no_more_is_switched_off_and_comes_back(monkeypatch: pytest.MonkeyPatch):
    all_scans = schedule.scans()
    scanned(monkeypatch, *all_scans[1:])
    assert not PeriodicTask.objects.get(name=OURS + all_scans[0].name).enabled
    scanned(monkeypatch, *all_scans)
    assert PeriodicTask.objects.get(name=OURS + all_scans[0].name).enabled


def test_a_row_that_was_deleted_comes_back():
    PeriodicTask.objects.get(name=REAPER).delete()
    schedule.install()
    assert PeriodicTask.objects.get(name=REAPER).enabled


def test_two_equal_intervals_do_no_harm():
    PeriodicTask.objects.all().delete()
    IntervalSchedule.objects.create(every=5, period=IntervalSchedule.SECONDS)
    IntervalSchedule.objects.create(every=5, period=IntervalSchedule.SECONDS)
    schedule.install()
    assert PeriodicTask.objects.count() == len(schedule.scans())
