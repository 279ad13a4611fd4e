import json
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand
from django.db import connection

from leasehub.management import bootstrap


class Command(BaseCommand):
    help = "Migrates (which installs the schedule), and on the first start makes an organization, an admin and a key."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--url", required=True, help="where the server will answer")

    def handle(self, *args: Any, url: str, **options: Any) -> None:
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                # A migration may take longer than a request may.
                cursor.execute("SET statement_timeout = 0; SET lock_timeout = 0")
        call_command("migrate", verbosity=0)
        credentials = settings.LEASEHUB_DATA / "credentials.json"
        new = bootstrap.is_new()
        if new:
            bootstrap.first_run(url=url, credentials=credentials)
        elif credentials.exists():
            document = json.loads(credentials.read_text())
            if document.get("url") != url:
                bootstrap.write_private(credentials, {**document, "url": url})
        document = json.loads(credentials.read_text()) if credentials.exists() else {}
        shown = {name: document.get(name) for name in ("organization", "principal", "admin_user")}
        self.stdout.write(json.dumps({"url": url, **shown, "credentials": str(credentials), "first_run": new}))
