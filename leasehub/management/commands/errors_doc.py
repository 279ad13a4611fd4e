from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand
from django.utils.module_loading import autodiscover_modules

from leasehub.api import failures
from leasehub.errors import DomainError

HEAD = """\
# Errors

Every refusal is `{"error": {"code": "…", "message": "…", …}}`: act on the status and the code, show the message to
people. The other members are those of the last column. Where `retry_after_ms` is given, the header `Retry-After` says
the same in whole seconds.

Written by `python manage.py errors_doc --file docs/errors.md`; a test fails when it is out of step.

| status | code | message | other members |
|---|---|---|---|
"""


class Command(BaseCommand):
    help = "Prints the catalogue of errors as Markdown."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--file", type=Path, help="write it there instead")

    def handle(self, *args: Any, file: Path | None, **options: Any) -> None:
        text = HEAD + "".join(f"{line}\n" for line in sorted(map(row, catalogue())))
        if file is None:
            self.stdout.write(text, ending="")
        else:
            file.write_text(text)


def catalogue() -> list[type[DomainError]]:
    """Every error that a caller can be told."""
    autodiscover_modules("errors")
    found: list[type[DomainError]] = []
    waiting: list[type[DomainError]] = [failures.InternalError, *DomainError.__subclasses__()]
    while waiting:
        error = waiting.pop()
        if error not in found:
            found.append(error)
            waiting += error.__subclasses__()
    return found


def row(error: type[DomainError]) -> str:
    members = ", ".join(f"`{name}`" for name in error.members)
    return f"| {error.status} | {error.code} | {error.default_message()} | {members} |"
