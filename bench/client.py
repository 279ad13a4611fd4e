"""A whole ``leasehub hook pre-tool-use`` beside a Python that does nothing, and what importing the client costs."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench import ground, load, processes
from bench.command_line import NOTHING, Failed, entry
from bench.figure import Figure, Goal, Plan, Row, in_turns, milliseconds, ratio
from bench.ground import Ground
from bench.hot_path import HEALTH, LEASEHUB

ROOT = Path(__file__).resolve().parent.parent
HOOK = "leasehub hook pre-tool-use, the whole process less the server's answer, against a Python that does nothing"
IMPORT = "importing leasehub.client, with all that connecting needs"
IMPORTING = (
    "import time; begun = time.perf_counter(); from leasehub.client import connect; print(time.perf_counter() - begun)"
)


def figures(plan: Plan, base: Ground) -> Iterator[Row]:
    ground.forget_all(base)
    with processes.granian(LEASEHUB, base.environment, HEALTH) as port, tempfile.TemporaryDirectory() as folder:
        guards = {"guards": [{"paths": ["guarded"], "resource": "bench/guarded", "acquire": True}]}
        Path(folder, ".leasehub.json").write_text(json.dumps(guards))
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "LEASEHUB_URL": f"http://127.0.0.1:{port}",
            "LEASEHUB_TOKEN": base.secret,
        }
        asked = {"session_id": "bench", "cwd": folder, "hook_event_name": "PreToolUse", "tool_name": "Edit"}
        edit = json.dumps({**asked, "tool_input": {"file_path": f"{folder}/guarded"}}).encode()
        command = [*entry(), "hook", "pre-tool-use", "--fail", "closed"]
        _lifetime(command, environment, edit)
        hook, nothing, answer = "hook", "nothing", "answer"
        seen: dict[str, list[float]] = {hook: [], nothing: []}
        for _ in range(plan.rounds):
            turns = in_turns(
                plan.processes,
                {
                    hook: lambda: _lifetime(command, environment, edit),
                    nothing: lambda: _lifetime(NOTHING, environment, b""),
                    answer: lambda: _answer(port, base.secret),
                },
            )
            seen[hook].append(statistics.median(turns[hook]) - statistics.median(turns[answer]))
            seen[nothing].append(statistics.median(turns[nothing]))
        yield ratio(HOOK, seen, hook, nothing, Goal(3.0, at_least=False), shown=milliseconds)
    imports = in_turns(plan.rounds * plan.processes, {IMPORT: lambda: _importing(environment)})[IMPORT]
    rounds = [statistics.median(imports[at :: plan.rounds]) * 1000 for at in range(plan.rounds)]
    yield Figure(IMPORT, rounds, Goal(60, at_least=False, unit=" ms"))


def _lifetime(command: list[str], environment: dict[str, str], stdin: bytes) -> float:
    """Raises Failed."""
    begun = time.perf_counter()
    ran = subprocess.run(command, input=stdin, env=environment, stdout=subprocess.PIPE, check=False)
    seconds = time.perf_counter() - begun
    if ran.returncode or (stdin and ran.stdout != b"{}\n"):
        raise Failed(f"{' '.join(command)}: {ran.stdout.decode()}")
    return seconds


def _answer(port: int, secret: str) -> float:
    """The one question that the hook asks, on a connection of its own as there."""
    import http.client

    begun = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port)
    path = "/v1/leases/status?resource_type=bench&resource_id=guarded"
    connection.request("GET", path, headers={"Authorization": f"Bearer {secret}"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise load.WrongAnswer(answer.read().decode())
    answer.read()
    connection.close()
    return time.perf_counter() - begun


def _importing(environment: dict[str, str]) -> float:
    ran = subprocess.run([sys.executable, "-c", IMPORTING], env=environment, capture_output=True, check=True)
    return float(ran.stdout)
