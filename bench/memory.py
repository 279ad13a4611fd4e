"""What ``leasehub up`` takes when nobody calls: the web process, the worker with beat, and their supervisor."""

import importlib.util
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench import processes
from bench.figure import Figure, Goal, LeftOut, Plan, Row
from bench.ground import Ground

WHAT = "memory of leasehub up at rest, all its processes together"
SETTLE_SECONDS = 8


def figures(plan: Plan, base: Ground) -> Iterator[Row]:
    if importlib.util.find_spec("leasehub.cli") is None or importlib.util.find_spec("leasehub.cli.up") is None:
        yield LeftOut(WHAT, "there is no leasehub up")
        return
    port = processes.free_port()
    start = "import sys; from leasehub.cli import main; sys.exit(main())"
    with tempfile.TemporaryDirectory(prefix="leasehub-up-") as data:
        command = [sys.executable, "-c", start, "up", "--data", data, "--port", str(port)]
        root = str(Path(__file__).resolve().parent.parent)
        environment = {
            "DATABASE_URL": "", "CELERY_BROKER_URL": "", "LEASEHUB_SECRET_KEY": "",
            "DJANGO_SETTINGS_MODULE": "leasehub.settings", "PYTHONPATH": root,
        }  # fmt: skip
        with processes.running(command, environment, silent=True) as server:
            processes.await_http(port, "/readyz")
            time.sleep(SETTLE_SECONDS)
            family = _family(server.pid)
            mebibytes = sum(_proportional_kib(process) for process in family) / 1024
    yield Figure(
        f"{WHAT} ({len(family)})", [mebibytes], Goal(250, at_least=False, unit=" MiB"), ours="proportional set size"
    )


def _family(process: int) -> list[int]:
    """The process and all its descendants."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name in parentheses may hold anything, spaces too.
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [process]
    for member in found:
        found.extend(child for child, parent in parents.items() if parent == member)
    return found


def _proportional_kib(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
