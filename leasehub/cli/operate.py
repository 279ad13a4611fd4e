"""leasehub org create, which needs the server's own database, and leasehub version."""

import os
import sys

import leasehub
from leasehub.cli import flags
from leasehub.cli.failures import Usage
from leasehub.cli.output import emit


def create_organization(arguments: list[str]) -> int:
    _, names = flags.split("org create", arguments, values=())
    if len(names) != 1 or not names[0]:
        raise Usage("org create needs one NAME")
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "leasehub.settings"}
    # -P: a folder called django or leasehub where the command happens to be run must not be imported.
    command = [sys.executable, "-P", "-m", "django", "org_create", "--", names[0]]
    os.execve(sys.executable, command, environment)


def version(arguments: list[str]) -> int:
    given = flags.read("version", arguments, values=(), switches=("pretty",))
    return emit({"ok": True, "code": "version", "version": leasehub.__version__}, pretty="pretty" in given)
