"""docs/examples/gate.sh at work: two real databases, three gates, one of them killed; nobody sees a dirty one."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.conf import settings

from tests.installation import Installation, eventually
from tests.servers import free_port

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "docs" / "examples"
LEASEHUB = Path(sys.executable).parent / "leasehub"
# Says which database it is on and whether anybody was there before; leaves dirt, and stays until it may go.
CHECKS = """
found=$(psql --no-psqlrc --quiet --tuples-only --no-align --command "
    SELECT current_database(), count(*) FROM pg_tables WHERE tablename = 'dirt'" "$DATABASE_URL")
psql --no-psqlrc --quiet --command "CREATE TABLE dirt ()" "$DATABASE_URL"
echo "$1|$found" >> "$2/found"
until [ -e "$2/$1-may-go" ]; do sleep 0.05; done
"""

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(
        "postgresql" not in settings.DATABASES["default"]["ENGINE"], reason="the slots are PostgreSQL's"
    ),
]


@pytest.fixture
def served(bootstrapped: Installation) -> Iterator[Installation]:
    """``leasehub up`` on a database of its own, with leases as short as a second."""
    if shutil.which("psql") is None:
        pytest.fail("psql is missing: apt-get install postgresql-client")
    environment = {"LEASEHUB_MIN_TTL_SECONDS": "1", "LEASEHUB_REAPER_SECONDS": "1"}
    flags = ("--data", str(bootstrapped.data), "--port", str(free_port()))
    server = bootstrapped.start(str(LEASEHUB), "up", *flags, **environment)
    assert server.stdout is not None
    assert '"ready"' in server.stdout.readline()
    yield bootstrapped
    server.send_signal(signal.SIGTERM)
    server.wait(30)


@pytest.fixture
def urls(bootstrapped: Installation) -> Iterator[list[str]]:
    """Of two databases that do not exist yet."""
    server, _, name = bootstrapped.environment["DATABASE_URL"].rpartition("/")
    names = [f"{name}_gate_{number}" for number in (1, 2)]
    yield [f"{server}/{each}" for each in names]
    with psycopg.connect(f"{server}/postgres", autocommit=True) as administration:
        for each in names:
            administration.execute(f'DROP DATABASE IF EXISTS "{each}" WITH (FORCE)')


class Gates:
    def __init__(self, installation: Installation, folder: Path) -> None:
        self.folder = folder
        known = str(installation.data / "credentials.json")
        self.environment = {
            "PATH": f"{LEASEHUB.parent}:{os.environ['PATH']}",
            "LEASEHUB_CREDENTIALS": known,
            # Three seconds, and four beats a second.
            "GATE_TTL_MINUTES": "0.05",
            "GATE_BEAT_SECONDS": "0.25",
        }

    def leasehub(self, *arguments: str) -> dict[str, Any]:
        done = subprocess.run([LEASEHUB, *arguments], env=self.environment, capture_output=True, text=True, check=True)
        said: dict[str, Any] = json.loads(done.stdout)
        return said

    def start(self, name: str) -> "subprocess.Popen[bytes]":
        command = [str(EXAMPLES / "gate.sh"), "gate-databases", "sh", "-euc", CHECKS, "checks", name, str(self.folder)]
        with (self.folder / f"{name}.stderr").open("w") as stderr:
            return subprocess.Popen(command, env=self.environment, stderr=stderr)

    def let_go(self, name: str) -> None:
        (self.folder / f"{name}-may-go").touch()

    def found(self) -> dict[str, tuple[str, str]]:
        """What each gate found: the database, and how many tables of another gate."""
        file = self.folder / "found"
        lines = file.read_text().splitlines() if file.exists() else []
        return {name: (database, dirt) for name, database, dirt in (line.split("|") for line in lines)}


def test_three_gates_share_two_databases_and_a_killed_ones_is_made_anew(
    served: Installation, urls: list[str], tmp_path: Path
) -> None:
    declared = json.loads((EXAMPLES / "gate-databases.json").read_text())
    for slot, url in zip(declared["slots"], urls, strict=True):
        slot["url"] = url
    pool_file = tmp_path / "pool.json"
    pool_file.write_text(json.dumps({**declared, "cwd": str(EXAMPLES)}))
    gates = Gates(served, tmp_path)
    gates.leasehub("pool", "apply", str(pool_file))
    one, two, three = (gates.start(name) for name in ("one", "two", "three"))
    started = {"one": one, "two": two, "three": three}
    try:
        eventually(lambda: len(gates.found()) == 2)
        running = list(gates.found())
        (waiting,) = set(started) - set(running)
        status = gates.leasehub("pool", "status", "--pool", "gate-databases")
        assert [entry["position"] for entry in status["queue"]] == [1]

        killed, other = running
        started[killed].kill()
        started[killed].wait()
        eventually(lambda: waiting in gates.found())
        assert gates.found()[waiting][0] == gates.found()[killed][0], "on the killed one's database"
        gates.let_go(other)
        gates.let_go(waiting)
        assert started[other].wait(30) == started[waiting].wait(30) == 0
        assert "queue position 1, eta ~" in (tmp_path / f"{waiting}.stderr").read_text()
    finally:
        for gate in started.values():
            gate.send_signal(signal.SIGTERM)
            gate.wait(30)
    assert {dirt for _, dirt in gates.found().values()} == {"0"}, gates.found()
    slots = gates.leasehub("pool", "status", "--pool", "gate-databases")["slots"]
    assert [slot["state"] for slot in slots] == ["free", "free"]
