"""What a hot verb imports, and what every ending looks like."""

import json
import signal
import subprocess
import sys
import time

import pytest

from tests.cli.conftest import ROOT, until

HEAVY = {
    "argparse",
    "asyncio",
    "collections",
    "dataclasses",
    "datetime",
    "django",
    "enum",
    "http.client",
    "importlib.metadata",
    "json",
    "logging",
    "re",
    "socket",
    "ssl",
    "subprocess",
    "threading",
    "typing",
    "urllib",
    "urllib.parse",
    "uuid",
}
# -S -E: what the environment of the test brings along is not what is looked at.
SCRIPT = """
import sys
sys.path.insert(0, {root!r})
from leasehub.cli import main
status = main(sys.argv[1:])
sys.stderr.write("modules:" + " ".join(sys.modules))
sys.exit(status)
"""


def imported_by(who, *arguments):
    ran = subprocess.run(
        [sys.executable, "-E", "-S", "-c", SCRIPT.format(root=str(ROOT)), *map(str, arguments)],
        env=who.environment,
        cwd=who.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout), set(ran.stderr.rpartition("modules:")[2].split())


def test_the_hot_verbs_import_nothing_heavy(alice, kind):
    said, modules = imported_by(alice, "lease", "acquire", "--kind", kind, "--ttl", "5")
    assert modules & HEAVY == set()
    token = said["record"]["token"]
    for verb, flags in [("status", []), ("heartbeat", ["--token", token]), ("release", ["--token", token])]:
        _, modules = imported_by(alice, "lease", verb, "--kind", kind, *flags)
        assert modules & HEAVY == set(), verb


def test_credentials_in_a_file_cost_no_import_either(alice, kind, tmp_path):
    file = tmp_path / "credentials.json"
    token = alice.environment["LEASEHUB_TOKEN"]
    file.write_text(json.dumps({"url": alice.environment["LEASEHUB_URL"], "token": token}))
    alice_by_file = type(alice)(tmp_path, {"LEASEHUB_CREDENTIALS": str(file)})
    _, modules = imported_by(alice_by_file, "lease", "status", "--kind", kind)
    assert modules & HEAVY == set()


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["lease"],
        ["lease", "frob"],
        ["frob"],
        ["lease", "acquire"],
        ["lease", "acquire", "--kind"],
        ["lease", "acquire", "--kind", "k"],
        ["lease", "status", "--kind", "--pretty"],
        ["lease", "status", "--kind", "k", "--store", "x"],
        ["lease", "status", "--kind", "k", "--kind", "k"],
        ["lease", "status", "--kind", "k", "extra"],
        ["lease", "status", "--kind", "k", "--pretty=yes"],
        ["key", "revoke"],
        ["key", "create", "--principal", "x", "--rings", "1,4"],
        ["run", "--resource", "a/b"],
        ["run", "--resource", "a/b", "--"],
        ["run", "--resource", "a", "--", "true"],
        ["run", "--resource", "a/b", "--ttl-seconds", "1.5", "--", "true"],
        ["up", "--port", "0"],
        ["up", "--port", "x"],
        ["org", "create"],
        ["version", "--loud"],
    ],
)
def test_a_wrong_command_line_is_one_object_on_stdout_and_text_on_stderr(faulty, arguments):
    outcome = faulty(*arguments)
    assert outcome.status == 2
    assert outcome.said["ok"] is False
    assert outcome.said["code"] == "usage"
    assert outcome.said["message"] in outcome.errors
    assert "usage: leasehub" in outcome.errors
    assert "Traceback" not in outcome.errors


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--resource", "bad", "--", "x", "--shell", "--pretty"],
        ["work", "--queue", "q", "--ttl-seconds", "x", "--", "x", "--shell"],
        ["lease", "acquire", "--kind", "k", "--ttl", "5", "--shell"],
        ["whoami", "--shell"],
    ],
)
def test_only_what_can_print_for_a_shell_leaves_stdout_empty(faulty, arguments):
    outcome = faulty(*arguments)
    assert (outcome.status, outcome.said["code"]) == (2, "usage")
    assert outcome.text.count("\n") == 1


