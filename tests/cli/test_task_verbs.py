"""The task verbs and queue status against a real server."""

import json
import signal
import threading
import time

import pytest

from tests.cli.conftest import until


@pytest.fixture
def queue():
    """A queue that no other test has."""
    return f"q-{time.time_ns()}"


def put(who, queue, *flags):
    outcome = who("task", "put", "--queue", queue, *flags)
    assert outcome.status == 0, outcome.errors
    return outcome.said["task_id"]


def claimed(who, queue, *flags):
    outcome = who("task", "claim", "--queue", queue, *flags)
    assert outcome.status == 0, outcome.errors
    return outcome.said


def of(claim):
    return ["--task", claim["task_id"], "--token", claim["fencing_token"]]


def state(who, task_id):
    return who("task", "show", "--task", task_id).said["state"]


def test_a_task_is_put_claimed_beaten_and_completed(alice, queue):
    put_answer = alice("task", "put", "--queue", queue, "--payload", '{"n": [1, "é"]}', "--max-attempts", "3")
    assert list(put_answer.said)[:4] == ["ok", "code", "task_id", "state"]
    assert (put_answer.said["code"], put_answer.said["state"]) == ("queued", "ready")
    claim = claimed(alice, queue, "--ttl-seconds", "60", "--holder", "muse-04")
    assert claim["code"] == "claimed"
    assert claim["task_id"] == put_answer.said["task_id"]
    assert (claim["payload"], claim["attempt"]) == ({"n": [1, "é"]}, 1)
    assert 0 < claim["expires_in_ms"] <= 60_000
    shown = alice("task", "show", "--task", claim["task_id"])
    assert shown.said["code"] == "shown"
    assert (shown.said["state"], shown.said["max_attempts"]) == ("leased", 3)
    assert shown.said["lease"]["holder"] == "muse-04"
    beaten = alice("task", "heartbeat", *of(claim), "--ttl-seconds", "120")
    assert (beaten.status, beaten.said["code"]) == (0, "refreshed")
    assert beaten.said["expires_in_ms"] > 60_000
    done = alice("task", "complete", *of(claim), "--result", '{"ok": 1}')
    assert (done.status, done.said["code"], done.said["state"]) == (0, "completed", "done")
    assert alice("task", "show", "--task", claim["task_id"]).said["result"] == {"ok": 1}
    again = alice("task", "complete", *of(claim))
    assert (again.status, again.said["code"]) == (1, "lease_lost")


def test_nothing_to_claim_is_a_refusal_even_after_a_wait(alice, queue):
    for flags in [], ["--wait-seconds", "1"]:
        began = time.monotonic()
        outcome = alice("task", "claim", "--queue", queue, *flags)
        assert (outcome.status, outcome.said["code"]) == (1, "empty")
        assert queue in outcome.said["message"]
        assert time.monotonic() - began >= (1 if flags else 0)


def test_one_who_waits_gets_what_is_put_meanwhile(alice, queue):
    waiting = alice.start("task", "claim", "--queue", queue, "--wait-seconds", "30", stdout=-1, text=True)
    time.sleep(0.5)
    task_id = put(alice, queue)
    text, _ = waiting.communicate(timeout=30)
    assert json.loads(text)["task_id"] == task_id


def test_several_are_claimed_at_once(alice, queue):
    tasks = [put(alice, queue, "--payload", str(n)) for n in range(3)]
    claims = claimed(alice, queue, "--count", "5")["claims"]
    assert [(claim["task_id"], claim["payload"]) for claim in claims] == list(zip(tasks, range(3), strict=True))


def test_priority_goes_first_and_a_delay_holds_back(alice, queue):
    low = put(alice, queue, "--priority", "-5")
    high = put(alice, queue, "--priority=5")
    put(alice, queue, "--priority", "9", "--delay-seconds", "3600")
    assert [claimed(alice, queue)["task_id"] for _ in range(2)] == [high, low]
    assert alice("task", "claim", "--queue", queue).said["code"] == "empty"


def test_a_live_task_with_the_key_answers_a_second_put(alice, queue):
    first = put(alice, queue, "--dedupe-key", "nightly")
    second = alice("task", "put", "--queue", queue, "--dedupe-key", "nightly").said
    assert (second["task_id"], second["deduplicated"]) == (first, True)


def test_a_failed_task_is_ready_again_and_a_final_one_is_dead_until_it_is_retried(alice, operator, queue):
    task_id = put(alice, queue)
    failed = alice("task", "fail", *of(claimed(alice, queue)), "--error", "no disk", "--retry-in-seconds", "0")
    assert (failed.status, failed.said["code"], failed.said["state"]) == (0, "failed", "ready")
    claim = claimed(alice, queue)
    assert claim["attempt"] == 2
    final = alice("task", "fail", *of(claim), "--error", "no hope", "--final")
    assert final.said["state"] == "dead"
    assert alice("task", "show", "--task", task_id).said["error"] == "no hope"
    assert alice("task", "retry", "--task", task_id).said["code"] == "forbidden"
    retried = operator("task", "retry", "--task", task_id)
    assert (retried.status, retried.said["code"], retried.said["state"]) == (0, "queued", "ready")


def test_a_task_given_back_is_anothers_to_claim(alice, bob, queue):
    task_id = put(alice, queue)
    claim = claimed(alice, queue)
    returned = alice("task", "return", *of(claim))
    assert (returned.status, returned.said["code"]) == (0, "returned")
    second = claimed(bob, queue)
    assert second["task_id"] == task_id
    assert second["fencing_token"] > claim["fencing_token"]
    for verb, flags in ("heartbeat", []), ("complete", []), ("fail", ["--error", "x"]), ("return", []):
        stale = alice("task", verb, *of(claim), *flags)
        assert stale.status == 1, verb
        assert stale.said["code"] in ("lease_lost", "not_found", "stale_token")
    assert state(bob, task_id) == "leased"


