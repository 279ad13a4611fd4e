"""The server's own proof (manage.py check_invariants), asked by tests."""

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from leasehub.events.models import Event
from leasehub.identity.models import Organization
from leasehub.management.invariants.check import Check, check
from leasehub.management.invariants.replay import Past
from leasehub.management.invariants.report import Report
from leases.models import Resource


def assert_the_journal_gives_the_state(
    events: Iterable[Event] | None = None, resources: Iterable[Resource] | None = None
) -> None:
    """Replaying every event gives exactly what the rows say, and no invariant is broken.

    With events and rows: these alone, of plain resources, without asking the database.
    """
    report = check() if events is None or resources is None else of_resources(events, resources)
    assert report.ok, "; ".join(map(str, report.findings[:10]))


def of_resources(events: Iterable[Event], resources: Iterable[Resource]) -> Report:
    report = Report()
    checking = Check(Organization(name="tested"), report, lambda text: None, pruned=False)
    both: list[tuple[tuple[str, str], int, int, Any]] = [
        *(((event.resource_type, event.resource_id), 0, event.pk, Past.of(event)) for event in events),
        *(((row.resource_type, row.resource_id), 1, row.pk, row) for row in resources),
    ]
    for name, items in groupby(sorted(both, key=lambda item: item[:3]), key=lambda item: item[0]):
        checking.resource(name, (item for *_, item in items))
    return report
