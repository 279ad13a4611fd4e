"""Runs the tests on SQLite and, when one answers, on PostgreSQL; says which ran, and fails if either failed.

PostgreSQL is LEASEHUB_TEST_POSTGRESQL, by default the server on this machine as user postgres. With
LEASEHUB_REQUIRE_POSTGRESQL=on its absence is a failure.
"""

import os
import subprocess
import sys
import tempfile

import psycopg

POSTGRESQL = os.environ.get("LEASEHUB_TEST_POSTGRESQL", "postgres://postgres@127.0.0.1:5432/postgres")
SECRET_KEY = "a-key-for-tests-that-signs-nothing-of-value"


def main() -> int:
    ran = {"SQLite": run("sqlite")}
    if (reason := unreachable()) is None:
        ran["PostgreSQL"] = run("postgresql")
    elif os.environ.get("LEASEHUB_REQUIRE_POSTGRESQL") == "on":
        print(f"PostgreSQL was NOT tested: {reason}", flush=True)
        return 1
    for database, status in ran.items():
        print(f"{database}: {'passed' if status == 0 else f'FAILED (exit {status})'}", flush=True)
    if "PostgreSQL" not in ran:
        print(f"PostgreSQL: NOT TESTED, no server at {POSTGRESQL}: {reason}", flush=True)
    return max(ran.values())


def run(database: str) -> int:
    print(f"==> tests on {database}", flush=True)
    with tempfile.TemporaryDirectory(prefix="leasehub-tests-") as data:
        environment = {
            **os.environ,
            "LEASEHUB_DATA": data,
            "LEASEHUB_SECRET_KEY": SECRET_KEY,
            "DATABASE_URL": POSTGRESQL if database == "postgresql" else "",
        }
        command = [sys.executable, "-W", "error", "-m", "pytest", *sys.argv[1:]]
        return subprocess.run(command, env=environment, check=False).returncode


def unreachable() -> str | None:
    """Why PostgreSQL cannot be tested; None when it can."""
    try:
        psycopg.connect(POSTGRESQL, connect_timeout=3).close()
    except psycopg.Error as error:
        return " ".join(str(error).split())
    return None


if __name__ == "__main__":
    sys.exit(main())
