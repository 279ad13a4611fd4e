"""A check of the invariants that is asked for in the admin: bounded, one at a time, and its report is kept."""

import threading

from django.db.models import F, Sum

from leasehub.db import clock
from leasehub.events.models import Feed, Inspection
from leasehub.management.invariants.check import check

#: A web server's thread is busy meanwhile: more than this is the command's.
MOST_EVENTS = 200_000
KEPT = 10
MOST_SHOWN = 200

_running = threading.Lock()


class CannotInspect(Exception):
    """Says why not, to whoever asked in the admin."""


def inspect(*, by: str) -> Inspection:
    """Raises CannotInspect."""
    events = Feed.objects.aggregate(kept=Sum(F("last_position") - F("pruned_through")))["kept"] or 0
    if events > MOST_EVENTS:
        raise CannotInspect("There is too much to check from a page: run manage.py check_invariants.")
    if not _running.acquire(blocking=False):
        raise CannotInspect("A check runs already: its report comes soon.")
    try:
        report = check()
    finally:
        _running.release()
    document = report.document()
    document["findings"] = document["findings"][:MOST_SHOWN]
    made = Inspection.objects.create(at=clock.now(), by=by, report=document)
    Inspection.objects.filter(pk__lte=made.pk - KEPT).delete()
    return made


def last() -> Inspection | None:
    return Inspection.objects.order_by("-pk").first()
