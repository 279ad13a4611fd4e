"""leasehub org create, which needs the server's own database."""

import json
import subprocess

from leasehub.cli import flags, management
from leasehub.cli.output import emit
from leasehub.cli.up import setup_failure
from leasehub.client.failures import Refused, Usage

USAGE_STATUS = 2


def create(arguments: list[str]) -> int:
    given, names = flags.split("org create", arguments, values=(), switches=("pretty",))
    if len(names) != 1 or not names[0]:
        raise Usage("org create needs one NAME")
    made = subprocess.run(
        management.command("org_create", "--", names[0]),
        env=management.environment(),
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
