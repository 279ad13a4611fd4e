"""PostgreSQL's own load generator, calling the functions of the hot path: the floor under every HTTP figure."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from bench.load import Load

# The Debian package keeps it out of PATH.
ELSEWHERE = "/usr/lib/postgresql"


class NotInstalled(Exception):
    """pgbench cannot be found: it comes with PostgreSQL's server (Debian: postgresql-contrib or postgresql)."""


def program() -> str:
    """Raises NotInstalled."""
    found = shutil.which("pgbench")
    if found is None:
        found = next((str(file) for file in sorted(Path(ELSEWHERE).glob("*/bin/pgbench"), reverse=True)), None)
    if found is None:
        raise NotInstalled(NotInstalled.__doc__)
    return found


def run(url: str, script: str, *, clients: int = 8, seconds: int = 1) -> Load:
    """``script`` by ``clients`` connections for ``seconds``, with the latency of every call."""
    with tempfile.TemporaryDirectory(prefix="leasehub-pgbench-") as folder:
        rate = _rate(url, script, clients, ["-T", str(seconds), "--log", f"--log-prefix={folder}/log"])
        lines = [line for log in Path(folder).glob("log.*") for line in log.read_text().splitlines()]
    latencies = sorted(int(line.split(maxsplit=3)[2]) / 1_000_000 for line in lines)
    return Load(len(latencies) / rate, latencies)


def rate(url: str, script: str, *, clients: int = 8, seconds: int = 1) -> float:
    """Calls a second, without the cost of writing a log."""
    return _rate(url, script, clients, ["-T", str(seconds)])


def times(url: str, script: str, each: int, *, clients: int = 8) -> None:
    """``script`` so many times by each client."""
    _rate(url, script, clients, ["-t", str(each)])


def _rate(url: str, script: str, clients: int, options: list[str]) -> float:
    with tempfile.NamedTemporaryFile("w", prefix="leasehub-pgbench-", suffix=".sql") as file:
        file.write(script)
        file.flush()
        command = [
            program(), "--no-vacuum", "--protocol=prepared", f"--client={clients}", "--jobs=2",
            f"--file={file.name}", *options, url,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return next(float(line.split()[2]) for line in done.stdout.splitlines() if line.startswith("tps"))


def acquire(key: int, run_name: str) -> str:
    """Takes a resource that nobody has used."""
    return (
        "\\set n random(1, 1000000000000)\n"
        f"SELECT * FROM lease_acquire({key}::bigint, 'bench', '{run_name}' || :n::text, 'bench', 600000::bigint, true,"
        " NULL, NULL, NULL);\n"
    )


def heartbeat(key: int, leases: int) -> str:
    return (
        f"\\set n random(1, {leases})\n"
        f"SELECT * FROM lease_heartbeat({key}::bigint, lpad(to_hex(:n::bigint), 32, '0')::uuid, :n::bigint, NULL);\n"
    )


def refused(key: int, resource_id: str) -> str:
    return (
        f"SELECT * FROM lease_acquire({key}::bigint, 'bench', '{resource_id}', 'another', 600000::bigint, true,"
        " NULL, NULL, NULL);\n"
    )


#: What one writes first: it locks, and logs, the row that it does not take.
PLAIN_UPSERT = """
INSERT INTO bench_upsert (name, holder, expires_at) VALUES ('contended', 'another', now() + interval '10 minutes')
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at
WHERE bench_upsert.expires_at <= now() RETURNING expires_at;
"""
PLAIN_UPSERT_TABLE = """
CREATE TABLE bench_upsert (name text PRIMARY KEY, holder text NOT NULL, expires_at timestamptz NOT NULL);
INSERT INTO bench_upsert VALUES ('contended', 'holder', now() + interval '1 day');
"""
