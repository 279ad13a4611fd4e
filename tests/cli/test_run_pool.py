"""leasehub run --pool: a command has a slot for exactly as long as it runs."""

import json
import signal
import subprocess

import pytest

from tests.cli.conftest import is_alive, until
from tests.cli.test_pool_verbs import Pool
from tests.cli.test_run import STUBBORN, ended, stubborn_pids

pytestmark = pytest.mark.processes

WAITING = "echo > began; while [ ! -e go ]; do sleep 0.02; done"


@pytest.fixture
def pool(operator, tmp_path):
    return Pool(operator, tmp_path)


@pytest.fixture
def one_slot(pool):
    return pool.apply(slots=[{"id": 1, "port": 4000}])


@pytest.fixture
def folder(tmp_path):
    return tmp_path


def run(who, pool, script, *flags, **more):
    return who("run", "--pool", pool.name, *flags, "--", "sh", "-c", script, **more)


def started(who, pool, script, *flags, folder, **more):
    return who.start(
        "run",
        "--pool",
        pool.name,
        *flags,
        "--",
        "sh",
        "-c",
        f"cd {folder}; {script}",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


def slot(pool):
    return pool.status()["slots"][0]


def test_the_command_sees_its_slot_and_its_status_is_passed_on(pool, alice):
    pool.apply(slots=[{"id": "web-1", "port": 4000}], grantEnv={"APP_PORT": "{port}", "slot": "x"})
    inherited = {"POOL_SLOT_ID": "outer", "POOL_SLOT_PORT": "1", "POOL_RUN_TOKEN": "2"}
    outcome = run(alice, pool, "env; exit 7", environment=inherited)
    assert outcome.status == 7
    seen = dict(line.split("=", 1) for line in outcome.text.splitlines() if "=" in line)
    assert (seen["APP_PORT"], seen["slot"], seen["POOL_RUN_SLOT"]) == ("4000", "x", "web-1")
    assert seen["POOL_RUN_TOKEN"] == seen["LEASEHUB_FENCING_TOKEN"] != "2"
    assert seen["POOL_RUN_OWNER"] == seen["LEASEHUB_HOLDER"]
    assert seen["POOL_RUN_OWNER"].startswith("alice:")
    assert seen["LEASEHUB_RESOURCE_ID"] == f"{pool.name}/web-1"
    assert "POOL_SLOT_ID" not in seen
    assert "POOL_SLOT_PORT" not in seen
    assert "slot web-1" in outcome.errors
    assert "slot web-1 is released" in outcome.errors
    assert slot(pool)["state"] == "free"


def test_the_slots_own_variables_are_the_default_environment(one_slot, alice):
    outcome = run(alice, one_slot, "echo $POOL_SLOT_ID $POOL_SLOT_PORT $POOL_RUN_OWNER", "--owner", "muse-04")
    assert outcome.text == "1 4000 muse-04\n"


def test_a_slot_whose_number_is_written_with_a_point_is_the_servers(pool, alice):
    pool.apply(slots=[{"id": 1.0}])
    outcome = run(alice, pool, "echo $POOL_RUN_SLOT $LEASEHUB_RESOURCE_ID")
    assert outcome.text == f"1 {pool.name}/1\n"
    assert "slot 1 is released" in outcome.errors
    assert slot(pool)["state"] == "free"


def test_a_pool_that_is_full_does_not_run_the_command(one_slot, alice, bob, folder):
    process = started(alice, one_slot, WAITING, folder=folder)
    until((folder / "began").exists)
    for flags, code in (["--no-wait"], "saturated"), (["--wait-ms", "200"], "timeout"):
        outcome = run(bob, one_slot, f"touch {folder}/never", *flags)
        assert (outcome.status, outcome.said["code"]) == (1, code)
        assert f"pool {one_slot.name} granted nothing" in outcome.errors
        assert "queue position 1, eta ~8m" in outcome.errors.splitlines()[-1]
    waiting = started(bob, one_slot, "echo mine", folder=folder)
    until(lambda: one_slot.queue())
    (folder / "go").touch()
    assert ended(process)[0] == 0
    status, text, errors = ended(waiting)
    assert (status, text) == (0, "mine\n")
    assert "queue position 1, eta ~" in errors
    assert not (folder / "never").exists()


def test_a_failed_provision_is_the_answer(pool, alice, folder):
    pool.apply(slots=[{"id": 1}], provision="exit 7 #")
    outcome = run(alice, pool, f"touch {folder}/never")
    assert (outcome.status, outcome.said["state"]) == (1, "reset_failed")
    assert "exit 7" in outcome.errors
    assert not (folder / "never").exists()


def test_the_beat_follows_the_ttl_of_the_grant(one_slot, alice):
    # The pool's own is 30 minutes; three times the lease's.
    outcome = run(alice, one_slot, "sleep 4; echo done", "--ttl", "0.02")
    assert (outcome.status, outcome.text) == (0, "done\n")


def test_a_beat_that_is_wanted_too_seldom_comes_in_time_all_the_same(one_slot, alice):
    outcome = run(alice, one_slot, "sleep 4; echo done", "--ttl", "0.02", "--heartbeat-secs", "600")
    assert (outcome.status, outcome.text) == (0, "done\n")


def test_a_lost_slot_stops_everything_and_is_75(one_slot, alice, operator, folder):
    process = started(alice, one_slot, STUBBORN, "--heartbeat-secs", "0.5", folder=folder)
    pids = stubborn_pids(folder)
    assert one_slot(operator, "release", "--slot", 1, "--force").status == 0
    status, text, errors = ended(process)
    assert (status, json.loads(text)["code"]) == (75, "lease_lost")
    assert "confirmed slot 1 lost" in errors
    assert not any(map(is_alive, pids))


def test_a_slot_that_cannot_be_given_back_is_said_to_run_out(faulty, fake):
    grant = {"slot_id": 1, "lease_id": "lease_1", "fencing_token": 1, "holder": "o", "expires_at": "", "env": {}}
    grant |= {"expires_in_ms": 600_000, "ttl_minutes": 10}

    def granting(handler):
        if handler.command == "DELETE":
            handler.hang_up()
        else:
            view = {"request_id": "req_1", "state": "ready", "grants": [grant]}
            handler.reply(201, {"data": view})
        return True

    fake.faults.append(granting)
    outcome = faulty("run", "--pool", "p", "--owner", "o", "--", "true")
    assert outcome.status == 0
    assert "(attempt 3 of 3)" in outcome.errors
    assert "slot 1 was released; it runs out by itself" in outcome.errors
    assert "slot 1 is" not in outcome.errors.splitlines()[-1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_it_runs_releases_the_slot(one_slot, alice, folder, number):
    process = started(alice, one_slot, WAITING, folder=folder)
    until((folder / "began").exists)
    process.send_signal(number)
    assert ended(process)[0] == 128 + number
    assert slot(one_slot)["state"] == "free"


def test_a_signal_in_the_queue_leaves_it_and_no_slot_is_lost(one_slot, alice, bob, folder):
    process = started(alice, one_slot, WAITING, folder=folder)
    until((folder / "began").exists)
    waiting = started(bob, one_slot, "touch never", folder=folder)
    until(lambda: one_slot.queue())
    waiting.send_signal(signal.SIGTERM)
    status, text, _ = ended(waiting)
    assert (status, json.loads(text)["code"]) == (128 + signal.SIGTERM, "interrupted")
    assert one_slot.queue() == []
    (folder / "go").touch()
    assert ended(process)[0] == 0
    assert slot(one_slot)["state"] == "free"
    assert not (folder / "never").exists()


def test_kill_9_leaves_nothing_and_the_slot_is_made_clean_for_the_next(pool, alice, bob, folder):
    pool.apply(slots=[{"id": 1}], provision="echo >> provisioned; true")
    process = started(alice, pool, STUBBORN, "--ttl", "0.03", folder=folder)
    pids = stubborn_pids(folder)
    process.kill()
    ended(process)
    until(lambda: not any(map(is_alive, pids)))
    outcome = run(bob, pool, "cat provisioned | wc -l", "--poll-ms", "500", cwd=folder)
    assert (outcome.status, outcome.text.strip()) == (0, "2")


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--pool", "p", "--resource", "a/b", "--", "true"], "--resource"),
        (["--pool", "p"], "command"),
        (["--pool", "p", "--heartbeat-secs", "0", "--", "true"], "--heartbeat-secs"),
        (["--pool", "p", "--heartbeat-secs", "abc", "--", "true"], "--heartbeat-secs"),
        (["--pool", "p", "--ttl", "abc", "--", "true"], "--ttl"),
        (["--", "true"], "--pool"),
    ],
)
def test_a_wrong_command_line_names_what_is_wrong(alice, flags, named):
    outcome = alice("run", *flags)
    assert (outcome.status, outcome.said["code"]) == (2, "usage")
    assert named in outcome.said["message"]


def test_the_keys_secret_is_not_put_into_the_environment(one_slot, alice, folder):
    file = folder / "credentials.json"
    token = alice.environment["LEASEHUB_TOKEN"]
    file.write_text(json.dumps({"url": alice.environment["LEASEHUB_URL"], "token": token}))
    by_file = type(alice)(folder, {"LEASEHUB_CREDENTIALS": str(file)})
    outcome = run(by_file, one_slot, "env")
    assert outcome.status == 0
    assert token not in outcome.text
