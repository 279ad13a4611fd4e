"""Where and when the figures were measured, and on what versions."""

import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from bench.ground import Ground

PACKAGES = ("django", "djangorestframework", "psycopg", "granian", "pydantic", "orjson")


def description(base: Ground, *, load_before: float) -> list[str]:
    with base.connect() as connection:
        names = ("server_version", "synchronous_commit", "fsync", "autovacuum")
        (settings,) = connection.execute(
            "SELECT " + ", ".join(f"current_setting('{name}')" for name in names)
        ).fetchall()
        postgresql, commit, fsync, autovacuum = settings
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return [
        f"Date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        f"Machine: {os.cpu_count()} x {_processor()}, {_memory_gib():.0f} GiB, {platform.system()}"
        f" {platform.release()}; server, database and clients on the same processors",
        f"Load average: {load_before:.1f} before, {os.getloadavg()[1]:.1f} over the last five minutes of the run",
        f"PostgreSQL {postgresql} (fsync {fsync}, synchronous_commit {commit}, autovacuum {autovacuum}), {_etcd()}",
        f"Python {platform.python_version()}, {packages}",
        "LeaseHub: granian, 2 processes with 4 threads each, on PostgreSQL",
    ]


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _etcd() -> str:
    program = shutil.which("etcd")
    if program is None:
        return "no etcd"
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    return "etcd " + (said.splitlines() or ["? unknown"])[0].split()[-1]
