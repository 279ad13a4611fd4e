"""Commands for real: a worker's thread, a supervisor process each, and what hostile commands do to them."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings

from leases.models import Resource
from pools import runs, worker
from pools.models import CommandRun, ServedQueue
from pools.supervisor import legible
from tests.conftest import Caster
from tests.pools.conftest import Declare, ask, look, slots

pytestmark = pytest.mark.django_db(transaction=True)

SECONDS = 20.0


@pytest.fixture
def commands() -> Iterator[worker.CommandWorker]:
    made = worker.CommandWorker(["default"], limit=2)
    yield made
    made.end()


def carry_out(commands: worker.CommandWorker, *, seconds: float = SECONDS) -> None:
    """Looks, as the worker's thread does, until nothing waits or runs."""
    until = time.monotonic() + seconds
    while CommandRun.objects.exclude(state=CommandRun.State.ENDED).exists():
        assert time.monotonic() < until, "commands went on and on"
        commands.look()
        time.sleep(0.05)


def left_behind() -> list[str]:
    """Processes that were started for a command of this database: another run of the tests has its own."""
    ours = {f"{worker.MARKER}={run_id.hex}".encode() for run_id in CommandRun.objects.values_list("run_id", flat=True)}
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        if ours & worker.marks(name):
            found.append(Path(f"/proc/{name}/cmdline").read_bytes().decode(errors="replace"))
    return found


