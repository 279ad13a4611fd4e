"""The whole beat schedule. Its rows live in the database, where admins may change interval and switch."""

from dataclasses import dataclass

from django.conf import settings
from django.db import transaction
from django_celery_beat.models import IntervalSchedule, PeriodicTask

OURS = "LeaseHub: "


@dataclass(frozen=True, slots=True)
class Scan:
    name: str
    task: str
    every_seconds: int


def scans() -> list[Scan]:
    return [
        Scan("reap leases that ran out", "leases.reap", settings.LEASEHUB_REAPER_SECONDS),
        Scan("number new events", "leasehub.stamp_feed", 2),
        Scan("forget old answers", "leasehub.forget_old_answers", 60),
        Scan("prune free resources", "leases.prune", 600),
    ]


@transaction.atomic
def install() -> None:
    """Adds the rows that are missing and switches off those whose scan is no more; keeps what admins changed."""
    wanted = {OURS + scan.name: scan for scan in scans()}
    known = PeriodicTask.objects.filter(name__startswith=OURS)
    for stray in known.exclude(name__in=wanted).filter(enabled=True):
        stray.enabled = False
        stray.save()
    present = set(known.values_list("name", flat=True))
    for name, scan in wanted.items():
        if name not in present:
            interval, _ = IntervalSchedule.objects.get_or_create(
                every=scan.every_seconds, period=IntervalSchedule.SECONDS
            )
            # A tick that a stopped worker missed is worth nothing: the next one scans the same rows.
            PeriodicTask.objects.create(
                name=name, task=scan.task, interval=interval, expire_seconds=max(10, 2 * scan.every_seconds)
            )
