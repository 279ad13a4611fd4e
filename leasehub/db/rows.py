"""One row by a statement that is put together once: of a wide row Django's takes longer than the database."""

from functools import cache
from typing import Any, TypeVar

from django.db import connection
from django.db.models import Model

from leasehub.db import functions

Row = TypeVar("Row", bound=Model)


def insert(row: Model) -> None:
    """Inserts a new row and gives it its ``id``. Raises what ``save`` would, and sends no signal."""
    statement, fields = _inserting(type(row))
    values = [functions.typed(field.get_db_prep_save(getattr(row, field.attname), connection)) for field in fields]
    ((row.pk,),) = functions.read(statement, values)
    row._state.adding, row._state.db = False, connection.alias


@cache
def _inserting(model: type[Model]) -> tuple[str, list[Any]]:
    quote, fields = connection.ops.quote_name, [f for f in model._meta.local_concrete_fields if not f.primary_key]
    columns, marks = ", ".join(quote(str(field.column)) for field in fields), ", ".join("%s" for _ in fields)
    return f"INSERT INTO {quote(model._meta.db_table)} ({columns}) VALUES ({marks}) RETURNING id", fields


def known_row(model: type[Row], *, locked: bool = False, **named: Any) -> Row | None:
    """The one row whose columns have these values; ``locked``: until the transaction ends (leasehub.db.locks)."""
    if connection.vendor != "postgresql":
        # Django's own knows how SQLite keeps times and JSON, and costs no round trip there.
        return model._default_manager.filter(**named).first()
    statement, names = _selecting(model, tuple(named), locked)
    rows = functions.read(statement, [functions.typed(value) for value in named.values()])
    return model.from_db(connection.alias, names, rows[0]) if rows else None


@cache
def _selecting(model: type[Model], named: tuple[str, ...], locked: bool) -> tuple[str, list[str]]:
    quote, fields = connection.ops.quote_name, model._meta.local_concrete_fields
    columns = ", ".join(quote(str(field.column)) for field in fields)
    conditions = " AND ".join(f"{quote(name)} = %s" for name in named)
    statement = f"SELECT {columns} FROM {quote(model._meta.db_table)} WHERE {conditions}"
    return statement + (" FOR UPDATE" if locked else ""), [field.attname for field in fields]
