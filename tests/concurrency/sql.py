"""Other texts of the database functions, for a test: CREATE OR REPLACE, and back again."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from django.db import connection

import leases

#: Function, old text, new text.
Change = tuple[str, str, str]
FUNCTIONS = (Path(leases.__file__).parent / "sql" / "lease_functions.sql").read_text()


@contextmanager
def replaced(*changes: Change) -> Iterator[None]:
    """The functions with these changes; fails for an old text that is not there."""
    try:
        _create(changed(FUNCTIONS, changes))
        yield
    finally:
        _create(FUNCTIONS)


def changed(text: str, changes: Iterable[Change]) -> str:
    for function, old, new in changes:
        found = re.search(rf"CREATE FUNCTION {function}\b.*?\n\$\$;", text, re.DOTALL)
        assert found and old in found[0], f"there is no {old!r} in {function} to replace"
        text = text.replace(found[0], found[0].replace(old, new))
    return text


def _create(text: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(text.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"))
