"""Lists in pages: ``limit`` and ``after`` in, the rows and ``next`` out."""

from typing import TypeVar

from django.db.models import Model, QuerySet

from leasehub.api.parsing import Page
from leasehub.errors import ValidationError

Row = TypeVar("Row", bound=Model)
MAX_ID = 2**63 - 1


def page(rows: QuerySet[Row], query: Page, *, newest_first: bool = False) -> tuple[list[Row], str | None]:
    """One page of rows in the order of their ids, and the cursor of the next one, None at the end.

    Raises ValidationError for a cursor that no page gave out.
    """
    if query.after is not None:
        last = cursor_number(query.after)
        rows = rows.filter(pk__lt=last) if newest_first else rows.filter(pk__gt=last)
    found = list(rows.order_by("-pk" if newest_first else "pk")[: query.limit + 1])
    more = len(found) > query.limit
    found = found[: query.limit]
    return found, str(found[-1].pk) if more else None


def cursor_number(after: str) -> int:
    """Raises ValidationError."""
    if not (after.isascii() and after.isdigit() and len(after) <= 19 and int(after) <= MAX_ID):
        raise ValidationError("The cursor is not one of this list.", after="is not a cursor of this list")
    return int(after)
