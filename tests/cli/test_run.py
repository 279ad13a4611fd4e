"""leasehub run: the command lives exactly as long as its lease, whatever is done to whom."""

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time

import pytest

from leasehub.cli.timestamps import epoch_ms
from tests.cli.conftest import PATIENCE_SECONDS, is_alive, until

pytestmark = pytest.mark.processes

# Says who it is, starts a child and a daemon (another session, its parent gone), and heeds no SIGTERM.
STUBBORN = """
trap '' TERM
echo $$ > leader
sleep 300 & echo $! > child
( setsid sh -c 'trap "" TERM; echo $$ > escapee; exec sleep 300' & )
while :; do date +%s%N >> working; sleep 0.02; done
"""


@pytest.fixture
def resource(kind):
    return f"deploy/{kind}"


@pytest.fixture
def folder(tmp_path):
    """Where the command of a test runs."""
    return tmp_path


def run(who, resource, script, *flags, **more):
    return who("run", "--resource", resource, *flags, "--", "sh", "-c", script, **more)


def started(who, resource, script, *flags, folder, **more):
    return who.start(
        "run",
        "--resource",
        resource,
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


def pid_in(file):
    return int(until(lambda: file.exists() and file.read_text().strip()))


def stubborn_pids(folder):
    return [pid_in(folder / name) for name in ("leader", "child", "escapee")]


def ended(process):
    """Its exit status, stdout and stderr, once it has ended."""
    text, errors = process.communicate(timeout=60)
    return process.returncode, text, errors


def lease_of(who, resource):
    """The server's own view of the resource."""
    from leasehub.client.wire import Connection

    resource_type, _, resource_id = resource.partition("/")
    connection = Connection(who.environment["LEASEHUB_URL"], who.environment["LEASEHUB_TOKEN"])
    path = f"/v1/leases/status?resource_type={resource_type}&resource_id={resource_id}"
    try:
        return connection.call("GET", path)
    finally:
        connection.close()


def force_release(operator, resource):
    from leasehub.client.wire import Connection

    lease = lease_of(operator, resource)
    environment = operator.environment
    connection = Connection(environment["LEASEHUB_URL"], environment["LEASEHUB_TOKEN"])
    body = {"reason": "a test", "fencing_token": lease["fencing_token"]}
    connection.call("POST", f"/v1/leases/{lease['lease_id']}/force-release", body)
    connection.close()


def test_the_command_sees_its_lease_and_its_status_is_passed_on(alice, resource, server):
    outcome = run(alice, resource, "env | grep ^LEASEHUB_ ; cat; exit 7", input="from stdin\n")
    assert outcome.status == 7
    *lines, last = outcome.text.splitlines()
    assert last == "from stdin"
    seen = dict(line.split("=", 1) for line in lines)
    assert seen["LEASEHUB_RESOURCE_TYPE"], seen["LEASEHUB_RESOURCE_ID"] == resource.split("/")
    assert int(seen["LEASEHUB_FENCING_TOKEN"]) > 0
    assert seen["LEASEHUB_LEASE_ID"].startswith("lease_")
    assert seen["LEASEHUB_HOLDER"].startswith("alice:")
    assert epoch_ms(seen["LEASEHUB_EXPIRES_AT"]) > time.time() * 1000
    assert seen["LEASEHUB_URL"] == server["url"]
    assert lease_of(alice, resource)["state"] == "free"


def test_the_keys_secret_is_not_put_into_the_environment(alice, resource, tmp_path):
    file = tmp_path / "credentials.json"
    token = alice.environment["LEASEHUB_TOKEN"]
    file.write_text(json.dumps({"url": alice.environment["LEASEHUB_URL"], "token": token}))
    by_file = type(alice)(tmp_path, {"LEASEHUB_CREDENTIALS": str(file)})
    outcome = run(by_file, resource, "env")
    assert outcome.status == 0
    assert token not in outcome.text


def test_the_lease_is_held_while_the_command_runs_and_refused_to_others(alice, bob, resource, folder):
    process = started(alice, resource, "echo > began; while [ ! -e go ]; do sleep 0.02; done", folder=folder)
    until((folder / "began").exists)
    lease = lease_of(alice, resource)
    assert lease["state"] == "held"
    outcome = run(bob, resource, f"touch {folder}/never")
    assert outcome.status == 1
    assert outcome.said["code"] == "held"
    assert outcome.said["resource"] == resource
    assert str(lease["fencing_token"]) not in outcome.text
    # A second terminal with the same key is another holder, and would not get it as the same one either.
    for flags, by_self in ([], False), (["--holder", lease["holder"]], True):
        again = run(alice, resource, "true", *flags)
        assert (again.status, again.said["heldBySelf"]) == (1, by_self)
    (folder / "go").touch()
    assert ended(process)[0] == 0
    assert not (folder / "never").exists()


def test_one_who_waits_gets_its_turn(alice, bob, resource, folder):
    process = started(alice, resource, "echo > began; while [ ! -e go ]; do sleep 0.02; done", folder=folder)
    until((folder / "began").exists)
    outcome = run(bob, resource, "true", "--wait-seconds", "0.2")
    assert outcome.status == 1
    assert outcome.said["code"] == "timeout"
    assert outcome.said["waitedMs"] == 200
    waiting = started(bob, resource, "echo mine", "--wait-seconds", "30", folder=folder)
    (folder / "go").touch()
    assert ended(process)[0] == 0
    assert ended(waiting)[:2] == (0, "mine\n")


def test_a_heartbeat_keeps_a_short_lease_alive(alice, resource, folder):
    # Three times its TTL.
    outcome = run(alice, resource, "sleep 3; echo done", "--ttl-seconds", "1")
    assert (outcome.status, outcome.text) == (0, "done\n")


@pytest.mark.parametrize(("command", "status"), [(["no-such-command"], 127), (["/etc/no/such"], 127), (["/etc"], 126)])
def test_what_cannot_be_started_is_said_and_released(alice, resource, command, status):
    outcome = alice("run", "--resource", resource, "--", *command)
    assert outcome.status == status
    assert outcome.said["code"] == "usage"
    assert lease_of(alice, resource)["state"] == "free"


def test_a_command_that_a_signal_ended_is_128_and_the_signal(alice, resource):
    assert run(alice, resource, "kill -9 $$").status == 128 + 9
    assert run(alice, resource, "kill -15 $$").status == 128 + 15


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_is_passed_on_and_the_lease_released(alice, resource, folder, number):
    name = signal.Signals(number).name.removeprefix("SIG")
    script = f"trap 'echo got {name}; exit 0' {name}; echo > began; while :; do sleep 0.02; done"
    process = started(alice, resource, script, folder=folder)
    until((folder / "began").exists)
    process.send_signal(number)
    status, text, _ = ended(process)
    assert status == 128 + number
    assert text == f"got {name}\n"
    assert lease_of(alice, resource)["state"] == "free"


def test_a_second_signal_does_not_wait(alice, resource, folder):
    process = started(alice, resource, STUBBORN, folder=folder)
    pids = stubborn_pids(folder)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    assert is_alive(pids[0])
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 128 + signal.SIGTERM
    assert not any(map(is_alive, pids))
    assert lease_of(alice, resource)["state"] == "free"


def test_a_signal_while_waiting_leaves_no_lease_behind(alice, bob, resource, folder):
    process = started(alice, resource, "echo > began; while [ ! -e go ]; do sleep 0.02; done", folder=folder)
    until((folder / "began").exists)
    waiting = started(bob, resource, "echo > never", "--wait-seconds", "60", folder=folder)
    time.sleep(1)
    waiting.send_signal(signal.SIGTERM)
    status, text, _ = ended(waiting)
    assert status == 128 + signal.SIGTERM
    assert json.loads(text)["code"] == "interrupted"
    (folder / "go").touch()
    assert ended(process)[0] == 0
    assert lease_of(alice, resource)["state"] == "free"
    assert not (folder / "never").exists()


def test_what_the_command_leaves_running_is_stopped_before_the_release(alice, resource, folder):
    script = "sleep 300 & echo $! > child; setsid sleep 300 & echo $! > escapee; exit 3"
    process = started(alice, resource, script, folder=folder)
    assert ended(process)[0] == 3
    assert not is_alive(pid_in(folder / "child"))
    assert not is_alive(pid_in(folder / "escapee"))
    assert lease_of(alice, resource)["state"] == "free"


def test_a_lost_lease_stops_everything_and_is_75(alice, operator, resource, folder):
    process = started(alice, resource, STUBBORN, "--ttl-seconds", "4", folder=folder)
    pids = stubborn_pids(folder)
    force_release(operator, resource)
    status, text, errors = ended(process)
    assert status == 75
    said = json.loads(text)
    assert (said["ok"], said["code"]) == (False, "lease_lost")
    assert "force_released" in said["message"]
    assert "lost" in errors
    assert not any(map(is_alive, pids))


def test_a_revoked_key_is_a_lost_lease(person, operator, resource, folder):
    leaver = person("lena")
    process = started(leaver, resource, STUBBORN, "--ttl-seconds", "4", folder=folder)
    pids = stubborn_pids(folder)
    assert operator("key", "revoke", leaver.key_id).status == 0
    assert ended(process)[0] == 75
    assert not any(map(is_alive, pids))


def test_kill_9_leaves_nothing_and_the_next_one_takes_over(alice, bob, resource, folder):
    process = started(alice, resource, STUBBORN, "--ttl-seconds", "2", folder=folder)
    pids = stubborn_pids(folder)
    token = lease_of(alice, resource)["fencing_token"]
    process.kill()
    ended(process)
    until(lambda: not any(map(is_alive, pids)))
    # No heartbeat goes on either: the lease runs out, and a waiter gets it with a larger token.
    outcome = run(bob, resource, "echo $LEASEHUB_FENCING_TOKEN", "--wait-seconds", "30")
    assert outcome.status == 0
    assert int(outcome.text) > token


def test_kill_9_of_the_whole_process_group_leaves_nothing_either(alice, resource, folder):
    process = started(alice, resource, STUBBORN, folder=folder, start_new_session=True)
    pids = stubborn_pids(folder)
    os.killpg(process.pid, signal.SIGKILL)
    ended(process)
    until(lambda: not any(map(is_alive, pids)))


def guardian_of(process):
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True, check=True)
    return int(found.stdout)


