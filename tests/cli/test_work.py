"""leasehub work: every task once, whatever its command does and whoever is killed."""

import json
import os
import signal
import subprocess
import time

import pytest

from tests.cli.conftest import is_alive, until
from tests.cli.test_run import FAULTS, STUBBORN, ended, guardian_of, hang_up, last_sign_of_work, pid_in, stubborn_pids
from tests.cli.test_task_verbs import put
from tests.cli.test_wire import dropping

pytestmark = pytest.mark.processes

COUNTS = ("completed", "failed", "returned", "lost")
WAITING = "echo > began; while [ ! -e go ]; do sleep 0.02; done"


@pytest.fixture
def queue():
    return f"w-{time.time_ns()}"


@pytest.fixture
def folder(tmp_path):
    """Where the command of a test runs."""
    return tmp_path


def work(who, queue, script, *flags, **more):
    return who("work", "--queue", queue, *flags, "--", "sh", "-c", script, **more)


def started(who, queue, script, *flags, folder, **more):
    return who.start(
        "work",
        "--queue",
        queue,
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


def counts(said):
    return tuple(said[name] for name in COUNTS)


def shown(who, task_id):
    return who("task", "show", "--task", task_id).said


def test_each_task_is_run_with_its_payload_and_completed_with_the_output(alice, queue, server):
    tasks = [put(alice, queue, "--payload", json.dumps({"n": n, "e": "é"})) for n in range(3)]
    outcome = work(alice, queue, "cat", "--until-empty")
    assert outcome.status == 0, outcome.errors
    assert outcome.said == {"ok": True, "code": "empty", "completed": 3, "failed": 0, "returned": 0, "lost": 0}
    assert list(outcome.said) == ["ok", "code", *COUNTS]
    for n, task_id in enumerate(tasks):
        task = shown(alice, task_id)
        assert (task["state"], task["result"]) == ("done", {"n": n, "e": "é"})


def test_the_command_sees_its_claim_and_no_secret(alice, queue, server, folder):
    task_id = put(alice, queue)
    file = folder / "credentials.json"
    token = alice.environment["LEASEHUB_TOKEN"]
    file.write_text(json.dumps({"url": server["url"], "token": token}))
    by_file = type(alice)(folder, {"LEASEHUB_CREDENTIALS": str(file)})
    assert work(by_file, queue, "env", "--until-empty").said["completed"] == 1
    text = shown(alice, task_id)["result"]
    assert token not in text
    seen = dict(line.split("=", 1) for line in text.splitlines() if line.startswith("LEASEHUB_"))
    assert seen["LEASEHUB_TASK_ID"] == task_id
    assert int(seen["LEASEHUB_FENCING_TOKEN"]) > 0
    assert seen["LEASEHUB_LEASE_ID"].startswith("lease_")
    assert (seen["LEASEHUB_ATTEMPT"], seen["LEASEHUB_QUEUE"]) == ("1", queue)
    assert seen["LEASEHUB_HOLDER"].startswith("alice:")
    assert seen["LEASEHUB_URL"] == server["url"]


@pytest.mark.parametrize(
    ("script", "result"),
    [
        ("true", None),
        ("echo ' [1, {\"a\": null}] '", [1, {"a": None}]),
        ("echo plain text", "plain text\n"),
        ("echo NaN", "NaN\n"),
        # What no database stores, in JSON and beside it.
        (r"""printf '"\\u0000"'""", '"\\u0000"'),
        (r"printf 'a\000b\377'", "a\ufffdb\ufffd"),
        ("printf '[%.0s' $(seq 5000)", "[" * 5000),
    ],
)
def test_the_result_is_json_or_else_the_text(alice, queue, script, result):
    task_id = put(alice, queue)
    assert work(alice, queue, script, "--until-empty").said["completed"] == 1
    assert shown(alice, task_id)["result"] == result


def test_a_result_is_bounded_however_much_is_written(alice, queue):
    task_id = put(alice, queue)
    outcome = work(
        alice, queue, "head -c 20000000 /dev/zero | tr '\\0' '\"'; head -c 20000000 /dev/zero >&2", "--until-empty"
    )
    assert outcome.said["completed"] == 1
    assert "cut" in outcome.errors
    result = shown(alice, task_id)["result"]
    # Each quotation mark is two bytes of JSON.
    assert 30_000 < len(result) <= 32_767
    assert set(result) == {'"'}


def test_a_failure_carries_its_status_and_the_end_of_stderr(alice, queue):
    task_id = put(alice, queue, "--max-attempts", "1")
    script = "echo '[1]'; seq 5000 >&2; printf 'no \\033[1mdisk\\n' >&2; exit 3"
    outcome = work(alice, queue, script, "--until-empty")
    assert outcome.said["failed"] == 1
    # What the command says is not withheld from who watches.
    assert "1\n2\n3\n" in outcome.errors
    task = shown(alice, task_id)
    assert (task["state"], task["result"]) == ("dead", None)
    assert task["error"].startswith("exit 3\n")
    assert task["error"].endswith("5000\nno \ufffd[1mdisk")
    assert 3000 < len(task["error"]) <= 4000


def test_a_command_that_a_signal_ended_has_failed(alice, queue):
    task_id = put(alice, queue, "--max-attempts", "1")
    assert work(alice, queue, "kill -9 $$", "--until-empty").said["failed"] == 1
    assert shown(alice, task_id)["error"] == "killed by SIGKILL"


def test_a_command_that_is_not_there_costs_no_task_its_attempts(alice, queue):
    task_id = put(alice, queue, "--max-attempts", "1")
    outcome = alice("work", "--queue", queue, "--", "no-such-command")
    assert (outcome.status, outcome.said["code"]) == (2, "usage")
    assert shown(alice, task_id)["attempts"] == 0


def test_one_that_cannot_be_started_after_all_gives_the_task_back_and_stops(alice, queue, folder):
    task_id = put(alice, queue)
    script = folder / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    outcome = alice("work", "--queue", queue, "--", script)
    assert (outcome.status, outcome.said["code"]) == (2, "usage")
    assert str(script) in outcome.said["message"]
    assert shown(alice, task_id)["state"] == "ready"


def test_several_run_at_once_and_no_more(alice, queue, folder):
    tasks = [put(alice, queue) for _ in range(5)]
    script = "echo > began-$LEASEHUB_TASK_ID; while [ ! -e go ]; do sleep 0.02; done"
    process = started(alice, queue, script, "--concurrency", "3", "--until-empty", folder=folder)
    until(lambda: len(list(folder.glob("began-*"))) == 3)
    time.sleep(0.7)
    assert len(list(folder.glob("began-*"))) == 3
    (folder / "go").touch()
    status, text, _ = ended(process)
    assert (status, counts(json.loads(text))) == (0, (5, 0, 0, 0))
    assert {shown(alice, task_id)["state"] for task_id in tasks} == {"done"}


def test_a_heartbeat_keeps_a_short_claim_alive(alice, queue):
    task_id = put(alice, queue)
    assert counts(work(alice, queue, "sleep 3", "--ttl-seconds", "1", "--until-empty").said) == (1, 0, 0, 0)
    assert shown(alice, task_id)["attempts"] == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_gives_the_task_back_whatever_the_command_makes_of_it(alice, queue, folder, number):
    task_id = put(alice, queue)
    script = f"trap 'echo bye > got; exit 0' TERM; {WAITING}"
    process = started(alice, queue, script, folder=folder)
    until((folder / "began").exists)
    process.send_signal(number)
    status, text, _ = ended(process)
    assert (status, json.loads(text)["code"], counts(json.loads(text))) == (0, "stopped", (0, 0, 1, 0))
    assert (folder / "got").exists()
    task = shown(alice, task_id)
    assert (task["state"], task["result"]) == ("ready", None)


def test_ctrl_c_comes_once_to_the_command_though_the_whole_group_gets_it(alice, queue, folder):
    put(alice, queue)
    script = f"trap 'sleep 0.5; echo bye > got; exit 0' TERM; {WAITING}"
    process = started(alice, queue, script, folder=folder, start_new_session=True)
    until((folder / "began").exists)
    os.killpg(process.pid, signal.SIGINT)
    assert counts(json.loads(ended(process)[1])) == (0, 0, 1, 0)
    assert (folder / "got").exists()


def test_a_second_signal_does_not_wait(alice, queue, folder):
    task_id = put(alice, queue)
    process = started(alice, queue, STUBBORN, folder=folder)
    pids = stubborn_pids(folder)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    assert is_alive(pids[0])
    process.send_signal(signal.SIGTERM)
    assert counts(json.loads(ended(process)[1])) == (0, 0, 1, 0)
    assert not any(map(is_alive, pids))
    assert shown(alice, task_id)["state"] == "ready"


def test_an_idle_one_ends_on_a_signal_and_takes_no_task_along(alice, queue, folder):
    process = started(alice, queue, "true", folder=folder)
    time.sleep(1.5)
    process.send_signal(signal.SIGTERM)
    status, text, _ = ended(process)
    assert (status, json.loads(text)["code"]) == (0, "stopped")
    task_id = put(alice, queue)
    time.sleep(1)
    assert shown(alice, task_id)["state"] == "ready"


def test_a_lost_claim_stops_the_command_and_ends_nothing(alice, operator, queue, folder):
    task_id = put(alice, queue)
    process = started(alice, queue, STUBBORN, "--ttl-seconds", "4", "--wait-seconds", "0", folder=folder)
    pids = stubborn_pids(folder)
    lease = shown(operator, task_id)["lease"]
    force_release(operator, lease)
    second = until(lambda: claim_of(operator, queue))
    status, text, errors = ended(process)
    assert (status, counts(json.loads(text))) == (0, (0, 0, 0, 1))
    assert "lost" in errors
    assert not any(map(is_alive, pids))
    # Its new holder is untouched.
    assert shown(operator, task_id)["lease"]["fencing_token"] == second["fencing_token"]


def force_release(operator, lease):
    from leasehub.client.wire import Connection

    environment = operator.environment
    connection = Connection(environment["LEASEHUB_URL"], environment["LEASEHUB_TOKEN"])
    body = {"reason": "a test", "fencing_token": lease["fencing_token"]}
    connection.call("POST", f"/v1/leases/{lease['lease_id']}/force-release", body)
    connection.close()


def claim_of(who, queue):
    outcome = who("task", "claim", "--queue", queue)
    return outcome.said if outcome.status == 0 else None


def test_kill_9_leaves_nothing_running_and_the_task_comes_back_by_itself(alice, bob, queue, folder):
    task_id = put(alice, queue)
    process = started(alice, queue, STUBBORN, "--ttl-seconds", "2", folder=folder)
    pids = stubborn_pids(folder)
    token = shown(alice, task_id)["lease"]["fencing_token"]
    process.kill()
    ended(process)
    until(lambda: not any(map(is_alive, pids)))
    outcome = work(bob, queue, "echo $LEASEHUB_ATTEMPT $LEASEHUB_FENCING_TOKEN", "--until-empty")
    assert outcome.said["completed"] == 1
    attempt, later = shown(bob, task_id)["result"].split()
    assert attempt == "2"
    assert int(later) > token


def test_kill_9_of_the_child_with_the_claim_leaves_nothing_either_and_the_rest_goes_on(alice, queue, folder):
    put(alice, queue)
    process = started(alice, queue, STUBBORN, "--ttl-seconds", "2", folder=folder)
    pids = stubborn_pids(folder)
    os.kill(guardian_of(process), signal.SIGKILL)
    until(lambda: not any(map(is_alive, pids)))
    assert process.poll() is None
    (folder / "leader").unlink()
    # It comes back, to the same worker.
    again = pid_in(folder / "leader")
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    assert counts(json.loads(ended(process)[1]))[3] == 1
    assert not is_alive(again)


def test_what_the_command_leaves_running_is_stopped_before_the_task_is_completed(alice, queue, folder):
    put(alice, queue)
    process = started(alice, queue, "setsid sleep 300 & echo $! > escapee", "--until-empty", folder=folder)
    assert counts(json.loads(ended(process)[1])) == (1, 0, 0, 0)
    assert not is_alive(pid_in(folder / "escapee"))


def test_until_empty_waits_for_what_others_have_claimed(alice, bob, queue):
    task_id = put(alice, queue)
    claim = bob("task", "claim", "--queue", queue, "--ttl-seconds", "2").said
    assert claim["task_id"] == task_id
    assert counts(work(alice, queue, "true", "--until-empty").said) == (1, 0, 0, 0)


def test_wait_seconds_ends_when_there_was_nothing_to_claim_for_so_long(alice, outsider, queue):
    put(alice, queue, "--delay-seconds", "3600")
    began = time.monotonic()
    outcome = work(outsider, queue, "true", "--wait-seconds", "1")
    assert (outcome.status, outcome.said["code"]) == (0, "empty")
    assert time.monotonic() - began >= 1


def test_a_key_that_may_not_observe_cannot_know_that_a_queue_is_empty(alice, outsider, queue):
    put(alice, queue)
    outcome = work(outsider, queue, "true", "--until-empty")
    assert (outcome.status, outcome.said["code"]) == (1, "forbidden")


def calls(fake, end):
    return [seen for seen in fake.seen if seen[1].endswith(end)]


@pytest.mark.parametrize("lost", ["hot-claim", "complete"])
def test_a_call_whose_answer_was_lost_is_repeated_under_its_key(faulty, fake, queue, lost):
    fake.leases.tasks.append({"n": 1})
    drop = dropping(4)
    fake.faults.append(lambda handler: handler.path.endswith(lost) and drop(handler))
    outcome = work(faulty, queue, "cat", "--wait-seconds", "0")
    if lost == "hot-claim":
        # Three attempts, and no server has ever been heard of.
        assert (outcome.status, outcome.said["code"]) == (3, "unreachable")
        return
    assert counts(outcome.said) == (1, 0, 0, 0)
    assert fake.leases.results == [{"n": 1}]
    sent = calls(fake, lost)
    assert len(sent) == 5
    assert len({headers["idempotency-key"] for _, _, headers, _ in sent}) == 1


def test_a_claim_whose_answer_was_lost_in_an_outage_is_found_again(faulty, fake, queue, folder):
    process = started(faulty, queue, "cat", "--wait-seconds", "8", folder=folder)
    until(lambda: len(calls(fake, "hot-claim")) == 1)
    drop = dropping(4)
    fake.faults.append(lambda handler: handler.path.endswith("hot-claim") and drop(handler))
    fake.leases.tasks.append("found")
    assert counts(json.loads(ended(process)[1])) == (1, 0, 0, 0)
    assert fake.leases.results == ["found"]


@pytest.mark.parametrize("fault", ["hangs up", "is busy", "says nonsense"])
def test_an_outage_shorter_than_the_claim_is_survived(faulty, fake, queue, folder, fault):
    fake.leases.tasks.append(1)
    process = started(faulty, queue, WAITING, "--ttl-seconds", "8", "--wait-seconds", "0", folder=folder)
    until((folder / "began").exists)
    fake.faults.append(FAULTS[fault])
    (folder / "go").touch()
    until(lambda: calls(fake, "complete"))
    time.sleep(0.5)
    fake.faults.clear()
    status, text, _ = ended(process)
    assert (status, counts(json.loads(text))) == (0, (1, 0, 0, 0))
    assert len(fake.leases.results) == 1


def test_a_server_that_is_away_until_the_deadline_loses_the_claim_in_time(faulty, fake, queue, folder):
    fake.leases.tasks.append(1)
    process = started(faulty, queue, STUBBORN, "--ttl-seconds", "3", folder=folder)
    pids = stubborn_pids(folder)
    [row] = fake.leases.rows.values()
    fake.faults.append(hang_up)
    until(lambda: not any(map(is_alive, pids)))
    assert last_sign_of_work(folder) < row["expires"]
    process.send_signal(signal.SIGTERM)
    assert counts(json.loads(ended(process)[1])) == (0, 0, 0, 1)
    assert fake.leases.results == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--", "true"], "--queue"),
        (["--queue", "q"], "command"),
        (["--queue", "q", "--"], "command"),
        (["--queue", "q", "--concurrency", "0", "--", "true"], "--concurrency"),
        (["--queue", "q", "--ttl-seconds", "x", "--", "true"], "--ttl-seconds"),
        (["--queue", "q", "--ttl-seconds", "999999", "--", "true"], "ttl_seconds"),
        (["--queue", "q", "--holder", "a b", "--", "true"], "holder"),
    ],
)
def test_a_wrong_command_line_names_what_is_wrong(alice, arguments, named):
    outcome = alice("work", *arguments)
    assert (outcome.status, outcome.said["code"]) == (2, "usage")
    assert named in outcome.said["message"]
