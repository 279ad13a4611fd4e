"""leasehub org create, which needs the server's own database."""

import json
import os
import subprocess
import sys

from leasehub.cli import flags
from leasehub.cli.output import emit
from leasehub.cli.up import setup_failure
from leasehub.client import credentials
from leasehub.client.failures import Refused, Usage

USAGE_STATUS = 2


def create(arguments: list[str]) -> int:
    given, names = flags.split("org create", arguments, values=(), switches=("pretty",))
    if len(names) != 1 or not names[0]:
        raise Usage("org create needs one NAME")
    # -P: a folder called django or leasehub where the command happens to be run must not be imported.
    made = subprocess.run(
        [sys.executable, "-P", "-m", "django", "org_create", "--", names[0]],
        env={**os.environ, **_data(), "DJANGO_SETTINGS_MODULE": "leasehub.settings"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
    )
    told = made.stderr.strip()
    if made.returncode == USAGE_STATUS and told.startswith("CommandError: "):
        raise Usage(told.removeprefix("CommandError: "))
    if made.returncode and told.startswith("CommandError: "):
        raise Refused("CONFLICT", told.removeprefix("CommandError: "), {})
    if made.returncode:
        raise setup_failure(made.returncode, told)
    answer = {name: value for name, value in json.loads(made.stdout).items() if name != "ok"}
    return emit({"ok": True, "code": "created", **answer}, pretty="pretty" in given)


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
