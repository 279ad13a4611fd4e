"""leasehub worker: what the server says to start where nobody runs a pool's commands."""

import json
import signal
import subprocess

import pytest

from tests.cli.conftest import ROOT, CommandLine, until

pytestmark = pytest.mark.processes


def test_the_worker_that_the_server_asks_for_runs_the_pools_commands(server, operator, tmp_path, kind):
    file = tmp_path / "pool.json"
    file.write_text(json.dumps({"name": kind, "slots": [{"id": 1}], "provision": "true", "worker": kind}))
    refused = operator("pool", "apply", file)
    remedy = f"leasehub worker --queues {kind}"
    assert remedy in refused.said["message"]
    here = CommandLine(server["folder"], {})
    with here.start(*remedy.split()[1:], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as worker:
        try:
            until(lambda: operator("pool", "apply", file).status == 0)
            assert operator("pool", "acquire", "--pool", kind).said["state"] == "ready"
        finally:
            worker.send_signal(signal.SIGTERM)
            text, errors = worker.communicate(timeout=30)
    assert (worker.returncode, text) == (0, b""), errors


def test_the_worker_takes_the_place_of_the_command_line(tmp_path):
    (tmp_path / "leasehub.sqlite3").touch()
    (tmp_path / "dies").touch()
    stand_ins = f"{ROOT / 'tests' / 'cli' / 'stand_ins'}:{ROOT}"
    command_line = CommandLine(tmp_path, {"PYTHONPATH": stand_ins, "LEASEHUB_DATA": str(tmp_path)})
    with command_line.start("worker", "--queues", "a, b", "--threads=2", "--no-beat") as worker:
        assert worker.wait(30) == 5
    own, _ = (tmp_path / "started").read_text().split()
    assert int(own) == worker.pid
    assert (tmp_path / "words").read_text() == "worker --queues=a,b --threads=2 --no-beat\n"


@pytest.mark.parametrize("wrong", [["--queues", "a,,b"], ["--threads", "0"], ["--frob"], ["x"], []])
def test_a_worker_without_a_server_or_of_wrong_words_is_a_usage_error(tmp_path, wrong):
    outcome = CommandLine(tmp_path, {})("worker", *wrong)
    assert (outcome.status, outcome.said["code"]) == (2, "usage")
    assert not list(tmp_path.iterdir())


def test_its_help_says_what_it_takes(tmp_path):
    outcome = CommandLine(tmp_path, {})("worker", "--help")
    assert outcome.status == 0
    assert "--queues A,B" in outcome.errors
    assert "--until-empty" not in outcome.errors
