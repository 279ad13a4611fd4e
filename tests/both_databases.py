"""Runs the tests on SQLite and, when one answers, on PostgreSQL; says which ran, and fails if either failed.

The two run at the same time, since much of a test of processes is waiting. PostgreSQL is
LEASEHUB_TEST_POSTGRESQL, by default the server on this machine as user postgres. With
LEASEHUB_REQUIRE_POSTGRESQL=on its absence is a failure. Arguments are pytest's.
"""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psycopg

POSTGRESQL = os.environ.get("LEASEHUB_TEST_POSTGRESQL", "postgres://postgres@127.0.0.1:5432/postgres")
SECRET_KEY = "a-key-for-tests-that-signs-nothing-of-value"
# The command line starts servers of its own, which are embedded ones: once is enough.
ONCE = ["tests/cli", "tests/test_readme.py"]


def main() -> int:
    # Started in the background of a script it is ignored, which the tests of Ctrl-C would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    reason = unreachable()
    if reason is not None and os.environ.get("LEASEHUB_REQUIRE_POSTGRESQL") == "on":
        print(f"PostgreSQL was NOT tested: {reason}", flush=True)
        return 1
    with tempfile.TemporaryDirectory(prefix="leasehub-tests-") as folder:
        ran = run(Path(folder), ["SQLite"] if reason is not None else ["SQLite", "PostgreSQL"])
    for database, status in ran.items():
        print(f"{database}: {'passed' if status == 0 else f'FAILED (exit {status})'}", flush=True)
    if reason is not None:
        print(f"PostgreSQL: NOT TESTED, no server at {POSTGRESQL}: {reason}", flush=True)
    return max(ran.values())


def run(folder: Path, databases: list[str]) -> dict[str, int]:
    """The exit status for each database. The first one's output is shown as it comes, the others' afterwards."""
    outputs = {database: folder / f"{database}.output" for database in databases[1:]}
    started = {database: start(database, folder / database, outputs.get(database)) for database in databases}
    ran = {}
    for database, tests in started.items():
        ran[database] = tests.wait()
        if database in outputs:
            print(f"==> tests on {database}", outputs[database].read_text(errors="replace"), sep="\n", flush=True)
    return ran


def start(database: str, data: Path, output: Path | None) -> "subprocess.Popen[bytes]":
    data.mkdir()
    environment = {
        # Making and dropping the test database takes longer than a request may, on a busy machine.
        "LEASEHUB_STATEMENT_TIMEOUT_MS": "60000",
        **os.environ,
        "LEASEHUB_DATA": str(data),
        "LEASEHUB_SECRET_KEY": SECRET_KEY,
        "DATABASE_URL": POSTGRESQL if database == "PostgreSQL" else "",
    }
    command = [sys.executable, "-W", "error", "-m", "pytest", *sys.argv[1:]]
    if database == "PostgreSQL":
        command += [f"--ignore={path}" for path in ONCE]
    if output is None:
        print(f"==> tests on {database}", flush=True)
        return subprocess.Popen(command, env=environment)
    with output.open("wb") as stream:
        return subprocess.Popen(command, env=environment, stdout=stream, stderr=subprocess.STDOUT)


def unreachable() -> str | None:
    """Why PostgreSQL cannot be tested; None when it can."""
    try:
        psycopg.connect(POSTGRESQL, connect_timeout=3).close()
    except psycopg.Error as error:
        return " ".join(str(error).split())
    return None


if __name__ == "__main__":
    sys.exit(main())