def test_a_killed_watcher_takes_the_command_along(alice, resource, folder):
    process = started(alice, resource, STUBBORN, folder=folder)
    pids = stubborn_pids(folder)
    os.kill(guardian_of(process), signal.SIGKILL)
    status, text, _ = ended(process)
    assert status == 3
    assert json.loads(text)["code"] == "internal"
    assert not any(map(is_alive, pids))
    assert lease_of(alice, resource)["state"] == "free"


def last_sign_of_work(folder):
    return int((folder / "working").read_text().split()[-1]) / 1e6


def test_a_stopped_leasehub_run_has_its_command_dead_before_the_lease_ends(faulty, fake, resource, folder):
    process = started(faulty, resource, STUBBORN, "--ttl-seconds", "3", folder=folder)
    pids = stubborn_pids(folder)
    [row] = fake.leases.rows.values()
    os.kill(process.pid, signal.SIGSTOP)
    # Not even continued, let alone asked: nobody else could have been granted it yet.
    until(lambda: not any(map(is_alive, pids)))
    assert last_sign_of_work(folder) < row["expires"]
    os.kill(process.pid, signal.SIGCONT)
    status, text, _ = ended(process)
    assert status == 75
    assert json.loads(text)["code"] == "lease_lost"


def test_all_of_it_stopped_for_longer_than_the_ttl_does_no_more_work(faulty, fake, resource, folder):
    process = started(faulty, resource, STUBBORN, "--ttl-seconds", "2", folder=folder)
    pids = stubborn_pids(folder)
    everyone = [process.pid, guardian_of(process), *pids]
    for pid in everyone:
        os.kill(pid, signal.SIGSTOP)
    [row] = fake.leases.rows.values()
    until(lambda: fake.leases.now() > row["expires"])
    # As after a suspension: first to wake is the watcher.
    for pid in everyone[1::-1] + everyone[2:]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    assert ended(process)[0] == 75
    assert not any(map(is_alive, pids))


