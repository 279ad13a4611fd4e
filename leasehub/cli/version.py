"""leasehub version."""

import leasehub
from leasehub.cli import flags
from leasehub.cli.output import emit


def version(arguments: list[str]) -> int:
    given = flags.read("version", arguments, values=(), switches=("pretty",))
    return emit({"ok": True, "code": "version", "version": leasehub.__version__}, pretty="pretty" in given)