def test_queue_status_is_of_one_or_of_all(alice, queue):
    put(alice, queue)
    put(alice, queue, "--delay-seconds", "60")
    claimed(alice, queue)
    one = alice("queue", "status", "--queue", queue)
    assert (one.status, one.said["code"]) == (0, "shown")
    assert {name: one.said[name] for name in ("queue", "ready", "delayed", "leased", "dead")} == {
        "queue": queue,
        "ready": 0,
        "delayed": 1,
        "leased": 1,
        "dead": 0,
    }
    every = alice("queue", "status")
    assert every.said["code"] == "listed"
    assert queue in [entry["queue"] for entry in every.said["queues"]]
    assert alice("queue", "status", "--queue", f"{queue}-not").said["code"] == "not_found"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["put"], "--queue"),
        (["put", "--queue", "q", "--payload", "{"], "--payload"),
        (["put", "--queue", "q", "--payload", "[" * 100_000], "--payload"),
        (["put", "--queue", "q", "--priority", "high"], "--priority"),
        (["put", "--queue", "q", "--priority", "--5"], "--priority"),
        (["put", "--queue", "q", "--max-attempts", "0"], "max_attempts"),
        (["put", "--queue", "", "--payload", "1"], "queue"),
        (["claim", "--queue", "q", "--count", "0"], "--count"),
        (["claim", "--queue", "q", "--wait-seconds", "-1"], "--wait-seconds"),
        (["claim", "--queue", "q", "--holder", "a b"], "holder"),
        (["heartbeat", "--task", "t"], "--token"),
        (["complete", "--task", "t", "--token", "T1"], "--token"),
        (["fail", "--task", "t", "--token", "1"], "--error"),
        (["return", "--task", "t", "--token", "0"], "--token"),
        (["show"], "--task"),
    ],
)
def test_a_wrong_value_is_a_usage_error_that_names_it(alice, arguments, named):
    outcome = alice("task", *arguments)
    assert outcome.status == 2, outcome.text
    assert outcome.said["code"] == "usage"
    assert named in outcome.said["message"]


def test_what_is_not_there_is_not_found(alice):
    for verb, flags in ("show", []), ("complete", ["--token", "1"]), ("return", ["--token", "1"]):
        assert alice("task", verb, "--task", "t_" + "0" * 32, *flags).said["code"] == "not_found"


def waiting_for_a_task(faulty, fake):
    """One whose call waits at the server until the event that is answered is set: then it gets what is there."""
    answers = threading.Event()

    def wait_at_the_server(handler):
        if handler.path == "/v1/leases/hot-claim":
            answers.wait(20)
        return False

    fake.faults.append(wait_at_the_server)
    flags = ["--queue", "q", "--holder", "h", "--wait-seconds", "20"]
    process = faulty.start("task", "claim", *flags, stdout=-1, stderr=-1, text=True)
    until(lambda: fake.seen)
    return process, answers


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_claim_that_comes_after_the_signal_is_given_back(faulty, fake, number):
    process, answers = waiting_for_a_task(faulty, fake)
    process.send_signal(number)
    time.sleep(0.2)
    fake.leases.tasks.append("late")
    answers.set()
    text, errors = process.communicate(timeout=30)
    assert (process.returncode, json.loads(text)["code"]) == (128 + number, "interrupted")
    assert signal.Signals(number).name in errors
    assert fake.leases.tasks == []
    assert [seen[0] for seen in fake.seen] == ["POST", "DELETE"]
    assert fake.leases.rows == {}


def test_of_several_claims_each_is_given_back(faulty, fake):
    def several(handler):
        if handler.path != "/v1/leases/hot-claim":
            return False
        answers.wait(20)
        claims = [fake.leases.claim("alice", handler.body) for _ in range(3)]
        handler.reply(200, {"claims": claims})
        return True

    answers = threading.Event()
    fake.leases.tasks += [1, 2, 3]
    fake.faults.append(several)
    flags = ["--queue", "q", "--holder", "h", "--count", "3"]
    process = faulty.start("task", "claim", *flags, stdout=-1, stderr=-1, text=True)
    until(lambda: fake.seen)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    answers.set()
    text, _ = process.communicate(timeout=30)
    assert json.loads(text)["code"] == "interrupted"
    assert len([seen for seen in fake.seen if seen[0] == "DELETE"]) == 3
    assert fake.leases.rows == {}


def test_a_signal_ends_a_wait_without_a_claim_and_asks_no_more(faulty, fake):
    process, answers = waiting_for_a_task(faulty, fake)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    answers.set()
    text, _ = process.communicate(timeout=30)
    assert (process.returncode, json.loads(text)["code"]) == (128 + signal.SIGTERM, "interrupted")
    assert len(fake.seen) == 1


def test_no_call_waits_long_for_one_who_may_be_dead(faulty, fake):
    """The server may give a task to a call whose process has been killed meanwhile."""
    process, answers = waiting_for_a_task(faulty, fake)
    fake.leases.tasks.append(1)
    answers.set()
    process.communicate(timeout=30)
    assert fake.seen[0][3]["wait_seconds"] == 5


def test_an_interrupted_wait_takes_no_task_of_a_real_server(alice, bob, queue):
    process = alice.start("task", "claim", "--queue", queue, "--wait-seconds", "20", stdout=-1, stderr=-1, text=True)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    task_id = put(bob, queue)
    text, errors = process.communicate(timeout=30)
    assert (process.returncode, json.loads(text)["code"]) == (130, "interrupted"), errors
    assert claimed(bob, queue)["task_id"] == task_id