@pytest.mark.parametrize("flag", ["--shell", "--shell=yes"])
def test_a_failure_leaves_nothing_for_the_shell_to_run(faulty, flag):
    outcome = faulty("pool", "acquire", flag)
    assert (outcome.status, outcome.text) == (2, "")


def test_any_verb_that_is_interrupted_says_so(faulty, fake):
    fake.faults.append(lambda handler: time.sleep(5))
    process = faulty.start("lease", "status", "--kind", "k", stdout=-1, stderr=-1)
    until(lambda: fake.seen)
    process.send_signal(signal.SIGINT)
    text, errors = process.communicate(timeout=20)
    assert (process.returncode, json.loads(text)["code"]) == (130, "interrupted")
    assert b"Traceback" not in errors


def test_an_unknown_flag_is_named(faulty):
    outcome = faulty("lease", "acquire", "--kind", "k", "--ttl", "5", "--wait_ms", "5")
    assert "--wait_ms" in outcome.said["message"]


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["lease", "aquire", "--kind", "k"], "'lease acquire'"),
        (["laese", "acquire", "--kind", "k"], "'lease acquire'"),
        (["doctr"], "'doctor'"),
        (["workr", "--queues", "a"], "'worker'"),
        (["hook", "pre-tool-used"], "'hook pre-tool-use'"),
    ],
)
def test_a_verb_that_is_almost_one_is_told_which(faulty, arguments, meant):
    outcome = faulty(*arguments)
    assert outcome.status == 2
    assert f": did you mean {meant}" in outcome.said["message"]
    assert " only: " in outcome.said["message"]


@pytest.mark.parametrize("arguments", [["frob"], ["lease"], ["lease", "frob"], []])
def test_a_verb_that_is_like_none_is_guessed_at_by_nobody(faulty, arguments):
    assert "did you mean" not in faulty(*arguments).said["message"]


def test_a_flag_may_carry_its_value_behind_an_equals_sign(faulty):
    outcome = faulty("lease", "acquire", "--kind=eq", "--ttl=5", "--payload=--x")
    assert "--payload" in outcome.said["message"]
    assert faulty("lease", "acquire", "--kind=eq", "--ttl=5").status == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["help"],
        ["-h"],
        ["lease", "--help"],
        ["lease", "acquire", "--help"],
        ["run", "-h"],
        ["run", "--pool", "p", "--help"],
    ],
)
def test_help_is_no_failure(faulty, arguments):
    outcome = faulty(*arguments)
    assert outcome.status == 0
    assert outcome.said == {"ok": True, "code": "help"}
    assert "usage: leasehub" in outcome.errors


def test_help_knows_every_verb():
    from leasehub.cli import VERBS, usage

    assert list(usage.LINES) == list(VERBS)


def test_version(faulty):
    import leasehub

    assert faulty("version").said == {"ok": True, "code": "version", "version": leasehub.__version__}


def test_a_fault_of_its_own_is_still_one_object(faulty, tmp_path):
    # A current folder that is gone: os.getcwd() raises, which nothing foresees.
    gone = tmp_path / "gone"
    gone.mkdir()
    del faulty.environment["LEASEHUB_URL"], faulty.environment["LEASEHUB_TOKEN"]
    faulty.environment["HOME"] = "/nonexistent"
    script = "import os, sys; os.rmdir(os.getcwd()); from leasehub.cli import main; sys.exit(main(sys.argv[1:]))"
    ran = subprocess.run(
        [sys.executable, "-P", "-c", script, "lease", "status", "--kind", "k"],
        cwd=gone,
        env=faulty.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 3
    assert json.loads(ran.stdout)["code"] == "internal"
