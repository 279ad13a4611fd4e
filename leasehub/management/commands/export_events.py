import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from leasehub.db.reading import consistent
from leasehub.events import feed
from leasehub.events.models import Event
from leasehub.identity.models import Organization
from leasehub.management import retention


class Command(BaseCommand):
    help = "Writes events as NDJSON to stdout, each organization's in the order of its feed, as they are read."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--organization", help="this one alone")
        parser.add_argument("--after", type=int, default=0, metavar="POSITION", help="only events after this position")
        parser.add_argument("--before", type=int, metavar="POSITION", help="only events before this position")

    def handle(self, *args: Any, organization: str | None, after: int, before: int | None, **options: Any) -> None:
        organizations = Organization.objects.order_by("pk")
        if organization is not None:
            organizations = organizations.filter(name=organization)
            if not organizations.exists():
                raise CommandError(f"There is no organization {organization!r}.", returncode=2)
        # What is unnumbered has no place in the order yet.
        feed.stamp_all()
        with consistent():
            for one in organizations:
                events = Event.objects.filter(organization=one, position__gt=after)
                if before is not None:
                    events = events.filter(position__lt=before)
                for line in retention.lines(events.order_by("position")):
                    self._write(line)

    def _write(self, line: bytes) -> None:
        try:
            self.stdout.write(line.decode(), ending="")
        except BrokenPipeError:
            # Whoever reads has seen enough.
            sys.exit(0)