@pytest.mark.parametrize("fault", ["hangs up", "is busy", "never answers", "says nonsense"])
def test_a_server_that_is_away_until_the_deadline_stops_the_command_in_time(faulty, fake, resource, folder, fault):
    process = started(faulty, resource, STUBBORN, "--ttl-seconds", "3", folder=folder)
    pids = stubborn_pids(folder)
    fake.faults.append(FAULTS[fault])
    [row] = fake.leases.rows.values()
    status, text, _ = ended(process)
    assert status == 75
    assert "deadline" in json.loads(text)["message"]
    assert not any(map(is_alive, pids))
    assert last_sign_of_work(folder) < row["expires"]


def hang_up(handler):
    handler.hang_up()
    return True


def be_busy(handler):
    handler.reply(503, {"error": {"code": "UNAVAILABLE", "message": "busy", "retry_after_ms": 1000}})
    return True


def never_answer(handler):
    time.sleep(20)
    return True


def say_nonsense(handler):
    handler.reply_with(200, b"<html>")
    return True


FAULTS = {
    "hangs up": hang_up,
    "is busy": be_busy,
    "never answers": never_answer,
    "says nonsense": say_nonsense,
}


@pytest.mark.parametrize("fault", ["hangs up", "is busy", "says nonsense"])
def test_an_outage_shorter_than_the_lease_is_survived(faulty, fake, resource, folder, fault):
    script = "echo > began; while [ ! -e go ]; do sleep 0.02; done; echo done"
    process = started(faulty, resource, script, "--ttl-seconds", "6", folder=folder)
    until((folder / "began").exists)
    fake.faults.append(FAULTS[fault])
    seen = len(fake.seen)
    until(lambda: len(fake.seen) > seen + 2)
    fake.faults.clear()
    [row] = fake.leases.rows.values()
    beat = row["beat"]
    until(lambda: row["beat"] > beat)
    (folder / "go").touch()
    assert ended(process)[:2] == (0, "done\n")
    assert fake.leases.rows == {}


