import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connection

from leasehub.db import locks
from leasehub.management import bootstrap


class Command(BaseCommand):
    help = "Migrates (which installs the schedule), and on the first start makes an organization, an admin and a key."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--url", required=True, help="where the server will answer")

    def handle(self, *args: Any, url: str, **options: Any) -> None:
        credentials = settings.LEASEHUB_DATA / "credentials.json"
        prepare_connection()
        with locks.installing():
            call_command("migrate", verbosity=0)
            first_run = bootstrap.is_new()
            if first_run:
                bootstrap.first_run(url=url, credentials=credentials)
        document = self._known(credentials, url)
        shown = {name: document.get(name) for name in ("organization", "principal", "admin_user")}
        # Without the file, this database was bootstrapped elsewhere, and so were its credentials.
        where = str(credentials) if document else None
        self.stdout.write(json.dumps({"url": url, **shown, "credentials": where, "first_run": first_run}))

    def _known(self, credentials: Path, url: str) -> dict[str, Any]:
        """What the file says, with the address of this start in it."""
        if not credentials.exists():
            return {}
        try:
            document: dict[str, Any] = json.loads(credentials.read_text())
        except ValueError:
            raise CommandError(f"{credentials} is not JSON: repair it, or move it away.") from None
        if document.get("url") != url:
            document["url"] = url
            bootstrap.write_private(credentials, document)
        return document


def prepare_connection() -> None:
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            # A migration, and the wait for another process's, may take longer than a request may.
            cursor.execute("SET statement_timeout = 0; SET lock_timeout = 0")
    else:
        # SQLite gives its other files the mode of this one.
        Path(connection.settings_dict["NAME"]).touch(mode=0o600)
