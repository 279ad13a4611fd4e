"""Constraint name -> domain error: the database refuses what must never be, and this names it."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.db import IntegrityError, connection, transaction
from django.db.models import BooleanField, Func

from leasehub.errors import DomainError

_SQLITE_CHECK = re.compile(r"CHECK constraint failed: (\w+)")
_SQLITE_UNIQUE = re.compile(r"UNIQUE constraint failed: (.+)")


class AllOrNone(Func):
    """Of these columns either every one is null or none. For constraints.

    PostgreSQL reads a constraint's text again for every statement that writes a row, so a short one is a fast one.
    """

    output_field = BooleanField()

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        columns = [compiler.compile(column) for column in self.source_expressions]
        nulls = " + ".join(f"({sql} IS NULL)" for sql, _ in columns)
        return f"({nulls}) IN (0, {len(columns)})", [parameter for _, given in columns for parameter in given]

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return super().as_sql(
            compiler,
            connection,
            template=f"num_nulls(%(expressions)s) IN (0, {len(self.source_expressions)})",
            **context,
        )


@contextmanager
def translated(errors: Mapping[str, DomainError], *, columns: Mapping[str, str] | None = None) -> Iterator[None]:
    """Raise the domain error of the constraint that a statement in the block violates.

    The block runs in a savepoint, so that the transaction around it stays usable. SQLite does not name unique
    constraints: ``columns`` maps its "table.column, table.column" to the constraint's name.
    """
    try:
        with transaction.atomic():
            yield
    except IntegrityError as error:
        found = errors.get(violated(error, columns or {}))
        if found is None:
            raise
        raise found from error


def violated(error: IntegrityError, columns: Mapping[str, str]) -> str:
    """The name of the violated constraint, or an empty string."""
    if connection.vendor == "postgresql":
        return getattr(getattr(error.__cause__, "diag", None), "constraint_name", None) or ""
    if match := _SQLITE_CHECK.search(str(error)):
        return match[1]
    if match := _SQLITE_UNIQUE.search(str(error)):
        return columns.get(match[1], "")
    return ""