def memory_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def test_commands_get_the_slot_and_nothing_of_the_server(
    agent: Caster, declare: Declare, commands: worker.CommandWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", os.environ.get("DATABASE_URL", ""))
    monkeypatch.setenv("POOL_SLOT_STRAY", "from the worker")
    seen = tmp_path / "seen"
    slot = {"id": "web-1", "cache-db": 7, "ports": {"api": 3000}, "tags": ["a", "b"], "note": None}
    declare(
        slots=[slot], provision=f'f() {{ env > {seen}; echo "$@" >> {seen}; pwd >> {seen}; }}; f', cwd=str(tmp_path)
    )
    asked = ask(agent)
    carry_out(commands)
    (grant,) = look(agent, asked)["grants"]
    *lines, argument, cwd = seen.read_text().splitlines()
    environment = dict(line.partition("=")[::2] for line in lines)
    assert (argument, cwd) == ("web-1", str(tmp_path))
    expected = {
        "POOL_SLOT_ID": "web-1",
        "POOL_SLOT_KIND": "slot-web-1",
        "POOL_SLOT_CACHE_DB": "7",
        "POOL_SLOT_PORTS_API": "3000",
        "POOL_SLOT_TAGS": '["a","b"]',
        "POOL_SLOT_NOTE": "",
        "POOL_ACTION": "provision",
    }
    assert environment == environment | expected
    # The shell adds the last three by itself.
    allowed = {*expected, worker.MARKER, "PATH", "HOME", "LANG", "PWD", "OLDPWD", "SHLVL", "_"}
    assert set(environment) <= allowed
    assert grant["env"] == {name: value for name, value in expected.items() if name != "POOL_ACTION"}


HOSTILE: list[tuple[str, str, str]] = [
    ("hangs", "sleep 1000 #", "took longer than its limit"),
    ("ignores SIGTERM", "trap '' TERM; while :; do sleep 0.1; done #", "took longer than its limit"),
    ("leaves a setsid child holding the pipe", "setsid sleep 1000 & #", ""),
    ("prints a gigabyte", "head -c 1000000000 /dev/zero #", ""),
    ("prints NUL and escape codes", r"printf 'a\000b\033[31mred\033[0m\033]0;title\007\r\nend\377' #", ""),
    ("dies by SIGKILL", "kill -9 $$ #", "killed by signal 9"),
    ("dies by SIGSEGV", "kill -SEGV $$ #", "killed by signal 11"),
    ("deletes its own folder", "d=$(mktemp -d); cd $d; rmdir $d #", ""),
    ("reads stdin", "cat; read line; echo at the end #", ""),
    ("detaches twice", "(setsid sh -c 'trap \"\" TERM HUP; sleep 1000' >/dev/null 2>&1 &) #", ""),
    (
        "kills its supervisor",
        "(setsid sleep 1000 >/dev/null 2>&1 &); sleep 0.3; kill -9 $PPID; sleep 1000 #",
        "its supervisor ended first",
    ),
    (
        "starts hundreds that ignore everything",
        'i=0; while [ $i -lt 200 ]; do setsid sh -c "trap \\"\\" TERM; sleep 1000" & i=$((i+1)); done; wait #',
        "took longer than its limit",
    ),
    ("starts another when it is told to end", "trap 'setsid sleep 1000 &' TERM; sleep 1000 & wait; wait #", "limit"),
]


@pytest.mark.parametrize(("command", "error"), [case[1:] for case in HOSTILE], ids=[case[0] for case in HOSTILE])
def test_a_hostile_command_leaves_nothing_behind(
    command: str, error: str, agent: Caster, declare: Declare, commands: worker.CommandWorker
) -> None:
    # A large limit for those that are to end by themselves: this machine may be busy.
    limit = 1000 if "limit" in error else 60_000
    declare(slots=slots(2), provision=command, commandTimeoutMs=limit)
    before = memory_mib()
    asked = ask(agent, no_wait=True)
    until = time.monotonic() + SECONDS
    run = CommandRun.objects.order_by("pk").first()
    assert run is not None
    while run.state != CommandRun.State.ENDED:
        assert time.monotonic() < until
        commands.look()
        time.sleep(0.05)
        run.refresh_from_db()
    commands.end()
    assert left_behind() == []
    assert memory_mib() - before < 20
    if error:
        assert error in run.error
        return
    assert (run.outcome, look(agent, asked)["state"]) == ("passed", "ready")
    (result,) = run.results
    assert len(result["output"].encode()) < 66_000
    assert not any(character in result["output"] for character in "\0\x1b\r\x07")


def test_the_head_and_the_tail_of_an_endless_output_are_kept(
    agent: Caster, declare: Declare, commands: worker.CommandWorker
) -> None:
    declare(slots=slots(1), provision="echo first; seq 1 200000; echo last #")
    ask(agent)
    carry_out(commands)
    (result,) = CommandRun.objects.get().results
    assert result["output"].startswith("first\n1\n2\n")
    assert result["output"].endswith("200000\nlast\n")
    assert result["omitted_bytes"] > 1_000_000


def test_output_is_shown_without_what_could_harm_a_terminal() -> None:
    assert legible(b"\x1b[1mbold\x1b[0m \x1b]8;;http://x\x1b\\link\x07 \xff\x00 \xe2\x80\xae") == "bold link � "


@pytest.mark.parametrize(
    ("command", "expected"),
    [("prepare", 'prepare "$1"'), ("prepare;", "prepare;"), ("prepare &\n", "prepare &"), ("a && b", 'a && b "$1"')],
)
def test_the_id_is_the_last_argument_unless_it_would_be_a_command(command: str, expected: str) -> None:
    run = CommandRun(environment={"POOL_SLOT_ID": "7"})
    arguments = worker.arguments({"action": "reset", "command": command}, run)
    assert arguments == ["sh", "-c", expected, "pool-reset", "7"]


def test_a_command_that_cannot_start_says_why(agent: Caster, declare: Declare, commands: worker.CommandWorker) -> None:
    declare(slots=slots(1), provision="true", cwd="/nowhere/at/all")
    asked = ask(agent, no_wait=True)
    carry_out(commands)
    assert "cannot start" in look(agent, asked)["error"]


def test_an_exit_status_is_named(agent: Caster, declare: Declare, commands: worker.CommandWorker) -> None:
    declare(slots=slots(1), provision="exit 7 #", health="true")
    asked = ask(agent)
    carry_out(commands)
    ended = look(agent, asked)
    assert (ended["state"], ended["error"]) == ("reset_failed", "reset failed (provision command exit 7)")


def test_a_nudge_reads_one_line_of_json(
    agent: Caster, declare: Declare, commands: worker.CommandWorker, tmp_path: Path
) -> None:
    import json

    told = tmp_path / "told"
    declare(slots=slots(1), nudgeCommand=f"cat >> {told}")
    asked = ask(agent, mode="async", session="muse-04")
    carry_out(commands)
    (line,) = told.read_text().splitlines()
    nudge = json.loads(line)
    assert told.read_text().endswith("\n")
    assert (nudge["session"], nudge["request_id"]) == ("muse-04", asked["request_id"])
    assert nudge["grant"]["fencing_token"] == asked["grants"][0]["fencing_token"]


def test_a_command_ends_when_its_lease_does(
    agent: Caster, operator: Caster, declare: Declare, commands: worker.CommandWorker
) -> None:
    declare(slots=slots(1), provision="sleep 1000 #")
    asked = ask(agent)
    commands.look()
    row = Resource.objects.get(lease_id__isnull=False)
    assert row.lease_id is not None
    operator.post(f"leases/lease_{row.lease_id.hex}/force-release", {"reason": "test", "fencing_token": row.last_token})
    carry_out(commands)
    assert look(agent, asked)["state"] == "lease_lost_during_reset"
    assert CommandRun.objects.get().outcome == "interrupted"
    assert left_behind() == []


def test_a_worker_that_stops_puts_the_request_back(
    agent: Caster, declare: Declare, commands: worker.CommandWorker
) -> None:
    declare(slots=slots(1), provision="sleep 1000 #")
    ask(agent)
    commands.look()
    time.sleep(0.3)
    commands.end()
    assert left_behind() == []
    assert list(CommandRun.objects.order_by("pk").values_list("outcome", "state")) == [
        ("interrupted", "ended"),
        ("", "waiting"),
    ]
    assert not ServedQueue.objects.exists()


def test_no_more_commands_at_once_than_allowed(agent: Caster, declare: Declare, commands: worker.CommandWorker) -> None:
    declare(slots=slots(5), provision="sleep 1000 #")
    for _ in range(5):
        ask(agent)
    for _ in range(3):
        commands.look()
    assert CommandRun.objects.filter(state=CommandRun.State.RUNNING).count() == 2


STRAY = """
import os, sys, time, django
django.setup()
from django.conf import settings
settings.DATABASES["default"]["NAME"] = sys.argv[1]
from pools.worker import CommandWorker
commands = CommandWorker(["default"], limit=2)
while True:
    commands.look()
    time.sleep(0.1)
"""


def test_a_killed_workers_commands_die_and_their_slot_is_given_to_the_next(
    agent: Caster, declare: Declare, commands: worker.CommandWorker, tmp_path: Path
) -> None:
    began, again = tmp_path / "began", tmp_path / "again"
    declare(slots=slots(1), provision=f"if [ -e {began} ]; then touch {again}; else touch {began}; sleep 1000; fi #")
    asked = ask(agent)
    database = str(django_settings.DATABASES["default"]["NAME"])
    stray = subprocess.Popen([sys.executable, "-c", STRAY, database])
    try:
        wait_for(began.exists)
    finally:
        stray.kill()
        stray.wait()
    wait_for(lambda: left_behind() == [])
    carry_out(commands)
    assert again.exists()
    assert look(agent, asked)["state"] == "ready"
    assert list(CommandRun.objects.order_by("pk").values_list("outcome", flat=True)) == ["lost", "passed"]


def test_workers_that_are_alive_are_told_from_those_that_are_not() -> None:
    own = worker.own_name()
    assert worker.is_alive(own)
    host, pid, start = own.rsplit(":", 2)
    assert not worker.is_alive(f"{host}:{pid}:{int(start) + 1}")
    assert runs.running_by(f"{host}:") == []


def wait_for(condition: Any, seconds: float = SECONDS) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)
