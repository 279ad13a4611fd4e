"""Other texts of the database functions, for a test: CREATE OR REPLACE, and back again."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from django.db import connection

import leases

FUNCTIONS = (Path(leases.__file__).parent / "sql" / "lease_functions.sql").read_text()


@contextmanager
def replaced(changes: Iterable[tuple[str, str]], *, regular: bool = False) -> Iterator[None]:
    """The functions with each (old, new) applied everywhere; fails for an old text that is not there."""
    try:
        _create(changed(FUNCTIONS, changes, regular=regular))
        yield
    finally:
        _create(FUNCTIONS)


def changed(text: str, changes: Iterable[tuple[str, str]], *, regular: bool = False) -> str:
    for old, new in changes:
        after, found = re.subn(old, new, text) if regular else (text.replace(old, new), text.count(old))
        assert found, f"there is no {old!r} to replace"
        text = after
    return text


def _create(text: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(text.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"))
