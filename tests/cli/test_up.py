"""leasehub up as a supervisor, over stand-ins for what it starts; and with the real server where that matters."""

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess

import pytest

from tests.cli.conftest import ROOT, CommandLine, free_port, is_alive, until

pytestmark = pytest.mark.processes


class Server:
    def __init__(self, command_line, data, *flags):
        self.port = free_port()
        self.data = data
        self.process = command_line.start(
            "up",
            "--data",
            data,
            "--port",
            self.port,
            *flags,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def said(self):
        return json.loads(self.process.stdout.readline())

    def ended(self):
        text, errors = self.process.communicate(timeout=60)
        return self.process.returncode, text, errors

    def workers(self):
        """The pids of each worker that was started, with its child's."""
        file = self.data / "started"
        lines = file.read_text().splitlines() if file.exists() else []
        return [tuple(map(int, line.split())) for line in lines]

    def listens(self):
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.fixture
def stand_ins(tmp_path):
    path = f"{ROOT / 'tests' / 'cli' / 'stand_ins'}:{ROOT}"
    return CommandLine(tmp_path, {"PYTHONPATH": path})


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


@pytest.fixture
def start(stand_ins, data):
    servers = []

    def start(*flags, command_line=stand_ins):
        servers.append(Server(command_line, data, *flags))
        return servers[-1]

    yield start
    for server in servers:
        if server.process.poll() is None:
            server.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.process.wait(30)
            server.process.kill()
        server.process.stdout.close()
        server.process.stderr.close()


def test_it_says_once_when_it_is_ready_and_stops_cleanly(start, data):
    server = start()
    said = server.said()
    assert said == {
        "ok": True,
        "code": "ready",
        "url": f"http://127.0.0.1:{server.port}",
        "organization": "main",
        "principal": "admin",
        "credentials": str(data / "credentials.json"),
        "admin_user": "admin",
        "first_run": True,
    }
    [pids] = until(server.workers)
    server.process.send_signal(signal.SIGINT)
    status, text, errors = server.ended()
    assert status == 0
    assert text == ""
    assert "ready at" in errors
    assert not any(map(is_alive, pids))
    assert not server.listens()


def test_a_database_that_was_set_up_elsewhere_is_not_said_to_have_its_credentials_here(start, data):
    (data / "set_up_elsewhere").touch()
    server = start()
    said = server.said()
    assert (said["code"], said["credentials"], said["admin_user"]) == ("ready", None, None)
    server.process.terminate()
    _, _, errors = server.ended()
    assert "None" not in errors
    assert f"export LEASEHUB_URL=http://127.0.0.1:{server.port} LEASEHUB_TOKEN=" in errors


def test_the_data_folder_is_the_flags_else_the_environments(stand_ins, data, tmp_path):
    environment = {"LEASEHUB_DATA": str(data)}
    (data / "broken").touch()
    assert stand_ins("up", "--port", free_port(), environment=environment).status == 3
    assert (data / "up.lock").exists()
    assert not (tmp_path / ".leasehub").exists()
    other = tmp_path / "other"
    other.mkdir()
    (other / "wrong_setting").touch()
    assert stand_ins("up", "--data", other, "--port", free_port(), environment=environment).status == 2
    assert (other / "up.lock").exists()


def test_a_second_one_on_the_same_folder_is_refused(start):
    server = start()
    server.said()
    second = start()
    status, text, _ = second.ended()
    assert status == 1
    assert json.loads(text)["code"] == "already_running"
    # Once the first has gone, the folder is free.
    server.process.terminate()
    server.ended()
    assert start().said()["code"] == "ready"


def test_a_port_in_use_stops_it_before_anything_is_started(start, stand_ins, data):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        outcome = stand_ins("up", "--data", data, "--port", port)
    assert (outcome.status, outcome.said["code"]) == (2, "usage")
    assert f"port {port}" in outcome.said["message"]
    assert "--port" in outcome.said["message"]
    assert not (data / "started").exists()


def test_a_wrong_setting_is_a_usage_error_with_its_sentence(stand_ins, data):
    (data / "wrong_setting").touch()
    outcome = stand_ins("up", "--data", data, "--port", free_port())
    assert outcome.status == 2
    assert outcome.said["message"] == "LEASEHUB_X must be a number."
    assert "Traceback" not in outcome.errors


def test_a_set_up_that_fails_is_said(stand_ins, data):
    (data / "broken").touch()
    outcome = stand_ins("up", "--data", data, "--port", free_port())
    assert outcome.status == 3
    assert "the disk is full" in outcome.said["message"]


@pytest.mark.parametrize("name", ["LEASEHUB_WEB_WORKERS", "LEASEHUB_WEB_THREADS"])
def test_a_wrong_number_in_the_environment_is_named(stand_ins, data, name):
    outcome = stand_ins("up", "--data", data, environment={name: "many"})
    assert outcome.status == 2
    assert name in outcome.said["message"]


def test_a_child_that_dies_is_started_again_and_its_own_children_are_gone(start):
    server = start()
    server.said()
    [(worker, grandchild)] = until(server.workers)
    os.kill(worker, signal.SIGKILL)
    until(lambda: len(server.workers()) == 2)
    until(lambda: not is_alive(grandchild))
    assert is_alive(server.workers()[1][0])


def test_a_child_that_never_lives_ends_it_all(start, data):
    (data / "dies").touch()
    (data / "silent").touch()
    server = start()
    status, text, errors = server.ended()
    assert status == 3
    assert "the worker does not start" in json.loads(text)["message"]
    assert "ended with status 5" in errors
    assert len(server.workers()) == 3
    assert not any(is_alive(pid) for pids in server.workers() for pid in pids)


def test_kill_9_leaves_no_process_behind(start):
    server = start()
    server.said()
    [pids] = until(server.workers)
    server.process.kill()
    server.ended()
    until(lambda: not any(map(is_alive, pids)))
    until(lambda: not server.listens())


def test_a_child_that_heeds_no_signal_is_killed(start, data):
    (data / "stubborn").touch()
    server = start()
    server.said()
    [pids] = until(server.workers)
    server.process.terminate()
    until(lambda: not server.listens())
    # A second signal does not wait for the rest of the patience.
    server.process.terminate()
    assert server.ended()[0] == 0
    assert not any(map(is_alive, pids))


def test_the_real_server_keeps_its_secrets_and_its_data_over_a_restart(start, data):
    real = CommandLine(data.parent, {})
    server = start(command_line=real)
    said = server.said()
    assert said["first_run"] is True
    credentials = data / "credentials.json"
    assert stat.S_IMODE(credentials.stat().st_mode) == 0o600
    secret = json.loads(credentials.read_text())
    assert secret["token"] not in json.dumps(said)
    alice = CommandLine(data.parent, {"LEASEHUB_CREDENTIALS": str(credentials)})
    token = alice("lease", "acquire", "--kind", "k", "--ttl", "5").said["record"]["token"]
    server.process.terminate()
    status, _, errors = server.ended()
    assert status == 0
    assert secret["token"] not in errors
    assert secret["admin_password"] not in errors
    again = start(command_line=real)
    assert again.said()["first_run"] is False
    outcome = alice("lease", "heartbeat", "--kind", "k", "--token", token)
    assert outcome.said["code"] == "refreshed", outcome.errors


def test_another_organization_is_made_from_the_same_folder(server, tmp_path):
    here = CommandLine(server["folder"], {})
    outcome = here("org", "create", f"org-{tmp_path.name}")
    assert outcome.status == 0, outcome.errors
    assert outcome.said["code"] == "created"
    key = outcome.said.get("token") or outcome.said.get("api_key")
    other = CommandLine(tmp_path, {"LEASEHUB_URL": server["url"], "LEASEHUB_TOKEN": key})
    assert other("whoami").said["organization"] == f"org-{tmp_path.name}"
    again = here("org", "create", f"org-{tmp_path.name}")
    assert again.status == 1
    assert again.said["code"] == "conflict"
    nowhere = CommandLine(tmp_path, {})("org", "create", "x")
    assert nowhere.status == 2
    assert not (tmp_path / ".leasehub").exists()
    for folder in (tmp_path / "none", tmp_path):
        named = CommandLine(tmp_path, {"LEASEHUB_DATA": str(folder)})("org", "create", "x")
        assert named.status == 2, named.errors
        assert f"there is no database in {folder}" in named.said["message"]
    assert not list(tmp_path.iterdir())
