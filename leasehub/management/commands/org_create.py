import json
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from leasehub.errors import DomainError, ValidationError
from leasehub.management.bootstrap import organization_with_key


class Command(BaseCommand):
    help = "Makes another organization with a key of its own and prints it as JSON; the secret is shown this once."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--handle", default="admin", help="the principal of the first key")

    def handle(self, *args: Any, name: str, handle: str, **options: Any) -> None:
        try:
            made = organization_with_key(name=name, handle=handle, url=self._url())
        except ValidationError as error:
            raise CommandError(error.message, returncode=2) from error
        except DomainError as error:
            raise CommandError(error.message) from error
        self.stdout.write(json.dumps({"ok": True, **made}))

    def _url(self) -> str:
        credentials = settings.LEASEHUB_DATA / "credentials.json"
        return json.loads(credentials.read_text())["url"] if credentials.exists() else "http://127.0.0.1:8787"
