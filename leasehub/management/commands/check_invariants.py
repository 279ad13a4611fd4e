import json
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import Error

from leasehub.identity.models import Organization
from leasehub.management.invariants.check import check


class Command(BaseCommand):
    help = (
        "Rebuilds each organization's state from its journal and compares it with the rows; reads alone, on a live"
        " server. Exit status 1 when something is wrong, 3 when the database cannot be read (docs/operations.md)."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--organization", help="this one alone")
        parser.add_argument("--json", action="store_true", dest="as_json", help="the report as one JSON object")

    def handle(self, *args: Any, organization: str | None, as_json: bool, **options: Any) -> None:
        try:
            if organization is not None and not Organization.objects.filter(name=organization).exists():
                raise CommandError(f"There is no organization {organization!r}.", returncode=2)
            report = check(organization=organization, progress=lambda text: self.stderr.write(text))
        except Error as error:
            why = " ".join(str(error).split())
            raise CommandError(f"The database cannot be read, so nothing is known: {why}", returncode=3) from error
        if as_json:
            self.stdout.write(json.dumps(report.document()))
        else:
            for finding in report.findings:
                self.stdout.write(str(finding))
            looked = ", ".join(f"{count} {what}" for what, count in sorted(report.checked.items()))
            self.stdout.write(f"{report.found} findings in {report.took_ms / 1000:.1f} s: {looked}")
        if not report.ok:
            sys.exit(1)