def releases(fake):
    return [path for method, path, *_ in fake.seen if method == "DELETE"]


def test_a_server_that_is_away_for_two_seconds_at_the_end_is_still_told(faulty, fake, resource, folder):
    process = started(faulty, resource, "echo > began; sleep 1", folder=folder)
    until((folder / "began").exists)
    fake.faults.append(hang_up)
    until(lambda: len(releases(fake)) == 2)
    time.sleep(0.5)
    fake.faults.clear()
    status, _, errors = ended(process)
    assert (status, len(releases(fake)), fake.leases.rows) == (0, 3, {})
    assert "(attempt 2 of 3)" in errors
    assert "by itself" not in errors


def test_a_release_that_fails_for_good_says_when_the_lease_is_over(faulty, fake, resource, folder):
    process = started(faulty, resource, "echo > began; sleep 2; exit 7", "--ttl-seconds", "8", folder=folder)
    [row] = until(lambda: list(fake.leases.rows.values()))
    acquired = row["beat"]
    # The time is that of the last beat, not of the acquisition.
    until(lambda: row["beat"] > acquired)
    fake.faults.append(hang_up)
    status, text, errors = ended(process)
    assert (status, text, len(releases(fake))) == (7, "", 3)
    said = errors.splitlines()[-1]
    assert "it runs out by itself at about " in said
    at = epoch_ms(said.partition("about ")[2].partition(",")[0])
    assert acquired + 8_500 < at <= row["expires"] + 100


def test_an_acquisition_whose_answer_was_lost_is_found_again(faulty, fake, resource, folder):
    from tests.cli.test_wire import dropping

    fake.faults.append(dropping(1))
    process = started(faulty, resource, "echo > began; sleep 1", "--ttl-seconds", "6", folder=folder)
    assert ended(process)[0] == 0
    posts = [seen for seen in fake.seen if seen[:2] == ("POST", "/v1/leases")]
    assert len(posts) == 2
    assert fake.leases.rows == {}


