"""A whole ``leasehub lease heartbeat``, from process start to exit, beside a Python that does nothing."""

import importlib.util
import os
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench import ground, load, processes
from bench.figure import Goal, LeftOut, Plan, Row, in_turns, milliseconds, ratio
from bench.ground import Ground
from bench.hot_path import HEALTH, LEASEHUB

WHAT = "leasehub lease heartbeat, the whole process, against a Python that does nothing"
NOTHING = [sys.executable, "-I", "-c", "pass"]


class Failed(Exception):
    pass


def figures(plan: Plan, base: Ground) -> Iterator[Row]:
    if importlib.util.find_spec("leasehub.cli") is None:
        yield LeftOut(WHAT, "there is no leasehub.cli")
        return
    ground.forget_all(base)
    with processes.granian(LEASEHUB, base.environment, HEALTH) as port:
        command = [*entry(), "lease", "heartbeat", "--kind", "bench", "--token", str(_token(base, port))]
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(Path(__file__).resolve().parent.parent),
            "LEASEHUB_URL": f"http://127.0.0.1:{port}",
            "LEASEHUB_TOKEN": base.secret,
            "LEASE_OWNER": "bench",
        }
        beat, nothing = "heartbeat", "nothing"
        # In turns within a round too: a process is short, and the machine's speed is not.
        seen: dict[str, list[float]] = {beat: [], nothing: []}
        for _ in range(plan.rounds):
            turns = in_turns(
                plan.processes,
                {beat: lambda: _lifetime(command, environment), nothing: lambda: _lifetime(NOTHING, environment)},
            )
            for name, lifetimes in turns.items():
                seen[name].append(statistics.median(lifetimes))
        yield ratio(WHAT, seen, beat, nothing, Goal(2.5, at_least=False), shown=milliseconds)


def entry() -> list[str]:
    """The installed script where there is one, else what it does."""
    script = shutil.which("leasehub", path=str(Path(sys.executable).parent))
    if script is not None:
        return [script]
    return [sys.executable, "-c", "import sys; from leasehub.cli import main; sys.exit(main())"]


def _token(base: Ground, port: int) -> int:
    import http.client
    import json

    connection = http.client.HTTPConnection("127.0.0.1", port)
    body = {"resource_type": "kind", "resource_id": "bench", "ttl_seconds": 600, "holder": "bench"}
    connection.request("POST", "/v1/leases", json.dumps(body), {"Authorization": f"Bearer {base.secret}"})
    answer = connection.getresponse()
    if answer.status != 201:
        raise load.WrongAnswer(answer.read().decode())
    token: int = json.loads(answer.read())["data"]["fencing_token"]
    connection.close()
    return token


def _lifetime(command: list[str], environment: dict[str, str]) -> float:
    """Raises Failed."""
    silent = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    begun = time.perf_counter()
    process = os.posix_spawn(command[0], command, environment, file_actions=silent)
    _, status = os.waitpid(process, 0)
    seconds = time.perf_counter() - begun
    if os.waitstatus_to_exitcode(status):
        raise Failed(" ".join(command))
    return seconds
