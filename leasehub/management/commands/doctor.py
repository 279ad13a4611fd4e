import json
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from leasehub.management import doctor


class Command(BaseCommand):
    help = "What `leasehub doctor` asks the server, without one: JSON on stdout, text on stderr; exit 1 when it fails."
    # It runs them itself, and tells.
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--pretty", action="store_true", help="the JSON indented")

    def handle(self, *args: Any, pretty: bool, **options: Any) -> None:
        verdicts = doctor.examine()
        for verdict in verdicts:
            todo = f" -> {verdict.todo}" if verdict.todo else ""
            self.stderr.write(f"{verdict.status:4} {verdict.check}: {verdict.message}{todo}")
        found = doctor.document(verdicts)
        is_well = found["status"] != doctor.FAIL
        code = "healthy" if is_well else "unhealthy"
        self.stdout.write(json.dumps({"ok": is_well, "code": code, **found}, indent=2 if pretty else None))
        if not is_well:
            sys.exit(1)
