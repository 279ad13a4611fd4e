"""The server's own commands, which need its settings and its database."""

import os
import sys

from leasehub.client import credentials
from leasehub.client.failures import Usage


def command(*words: str) -> list[str]:
    # -P: a folder called django or leasehub where the command happens to be run must not be imported.
    return [sys.executable, "-P", "-m", "django", *words]


def environment() -> dict[str, str]:
    return {**os.environ, **_data(), "DJANGO_SETTINGS_MODULE": "leasehub.settings"}


def _data() -> dict[str, str]:
    """Where the server's database is: never a new, empty one made by being in the wrong folder."""
    given = os.environ.get("LEASEHUB_DATA")
    if given:
        if not os.environ.get("DATABASE_URL") and not os.path.exists(os.path.join(given, "leasehub.sqlite3")):
            raise Usage(f"LEASEHUB_DATA: there is no database in {given}")
        return {}
    file = credentials.find_file()
    folder = os.path.dirname(os.path.abspath(file)) if file else ""
    if os.environ.get("DATABASE_URL"):
        # `leasehub up` keeps the secret key beside the credentials, wherever its database is.
        return {"LEASEHUB_DATA": folder} if os.path.exists(os.path.join(folder, "secret_key")) else {}
    if not folder or not os.path.exists(os.path.join(folder, "leasehub.sqlite3")):
        raise Usage("no server's data found: set LEASEHUB_DATA or DATABASE_URL, or run where .leasehub is, or below")
    return {"LEASEHUB_DATA": folder}
