"""The whole beat schedule. Its rows live in the database, where admins may change interval and switch."""

import re
from dataclasses import dataclass

from django.conf import settings
from django.db import transaction
from django_celery_beat.models import IntervalSchedule, PeriodicTask

OURS = "LeaseHub: "
# Written into a row's description, to tell at the next start what an admin changed since.
STRAY = "Switched off: this version of the server has no such scan."
INSTALLED = re.compile(r"Installed to run every (\d+) seconds\.")


@dataclass(frozen=True, slots=True)
class Scan:
    name: str
    task: str
    every_seconds: int

    @property
    def description(self) -> str:
        return f"Installed to run every {self.every_seconds} seconds."

    @property
    def expire_seconds(self) -> int:
        # A tick that a stopped worker missed is worth nothing: the next one scans the same rows.
        return max(10, 2 * self.every_seconds)


def scans() -> list[Scan]:
    return [
        Scan("reap leases that ran out", "leases.reap", settings.LEASEHUB_REAPER_SECONDS),
        Scan("expire handoffs past accept_by", "handoffs.expire", 5),
        Scan("delete checkpoints that ran out", "handoffs.prune_checkpoints", 60),
        Scan("sweep pools", "pools.sweep", 5),
        Scan("number new events", "leasehub.stamp_feed", 2),
        Scan("forget old answers", "leasehub.forget_old_answers", 60),
        Scan("forget old webhook deliveries", "leasehub.forget_deliveries", 3600),
        Scan("forget old attempts to sign in", "leasehub.forget_sign_in_attempts", 3600),
        Scan("forget old requests and runs of pools", "pools.forget", 3600),
        Scan("forget readers of notices", "leasehub.forget_readers", 3600),
        Scan("move old events out", "leasehub.prune_events", 60),
        Scan("prune free resources", "leases.prune", 600),
        Scan("prune finished tasks", "leases.prune_tasks", 600),
    ]


@transaction.atomic
def install() -> None:
    """Makes the rows say what this version wants, but for what admins changed.

    Missing rows are added. A row whose scan is no more is switched off, and on again when a version has it back.
    A row whose interval nobody changed follows the settings.
    """
    wanted = {OURS + scan.name: scan for scan in scans()}
    known = {row.name: row for row in PeriodicTask.objects.filter(name__startswith=OURS).select_related("interval")}
    for name, row in known.items():
        if name not in wanted:
            _switch_off(row)
        else:
            _bring_up_to_date(row, wanted[name])
    for name, scan in wanted.items():
        if name not in known:
            PeriodicTask.objects.create(
                name=name,
                task=scan.task,
                interval=_every(scan.every_seconds),
                expire_seconds=scan.expire_seconds,
                description=scan.description,
            )


def _switch_off(row: PeriodicTask) -> None:
    if row.enabled:
        row.enabled, row.description = False, STRAY
        row.save()


def _bring_up_to_date(row: PeriodicTask, scan: Scan) -> None:
    if row.description == STRAY:
        row.enabled = True
    elif not _is_as_installed(row) or (row.task, row.description) == (scan.task, scan.description):
        return
    row.task, row.interval, row.expire_seconds = scan.task, _every(scan.every_seconds), scan.expire_seconds
    row.description = scan.description
    row.save()


def _is_as_installed(row: PeriodicTask) -> bool:
    installed = INSTALLED.fullmatch(row.description)
    return (
        installed is not None
        and row.interval is not None
        and row.interval.period == IntervalSchedule.SECONDS
        and row.interval.every == int(installed[1])
    )


def _every(seconds: int) -> IntervalSchedule:
    # Not get_or_create: nothing keeps an admin from making a second equal one.
    found = IntervalSchedule.objects.filter(every=seconds, period=IntervalSchedule.SECONDS).first()
    return found or IntervalSchedule.objects.create(every=seconds, period=IntervalSchedule.SECONDS)
