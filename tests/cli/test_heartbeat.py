"""The heartbeat's decisions, with answers made by hand."""

import json
import subprocess
import sys
import threading
import time

import pytest

from leasehub.cli import run
from leasehub.client.clock import boot_clock
from leasehub.client.failures import Refused, Unreachable
from leasehub.client.heartbeat import LOST, Deadline, Heartbeats, Kept
from tests.cli.conftest import until


class Answers:
    """A connection that answers with what the list says, then beats on for ever."""

    def __init__(self, *answers, seconds=0.0):
        self.left = list(answers)
        self.seconds = seconds
        self.timeout = None
        self.calls = []

    def call(self, method, path, body, **more):
        self.calls.append((boot_clock(), path, body))
        time.sleep(self.seconds)
        answer = self.left.pop(0) if self.left else {"expires_in_ms": 60_000}
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self):
        pass


class Beating:
    def __init__(self, connection, *, ttl_seconds=0.8, deadline=None):
        self.lost, self.renewed = [], []
        self.heartbeats = Heartbeats(connection)
        self.kept = Kept(
            lease_id="lease_1",
            fencing_token=7,
            ttl_seconds=ttl_seconds,
            deadline=deadline or Deadline(sent_at=boot_clock(), seconds=60),
            on_lost=self.lost.append,
            on_renewed=self.renewed.append,
        )
        self.heartbeats.keep(self.kept)
        self.thread = self.heartbeats._thread

    def ended(self):
        self.thread.join(5)
        assert not self.thread.is_alive()


def beating(connection, **more):
    beats = Beating(connection, **more)
    return beats, beats.lost, beats.renewed


def finished(beats):
    beats.heartbeats.drop(beats.kept)
    beats.ended()


def test_a_deadline_keeps_time_back_for_the_killing():
    for seconds in (1, 10, 120, 86400):
        deadline = Deadline(sent_at=100.0, seconds=seconds)
        assert 100.0 < deadline.term_at < deadline.kill_at < 100.0 + seconds


def test_it_beats_eight_times_in_a_ttl_and_names_the_acquisition():
    connection = Answers()
    heartbeat, lost, renewed = beating(connection)
    until(lambda: len(renewed) >= 3)
    finished(heartbeat)
    assert lost == []
    (first, path, body), (second, _, _) = connection.calls[:2]
    assert path == "/v1/leases/lease_1/heartbeat"
    assert body == {"fencing_token": 7}
    assert second - first >= 0.1


def test_the_new_deadline_counts_from_when_the_beat_was_sent():
    connection = Answers(seconds=0.3)
    heartbeat, _, renewed = beating(connection)
    until(lambda: renewed)
    finished(heartbeat)
    sent_at = connection.calls[0][0]
    assert renewed[0].kill_at <= Deadline(sent_at=sent_at, seconds=0.8).kill_at
    assert renewed[0].kill_at == heartbeat.kept.deadline.kill_at or len(renewed) > 1


def test_a_lease_that_the_server_cuts_short_has_a_shorter_deadline():
    connection = Answers({"expires_in_ms": 300})
    heartbeat, _, renewed = beating(connection)
    until(lambda: renewed)
    finished(heartbeat)
    assert renewed[0].kill_at <= connection.calls[0][0] + 0.3


@pytest.mark.parametrize("reason", LOST)
def test_what_confirms_the_loss_ends_it_at_once(reason):
    refused = Refused(reason, "gone", {})
    connection = Answers(refused)
    heartbeat, lost, renewed = beating(connection)
    until(lambda: lost)
    heartbeat.ended()
    assert lost == [refused]
    assert renewed == []
    assert len(connection.calls) == 1


def test_whatever_else_goes_wrong_is_tried_again():
    faults = [Unreachable("x"), Refused("QUOTA_EXCEEDED", "x", {}), Refused("FORBIDDEN", "x", {})]
    connection = Answers(*faults)
    heartbeat, lost, renewed = beating(connection)
    until(lambda: renewed)
    finished(heartbeat)
    assert lost == []
    assert len(connection.calls) >= 4


def test_no_beat_is_sent_once_the_deadline_has_passed():
    connection = Answers()
    heartbeat, lost, _ = beating(connection, deadline=Deadline(sent_at=boot_clock() - 100, seconds=60))
    heartbeat.ended()
    assert lost == [None]
    assert connection.calls == []


def test_a_beat_of_a_long_lease_is_waited_for_no_longer_than_a_short_one_can_bear():
    connection = Answers()
    beats, _, renewed = beating(connection, ttl_seconds=3600)
    short = Kept(
        lease_id="lease_2",
        fencing_token=8,
        ttl_seconds=10,
        deadline=Deadline(sent_at=boot_clock(), seconds=10),
        on_lost=lambda refused: None,
    )
    beats.heartbeats.keep(short)
    beats.kept.next_at = 0
    until(lambda: renewed)
    beats.heartbeats.drop(short)
    finished(beats)
    assert connection.timeout <= 10 / 8


class FirstAnswerLost:
    def __init__(self):
        self.sent = []

    def call(self, method, path, body, *, key):
        self.sent.append((boot_clock(), key))
        if len(self.sent) == 1:
            raise Unreachable("broke off", sent=True)
        return {"lease_id": "lease_1", "fencing_token": 1, "expires_at": "x", "expires_in_ms": 60_000}


class NoSignals:
    received = ()

    def wait(self, seconds):
        return threading.Event().wait(seconds)


def test_an_acquisitions_deadline_counts_from_its_first_attempt_whose_answer_was_lost():
    connection = FirstAnswerLost()
    held = run._acquire(connection, {}, 60, 5.0, NoSignals())
    (first, key), (second, same) = connection.sent
    assert key == same
    assert held.deadline.kill_at <= Deadline(sent_at=first, seconds=60).kill_at
    assert held.deadline.kill_at < Deadline(sent_at=second, seconds=60).kill_at


def test_a_fault_of_its_own_ends_the_command_before_the_lease_is_released(faulty, fake, tmp_path):
    """The supervision is made to break while the command runs."""
    script = (
        "import sys; from leasehub.cli import main, supervision\n"
        "def broken(self): self.heartbeats.keep(self.kept); raise RuntimeError('broken')\n"
        "supervision.Supervision.supervise = broken\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    alive = []

    def releasing(handler):
        if handler.command == "DELETE":
            alive.append(subprocess.run(["pgrep", "-f", "^sleep 298765"], check=False).returncode == 0)
        return False

    fake.faults.append(releasing)
    ran = subprocess.run(
        [sys.executable, "-P", "-c", script, "run", "--resource", "a/b", "--", "sleep", "298765"],
        env=faulty.environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 3
    assert json.loads(ran.stdout)["code"] == "internal"
    assert alive == [False]
    assert fake.leases.rows == {}


@pytest.mark.parametrize(("ttl_seconds", "seconds"), [(1, 0.125), (60, 7.5), (900, 10), (86400, 10)])
def test_what_an_operator_ended_is_known_within_seconds_however_long_the_lease(ttl_seconds, seconds):
    deadline = Deadline(sent_at=boot_clock(), seconds=ttl_seconds)
    kept = Kept(lease_id="l", fencing_token=1, ttl_seconds=ttl_seconds, deadline=deadline, on_lost=print)
    assert kept.interval == seconds
