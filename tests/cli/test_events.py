"""leasehub events list|tail against a real server."""

import json
import signal
import subprocess
import time

import pytest

from tests.cli.conftest import until
from tests.cli.test_lease_verbs import acquired
from tests.cli.test_run import hang_up

pytestmark = pytest.mark.processes


class Tail:
    """A running tail, and what it has printed so far."""

    def __init__(self, who, folder, *flags, verb="tail"):
        self.out, self.errors = folder / "out", folder / "errors"
        with self.out.open("w") as out, self.errors.open("w") as errors:
            self.process = who.start("events", verb, *flags, stdout=out, stderr=errors)

    def resources(self):
        return [json.loads(line)["resource_id"] for line in self.out.read_text().splitlines()]

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.process.wait(timeout=30)


def test_the_events_of_a_resource_are_listed_in_pages(alice, kind):
    token = acquired(alice, kind)["token"]
    alice("lease", "release", "--kind", kind, "--token", token)
    flags = ["--resource", f"kind/{kind}"]
    outcome = alice("events", "list", *flags)
    assert (outcome.status, list(outcome.said)) == (0, ["ok", "code", "events", "next", "cursor"])
    assert [event["type"] for event in outcome.said["events"]] == ["lease.acquired", "lease.released"]
    first = alice("events", "list", *flags, "--limit", "1").said
    rest = alice("events", "list", *flags, "--after", first["next"]).said
    assert [event["type"] for event in rest["events"]] == ["lease.released"]
    some = alice("events", "list", *flags, "--types", "lease.released,lease.reaped").said
    assert [event["type"] for event in some["events"]] == ["lease.released"]


@pytest.mark.parametrize(
    "flags", [["--types", "lease.frobbed"], ["--after", "x"], ["--limit", "0"], ["--resource", "x"]]
)
def test_a_wrong_filter_is_a_usage_error(alice, flags):
    outcome = alice("events", "list", *flags)
    assert (outcome.status, outcome.said["code"]) == (2, "usage")


def test_tail_prints_what_comes_one_event_a_line_and_nothing_older(alice, kind, tmp_path):
    acquired(alice, f"{kind}-old")
    tail = Tail(alice, tmp_path, "--types", "lease.acquired")
    # From which moment on it tells is its own affair; from then on it tells all.
    begun = until(lambda: acquired(alice, f"{kind}-{time.time_ns()}") and tail.resources())
    later = [f"{kind}-a", f"{kind}-b"]
    for name in later:
        acquired(alice, name)
    until(lambda: later[1] in tail.resources())
    told = tail.resources()
    assert told[: len(begun)] == begun
    assert told[-2:] == later
    assert len(set(told)) == len(told)
    assert f"{kind}-old" not in told
    assert tail.end() == 128 + signal.SIGTERM
    assert tail.errors.read_text() == ""


def test_events_are_found_by_type_and_holder_under_either_name(alice, kind):
    token = acquired(alice, kind)["token"]
    alice("lease", "release", "--kind", kind, "--token", token)
    flags = ["--resource", f"kind/{kind}"]
    for name in ("--type", "--types"):
        some = alice("events", "list", *flags, name, "lease.released").said
        assert [event["type"] for event in some["events"]] == ["lease.released"]
    [event, _] = alice("events", "list", *flags, "--holder", some["events"][0]["holder"]).said["events"]
    assert event["type"] == "lease.acquired"
    assert alice("events", "list", *flags, "--holder", "nobody").said["events"] == []
    twice = alice("events", "list", "--type", "lease.released", "--types", "lease.released")
    assert (twice.status, twice.said["code"]) == (2, "usage")


def test_a_list_can_be_followed_and_begins_at_the_beginning(alice, kind, tmp_path):
    acquired(alice, f"{kind}-old")
    flags = ["--resource", f"kind/{kind}-old", "--follow"]
    listed = Tail(alice, tmp_path, *flags, verb="list")
    until(lambda: listed.resources() == [f"{kind}-old"])
    assert listed.end() == 128 + signal.SIGTERM
    refused = alice("events", "list", "--follow", "--limit", "1")
    assert (refused.status, refused.said["code"]) == (2, "usage")


def test_a_signal_ends_a_tail_that_waits_for_the_server(alice, kind, tmp_path):
    acquired(alice, kind)
    tail = Tail(alice, tmp_path, "--follow", "--after", "0", "--resource", f"kind/{kind}")
    until(lambda: tail.resources() == [kind])
    # By now, or soon, it waits for the next.
    time.sleep(0.5)
    began = time.monotonic()
    assert tail.end(signal.SIGINT) == 128 + signal.SIGINT
    # Far from the 25 s that the server is asked to wait.
    assert time.monotonic() - began < 20
    assert tail.errors.read_text() == ""


def test_tail_goes_on_from_a_cursor_and_an_events_position_is_one(alice, kind, tmp_path):
    tokens = [acquired(alice, kind)["token"]]
    flags = ["--resource", f"kind/{kind}"]
    alice("lease", "release", "--kind", kind, "--token", tokens[0])
    [first, _] = alice("events", "list", *flags).said["events"]
    tail = Tail(alice, tmp_path, *flags, "--after", first["position"])
    until(tail.resources)
    assert [json.loads(line)["type"] for line in tail.out.read_text().splitlines()] == ["lease.released"]
    assert tail.end(signal.SIGINT) == 128 + signal.SIGINT


def test_tail_ends_when_nobody_reads_any_more(alice, kind):
    acquired(alice, kind)
    process = alice.start("events", "tail", "--after", "0", stdout=subprocess.PIPE)
    assert json.loads(process.stdout.readline())["event_id"]
    process.stdout.close()
    until(lambda: acquired(alice, f"{kind}-{time.time_ns()}") and process.poll() is not None)
    assert process.returncode == 0


def test_tail_outlives_an_outage_once_it_has_begun(faulty, fake, tmp_path):
    fake.faults.append(hang_up)
    outcome = faulty("events", "tail")
    assert (outcome.status, outcome.said["code"]) == (3, "unreachable")
    fake.faults.clear()
    fake.leases.events.append({"position": 1, "resource_id": "before"})
    tail = Tail(faulty, tmp_path, "--after", "0")
    until(lambda: tail.resources() == ["before"])
    fake.faults.append(hang_up)
    until(lambda: "away" in tail.errors.read_text())
    fake.leases.events.append({"position": 2, "resource_id": "after"})
    fake.faults.clear()
    until(lambda: tail.resources() == ["before", "after"])
    tail.end()
