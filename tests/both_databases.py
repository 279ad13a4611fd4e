"""Runs the tests on SQLite and, when one answers, on PostgreSQL; says which ran, and fails if either failed.

The runs go on at the same time, since much of a test of processes is waiting. What is the same whatever the database
is (the command line, whose servers are embedded ones, and what needs none) is a run of its own. PostgreSQL is
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
EITHER = "the command line and what needs no database"
ITS_TESTS = [
    "tests/api/test_errors.py",
    "tests/cli",
    "tests/client",
    "tests/histories/test_checker.py",
    "tests/pools/test_estimates.py",
    "tests/server/test_settings.py",
    "tests/test_bench.py",
    "tests/test_doors.py",
    "tests/test_readme.py",
    "tests/webhooks/test_addresses.py",
    "tests/webhooks/test_sending.py",
]


def main() -> int:
    # Started in the background of a script, or under nohup, they are ignored, which the tests of signals would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    reason = unreachable()
    if reason is not None and os.environ.get("LEASEHUB_REQUIRE_POSTGRESQL") == "on":
        print(f"PostgreSQL was NOT tested: {reason}", flush=True)
        return 1
    with tempfile.TemporaryDirectory(prefix="leasehub-tests-") as folder:
        ran = run(Path(folder), ["SQLite", *([] if reason else ["PostgreSQL"]), *([] if sys.argv[1:] else [EITHER])])
    for name, status in ran.items():
        print(f"{name}: {'passed' if status == 0 else f'FAILED (exit {status})'}", flush=True)
    if reason is not None:
        print(f"PostgreSQL: NOT TESTED, no server at {POSTGRESQL}: {reason}", flush=True)
    return max(ran.values())


def run(folder: Path, runs: list[str]) -> dict[str, int]:
    """The exit status of each run. The first one's output is shown as it comes, the others' afterwards."""
    outputs = {name: folder / f"{name}.output" for name in runs[1:]}
    started = {name: start(name, folder / name, outputs.get(name)) for name in runs}
    ran = {}
    for name, tests in started.items():
        ran[name] = tests.wait()
        if name in outputs:
            print(f"==> tests of {name}", outputs[name].read_text(errors="replace"), sep="\n", flush=True)
    return ran


def start(name: str, data: Path, output: Path | None) -> "subprocess.Popen[bytes]":
    data.mkdir()
    environment = {
        # Making and dropping the test database takes longer than a request may, on a busy machine.
        "LEASEHUB_STATEMENT_TIMEOUT_MS": "60000",
        **os.environ,
        "LEASEHUB_DATA": str(data),
        "LEASEHUB_SECRET_KEY": SECRET_KEY,
        "DATABASE_URL": POSTGRESQL if name == "PostgreSQL" else "",
    }
    command = [sys.executable, "-W", "error", "-m", "pytest", *sys.argv[1:]]
    if name == EITHER:
        command += ITS_TESTS
    elif not sys.argv[1:]:
        command += [f"--ignore={path}" for path in ITS_TESTS]
    if output is None:
        print(f"==> tests of {name}", flush=True)
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