def test_a_server_that_was_never_there_is_unreachable(faulty, fake, resource, folder):
    fake.faults.append(hang_up)
    outcome = run(faulty, resource, f"touch {folder}/never")
    assert outcome.status == 3
    assert outcome.said["code"] == "unreachable"
    assert not (folder / "never").exists()


def test_nohup_keeps_it_running_through_a_hangup(alice, resource, folder):
    process = started(
        alice,
        resource,
        "echo > began; while [ ! -e go ]; do sleep 0.02; done",
        folder=folder,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    until((folder / "began").exists)
    process.send_signal(signal.SIGHUP)
    time.sleep(0.2)
    assert process.poll() is None
    (folder / "go").touch()
    assert ended(process)[0] == 0


def test_the_streams_close_with_the_command(alice, resource):
    outcome = run(alice, resource, "yes | head -n 100000 | tail -n 1")
    assert (outcome.status, outcome.text) == (0, "y\n")


def at_a_terminal(who, *arguments):
    """Starts the command line in a session of its own with a terminal; its pid and our end of that."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(who.folder)
        from tests.cli.conftest import COMMAND

        os.execve(sys.executable, [*COMMAND, *arguments], who.environment)
    return pid, terminal


def read_until(terminal, text):
    shown = b""
    while text not in shown:
        assert select.select([terminal], [], [], PATIENCE_SECONDS)[0], shown
        shown += os.read(terminal, 1024)


def test_at_a_terminal_the_command_reads_the_keyboard_and_gets_its_ctrl_c(alice, resource):
    # In small sleeps: one that starts just after the signal would delay the trap to its end.
    waiting = "while :; do sleep 0.05; done"
    script = f"trap 'echo interrupted; exit 4' INT; echo ready; read l; echo heard $l; {waiting}"
    pid, terminal = at_a_terminal(alice, "run", "--resource", resource, "--", "sh", "-c", script)
    read_until(terminal, b"ready")
    os.write(terminal, b"hello\n")
    read_until(terminal, b"heard hello")
    os.write(terminal, b"\x03")
    read_until(terminal, b"interrupted")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 4
    os.close(terminal)
    assert lease_of(alice, resource)["state"] == "free"


def test_at_a_terminal_ctrl_z_stops_both_and_fg_goes_on(alice, resource):
    script = "echo ready; read line; echo heard $line"
    pid, terminal = at_a_terminal(alice, "run", "--resource", resource, "--", "sh", "-c", script)
    read_until(terminal, b"ready")
    os.write(terminal, b"\x1a")
    _, status = os.waitpid(pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    os.kill(pid, signal.SIGCONT)
    os.write(terminal, b"again\n")
    read_until(terminal, b"heard again")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)


def test_the_default_holder_is_legal_however_long_the_names_are():
    from leasehub.cli.run import own_holder
    from leasehub.client.credentials import Credentials

    known = Credentials(url="http://x", token="t", principal="p" * 128, source="")
    holder = own_holder(known, None)
    assert len(holder) == 128
    assert holder.endswith(f":{os.getpid()}")


def test_a_refusal_names_the_holder_to_a_key_that_observes(alice, resource):
    process = alice.start("run", "--resource", resource, "--holder", "first", "--", "sleep", "60")
    try:
        until(lambda: lease_of(alice, resource)["state"] == "held")
        refused = alice("run", "--resource", resource, "--holder", "second", "--", "true")
        assert (refused.status, refused.said["code"], refused.said["holder"]) == (1, "held", "first")
    finally:
        process.terminate()
        process.wait(timeout=20)


def test_a_takeover_is_said_aloud(alice, resource):
    process = alice.start(
        "run", "--resource", resource, "--holder", "the-dead", "--ttl-seconds", "1", "--", "sleep", "60"
    )
    until(lambda: lease_of(alice, resource)["state"] == "held")
    process.kill()
    process.wait()
    until(lambda: lease_of(alice, resource)["state"] == "unknown")
    taken = alice("run", "--resource", resource, "--", "true")
    assert taken.status == 0
    assert "over: the lease of the-dead ran out" in taken.errors
