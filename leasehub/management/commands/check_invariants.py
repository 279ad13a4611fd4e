import json
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from leasehub.identity.models import Organization
from leasehub.management.invariants.check import check


class Command(BaseCommand):
    help = (
        "Rebuilds each organization's state from its journal and compares it with the rows; reads alone, on a live"
        " server. Exit status 1 when something is wrong (docs/operations.md)."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--organization", help="this one alone")
        parser.add_argument("--json", action="store_true", dest="as_json", help="the report as one JSON object")

    def handle(self, *args: Any, organization: str | None, as_json: bool, **options: Any) -> None:
        if organization is not None and not Organization.objects.filter(name=organization).exists():
            raise CommandError(f"There is no organization {organization!r}.", returncode=2)
        report = check(organization=organization, progress=lambda text: self.stderr.write(text))
        if as_json:
            self.stdout.write(json.dumps(report.document()))
        else:
            for finding in report.findings:
                self.stdout.write(str(finding))
            looked = ", ".join(f"{count} {what}" for what, count in sorted(report.checked.items()))
            self.stdout.write(f"{report.found} findings in {report.took_ms / 1000:.1f} s: {looked}")
        if not report.ok:
            sys.exit(1)
