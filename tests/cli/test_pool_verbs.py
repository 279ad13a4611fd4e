"""The pool verbs against a real server and its worker: flags, members, their order, codes and exit statuses."""

import json
import signal
import subprocess
import time

import pytest

from leasehub.cli.flags import read
from leasehub.cli.ticket import patience_of
from tests.cli.conftest import free_port, until
from tests.cli.test_run import ended, hang_up
from tests.cli.test_wire import dropping

GRANT = ["ok", "state", "request_id", "mode", "slot_id", "kind", "owner", "token", "ttlMinutes", "attrs"]
SLOTS = [{"id": 1, "port": 4000}, {"id": 2, "port": 4001}]


class Pool:
    def __init__(self, operator, folder):
        self.operator = operator
        self.folder = folder
        self.file = folder / "pool.json"
        self.name = f"p-{time.time_ns()}"

    def apply(self, **members):
        self.file.write_text(json.dumps({"name": self.name, "slots": SLOTS, **members}))
        outcome = self.operator("pool", "apply", self.file)
        assert outcome.status == 0, outcome.errors
        return self

    def __call__(self, who, verb, *flags, **more):
        return who("pool", verb, "--pool", self.name, *flags, **more)

    def start(self, who, verb, *flags):
        return who.start(
            "pool",
            verb,
            "--pool",
            self.name,
            *flags,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def acquired(self, who, *flags):
        outcome = self(who, "acquire", "--no-wait", *flags)
        assert outcome.status == 0, (outcome.text, outcome.errors)
        return outcome.said

    def status(self):
        return self(self.operator, "status").said

    def queue(self):
        return [entry["owner"] for entry in self.status()["queue"]]


@pytest.fixture
def pool(operator, tmp_path):
    return Pool(operator, tmp_path)


@pytest.fixture
def one_slot(pool):
    return pool.apply(slots=[{"id": 1}])


def of(grant):
    return ["--slot", grant["slot_id"], "--token", grant["token"]]


def test_a_pool_file_is_applied_and_shown(pool, operator, server):
    pool.file.write_text(json.dumps({"name": pool.name, "slots": SLOTS}))
    applied = operator("pool", "apply", pool.file).said
    assert list(applied) == ["ok", "code", "pool", "status"]
    assert (applied["code"], applied["pool"]) == ("applied", pool.name)
    status = pool.status()
    assert list(status) == ["ok", "store", "poolDir", "slots", "queue", "movingAvgMs"]
    assert status == applied["status"]
    assert status["store"] == server["url"]
    assert status["slots"][1] == {
        "slot_id": 2,
        "kind": "slot-2",
        "attrs": {"port": 4001},
        "state": "free",
        "holder": None,
        "expiresAt": None,
    }
    assert (status["queue"], status["movingAvgMs"]) == ([], 480_000)


def test_applying_is_the_operators_and_an_unknown_member_is_named(pool, alice, operator):
    pool.file.write_text(json.dumps({"slots": SLOTS, "name": pool.name, "provison": "true"}))
    wrong = operator("pool", "apply", pool.file)
    assert (wrong.status, wrong.said["code"]) == (2, "usage")
    assert "provison" in wrong.said["message"]
    pool.file.write_text(json.dumps({"slots": SLOTS, "name": pool.name}))
    assert alice("pool", "apply", pool.file).said["code"] == "forbidden"


def test_a_grant_has_the_contracts_members_in_their_order(pool, alice):
    pool.apply(grantEnv={"APP_PORT": "{port}"}, grantFields={"url": "http://host:{port}"}, ttlMinutes=5)
    outcome = pool(alice, "acquire", "--session", "s1")
    grant = outcome.said
    assert list(grant) == [*GRANT, "url", "env", "grantedAt"]
    assert {name: grant[name] for name in ("ok", "state", "mode", "slot_id", "kind", "owner", "ttlMinutes")} == {
        "ok": True,
        "state": "ready",
        "mode": "blocking",
        "slot_id": 1,
        "kind": "slot-1",
        "owner": "alice",
        "ttlMinutes": 5,
    }
    assert type(grant["token"]) is int
    assert (grant["attrs"], grant["url"], grant["env"]) == ({"port": 4000}, "http://host:4000", {"APP_PORT": "4000"})
    # Nothing is said of a queue in which nobody waited.
    assert outcome.errors == ""
    held = pool.status()["slots"][0]
    assert (held["state"], held["holder"]) == ("held", "alice")
    assert str(grant["token"]) not in json.dumps(pool.status())


@pytest.mark.parametrize("how", ["name", "file", "environment", "file in the environment"])
def test_the_pool_is_named_or_its_file_is(pool, alice, how):
    pool.apply()
    flags, environment = [], {}
    named = str(pool.file) if "file" in how else pool.name
    if "environment" in how:
        environment["LEASE_POOL_FILE"] = named
    else:
        flags = ["--pool", named]
    assert alice("pool", "acquire", *flags, environment=environment).said["slot_id"] == 1


@pytest.mark.parametrize(
    ("flags", "content", "message"),
    [
        ([], None, "no pool file"),
        (["--pool", ""], None, "no pool file"),
        (["--pool", "./gone.json"], None, "cannot read pool file"),
        (["--pool", "./p.json"], "{", "not valid JSON"),
        (["--pool", "./p.json"], "[]", "JSON object"),
        (["--pool", "./p.json"], '{"name": "A B"}', 'invalid pool "name"'),
        (["--pool", "A B"], None, "neither"),
        (["--pool", "p", "--poll-ms", "0"], None, "--poll-ms"),
        (["--pool", "p", "--ttl", "0"], None, "--ttl"),
        (["--pool", "p", "--wait-ms", "-1"], None, "--wait-ms"),
        (["--pool", "p", "--selector", "[1]"], None, "--selector"),
        (["--pool", "p", "--count", "0"], None, "--count"),
        (["--pool", "p", "--store", "x"], None, "--store"),
    ],
)
def test_a_wrong_command_line_names_what_is_wrong(alice, tmp_path, flags, content, message):
    if content is not None:
        (tmp_path / "p.json").write_text(content)
    outcome = alice("pool", "acquire", *flags, cwd=tmp_path)
    assert (outcome.status, outcome.said["code"]) == (2, "usage")
    assert message in outcome.said["message"]


@pytest.mark.parametrize(
    ("name", "value"), [("POOL_TTL_MINUTES", "abc"), ("POOL_POLL_MS", "abc"), ("POOL_POLL_MS", "0")]
)
def test_a_wrong_value_in_the_environment_is_named_too(alice, name, value):
    outcome = alice("pool", "acquire", "--pool", "p", environment={name: value})
    assert outcome.status == 2
    assert name in outcome.said["message"]


def test_the_ttl_comes_from_the_flag_else_the_environment_else_the_pool(pool, alice):
    pool.apply(slots=[{"id": n} for n in range(3)], ttlMinutes=7)
    minutes = {"POOL_TTL_MINUTES": "5"}
    granted = [
        pool(alice, "acquire", *flags, environment=environment).said["ttlMinutes"]
        for flags, environment in ((["--ttl", "3"], minutes), ([], minutes), ([], {}))
    ]
    assert granted == [3, 5, 7]


def test_without_a_wait_a_full_pool_is_saturated(one_slot, alice, bob):
    one_slot.acquired(alice)
    outcome = one_slot(bob, "acquire", "--no-wait")
    assert outcome.status == 1
    assert outcome.said == {"ok": False, "code": "saturated", "position": 1, "etaMs": 480_000}
    assert one_slot.queue() == []


def test_a_wait_that_is_over_is_a_timeout_and_leaves_the_queue(one_slot, alice, bob):
    one_slot.acquired(alice)
    outcome = one_slot(bob, "acquire", "--wait-ms", "300")
    assert outcome.status == 1
    assert list(outcome.said) == ["ok", "code", "request_id", "position", "etaMs", "waitedMs"]
    assert {**outcome.said, "request_id": None} == {
        "ok": False,
        "code": "timeout",
        "request_id": None,
        "position": 1,
        "etaMs": 480_000,
        "waitedMs": 300,
    }
    assert one_slot.queue() == []


def test_waiters_are_told_their_place_and_are_served_in_order(one_slot, alice, bob):
    first = one_slot.acquired(alice)
    waiting = []
    for owner in ("w1", "w2"):
        waiting.append(one_slot.start(bob, "acquire", "--owner", owner, "--poll-ms", "1000"))
        until(lambda owner=owner: owner in one_slot.queue())
    assert one_slot(alice, "release", *of(first)).said["code"] == "released"
    status, text, errors = ended(waiting[0])
    assert (status, json.loads(text)["owner"]) == (0, "w1")
    assert "leasehub: queue position 1, eta ~8m\n" in errors
    assert waiting[1].poll() is None
    one_slot(bob, "release", "--owner", "w1", *of(json.loads(text)))
    status, text, errors = ended(waiting[1])
    assert (status, json.loads(text)["owner"]) == (0, "w2")
    assert "queue position 2, eta ~16m" in errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_the_queue_at_once(one_slot, alice, bob, number):
    one_slot.acquired(alice)
    process = one_slot.start(bob, "acquire", "--owner", "gone", "--poll-ms", "20000")
    until(lambda: one_slot.queue() == ["gone"])
    began = time.monotonic()
    process.send_signal(number)
    status, text, _ = ended(process)
    assert time.monotonic() - began < 15
    assert (status, json.loads(text)["code"]) == (128 + number, "interrupted")
    assert one_slot.queue() == []


def test_a_signal_while_the_slot_is_made_clean_gives_it_back(pool, alice):
    pool.apply(slots=[{"id": 1}], provision="echo > began; sleep 30 #")
    process = pool.start(alice, "acquire")
    until((pool.folder / "began").exists)
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 128 + signal.SIGTERM
    until(lambda: pool.status()["slots"][0]["state"] == "free")


def test_commands_run_in_the_folder_of_the_file_and_their_failure_is_the_answer(pool, alice, operator):
    pool.apply(slots=[{"id": 1}], provision="echo $POOL_ACTION >> ran; echo no disk; exit 7 #")
    outcome = pool(alice, "acquire", "--no-wait")
    assert outcome.status == 1
    assert list(outcome.said) == ["ok", "state", "request_id", "slot_id", "error", "at"]
    assert (outcome.said["ok"], outcome.said["state"], outcome.said["slot_id"]) == (False, "reset_failed", 1)
    assert "exit 7" in outcome.said["error"]
    # A request puts up with three.
    assert (pool.folder / "ran").read_text() == "provision\n" * 3
    pool.apply(slots=[{"id": 1}], provision="true", health="exit 3 #")
    assert pool(operator, "repair", "--slot", 1).status == 0
    assert pool(alice, "acquire", "--no-wait").said["state"] == "health_failed"


def test_a_pool_that_has_never_as_many_says_so_at_once(one_slot, alice):
    for flags in (["--count", "2"], ["--selector", '{"region": "eu"}']):
        outcome = one_slot(alice, "acquire", *flags)
        assert (outcome.status, outcome.said["code"]) == (2, "usage")


def test_slots_can_be_chosen_and_taken_several_at_once(pool, alice):
    pool.apply(slots=[{"id": 1}, {"id": 2, "region": "eu"}, {"id": 3}])
    assert pool.acquired(alice, "--selector", '{"region": "eu"}')["slot_id"] == 2
    both = pool.acquired(alice, "--count", "2")
    assert list(both) == ["ok", "state", "request_id", "mode", "grants"]
    assert [grant["slot_id"] for grant in both["grants"]] == [1, 3]
    assert list(both["grants"][0])[: len(GRANT)] == GRANT


def test_a_shell_gets_what_it_can_read_and_nothing_on_failure(pool, alice):
    note = "it's $HOME; `rm`\nand more"
    pool.apply(slots=[{"id": "a b".replace(" ", "-"), "note": note}], grantEnv={"NOTE": "{note}"}, shellPrefix="SLOT")
    outcome = pool(alice, "acquire", "--no-wait", "--shell")
    assert outcome.status == 0
    lines = outcome.text.splitlines()
    assert lines[0].startswith("export NOTE='it'\\''s $HOME")
    assert lines[-3:-1][0] == "export SLOT_SLOT='a-b'"
    assert lines[-1] == "export SLOT_OWNER='alice'"
    read = subprocess.run(["sh", "-c", f'{outcome.text}printf %s "$NOTE"'], capture_output=True, text=True, check=True)
    assert read.stdout == note
    for flags in (["--no-wait"], ["--wait-ms", "1"], ["--wait-ms", "x"], ["--frob"]):
        failed = pool(alice, "acquire", "--shell", *flags)
        assert failed.status in (1, 2)
        assert failed.text == ""
        assert failed.errors


def test_an_async_request_is_claimed_when_it_is_its_turn(one_slot, alice, bob):
    first = one_slot.acquired(alice)
    asked = one_slot(bob, "request", "--session", "s")
    assert asked.status == 0
    assert list(asked.said) == ["ok", "queued", "request_id", "owner", "session", "position", "etaMs", "eta"]
    assert {**asked.said, "request_id": None} == {
        "ok": True,
        "queued": True,
        "request_id": None,
        "owner": "bob",
        "session": "s",
        "position": 1,
        "etaMs": 480_000,
        "eta": "~8m",
    }
    named = ["--request", asked.said["request_id"]]
    assert f"dropped unless `leasehub pool claim --pool {one_slot.name} {' '.join(named)}`" in asked.errors
    assert "waiterStaleMs (90 s" in asked.errors
    waiting = one_slot(bob, "claim", *named)
    assert waiting.status == 0
    assert list(waiting.said) == ["ok", "queued", "request_id", "position", "etaMs", "eta"]
    one_slot(alice, "release", *of(first))
    granted = one_slot(bob, "claim", *named)
    assert granted.status == 0
    assert (granted.said["state"], granted.said["mode"], granted.said["slot_id"]) == ("ready", "async", 1)
    assert one_slot(bob, "claim", *named).said == granted.said
    # Neither its shell nor another's eyes get more than they should.
    assert "POOL_LEASE_TOKEN" in one_slot(bob, "claim", *named, "--shell").text
    for who, flags in (alice, []), (bob, ["--owner", "somebody"]):
        other = one_slot(who, "claim", *named, *flags)
        assert (other.status, other.said["code"]) == (1, "unknown_request")
        assert str(granted.said["token"]) not in other.text
    one_slot(bob, "release", *of(granted.said))
    gone = one_slot(bob, "claim", *named)
    assert (gone.status, gone.said["ok"], gone.said["state"]) == (1, False, "lease_lost")


def test_a_request_is_not_unknown_while_its_slot_is_made_clean(pool, alice):
    pool.apply(slots=[{"id": 1}], provision="while [ ! -e go ]; do sleep 0.05; done; true")
    named = ["--request", pool(alice, "request").said["request_id"]]
    waiting = pool(alice, "claim", *named)
    assert (waiting.status, waiting.said["queued"], waiting.said["state"]) == (0, True, "provisioning")
    (pool.folder / "go").touch()
    until(lambda: pool(alice, "claim", *named).said.get("state") == "ready")


def test_a_cancelled_request_leaves_the_queue_or_gives_back(one_slot, alice, bob):
    grant = one_slot.acquired(alice)
    asked = one_slot(bob, "request").said["request_id"]
    cancelled = one_slot(bob, "cancel", "--request", asked)
    assert (cancelled.status, cancelled.said) == (
        0,
        {"ok": True, "code": "cancelled", "request_id": asked, "state": "cancelled"},
    )
    assert one_slot.queue() == []
    assert one_slot(bob, "claim", "--request", asked).said["state"] == "cancelled"
    assert one_slot(alice, "cancel", "--request", grant["request_id"]).status == 0
    assert one_slot.status()["slots"][0]["state"] == "free"
    for verb in ("cancel", "claim"):
        for unknown in ("req_" + "0" * 32, "../../slots/1"):
            outcome = one_slot(bob, verb, "--request", unknown)
            assert (outcome.status, outcome.said["code"]) == (1, "unknown_request")


def test_a_heartbeat_refreshes_and_says_of_which_slot(one_slot, alice, bob):
    grant = one_slot.acquired(alice, "--ttl", "5")
    beaten = one_slot(alice, "heartbeat", *of(grant))
    assert beaten.status == 0
    assert list(beaten.said) == ["ok", "code", "kind", "record", "expiresAt", "expiresInMs", "slot_id"]
    assert (beaten.said["code"], beaten.said["kind"], beaten.said["slot_id"]) == ("refreshed", "slot-1", 1)
    assert (beaten.said["record"]["owner"], beaten.said["record"]["ttlMinutes"]) == ("alice", 5)
    for who, flags in (bob, []), (alice, ["--owner", "other"]):
        assert one_slot(who, "heartbeat", *of(grant), *flags).said["code"] == "not_owner"
    for token in grant["token"] - 1, 0, "garbage":
        assert one_slot(alice, "heartbeat", "--slot", 1, "--token", token).said["code"] == "not_owner"
    one_slot(alice, "release", *of(grant))
    gone = one_slot(alice, "heartbeat", *of(grant))
    assert (gone.status, gone.said["code"]) == (1, "not_held")


def test_a_release_names_who_may_and_repeats(one_slot, alice, bob, operator):
    grant = one_slot.acquired(alice)
    assert one_slot(bob, "release", *of(grant)).said["code"] == "not_owner"
    wrong = one_slot(alice, "release", "--slot", 1, "--token", grant["token"] - 1)
    assert (wrong.status, wrong.said["code"]) == (1, "token_mismatch")
    released = one_slot(alice, "release", "--slot", "01", "--token", grant["token"])
    assert released.said == {
        "ok": True,
        "code": "released",
        "kind": "slot-1",
        "released": True,
        "wasExpired": False,
        "slot_id": 1,
    }
    again = one_slot(alice, "release", *of(grant))
    assert (again.status, again.said["code"]) == (0, "not_held")
    assert "unknownToken" not in again.said
    assert one_slot(alice, "release", "--slot", 1, "--token", 2**52).said["unknownToken"] is True
    one_slot.acquired(alice)
    assert one_slot(bob, "release", "--slot", 1, "--force").said["code"] == "forbidden"
    assert one_slot(operator, "release", "--slot", 1, "--force", "--reason", "stuck").said["code"] == "released"


IDS = [(1, "1"), ("01", "01"), (1.0, "1"), (1e3, "1000"), (1.5, "1.5")]


@pytest.mark.parametrize(("slot_id", "text"), IDS)
@pytest.mark.parametrize("who", ["alice", "outsider"])
def test_a_slot_is_held_and_let_go_however_its_number_is_written(pool, request, who, slot_id, text):
    who = request.getfixturevalue(who)
    pool.apply(slots=[{"id": slot_id}], shellPrefix="S")
    for named in dict.fromkeys([str(slot_id), text]):
        grant = pool.acquired(who)
        assert grant["slot_id"] == slot_id
        token = grant["token"]
        assert pool(who, "heartbeat", "--slot", named, "--token", token).said["code"] == "refreshed"
        released = pool(who, "release", "--slot", named, "--token", token)
        assert (released.status, released.said["code"]) == (0, "released")
        assert pool.status()["slots"][0]["state"] == "free"
    exported = pool(who, "acquire", "--no-wait", "--shell").text
    assert f"export S_SLOT='{text}'\n" in exported
    assert pool(who, "reset", "--slot", text, "--token", 1).said["code"] == "not_owner"


def test_an_operator_works_on_a_slot_however_its_number_is_written(pool, alice, operator):
    pool.apply(slots=[{"id": 1e18}])
    for verb, code in ("drain", "drained"), ("undrain", "undrained"), ("health", "healthy"):
        assert pool(operator, verb, "--slot", "1e18").said["code"] == code
    pool.acquired(alice)
    assert pool(operator, "release", "--slot", "1e18", "--force").said["code"] == "released"
    assert pool.status()["slots"][0]["state"] == "free"


def test_an_unknown_slot_is_a_usage_error(one_slot, alice):
    outcome = one_slot(alice, "release", "--slot", "7", "--token", "1")
    assert outcome.status == 2
    assert "invalid slot id" in outcome.said["message"]


def test_one_who_may_not_look_at_pools_still_holds_a_slot(pool, outsider):
    pool.apply(slots=[{"id": "one"}])
    grant = pool.acquired(outsider)
    assert pool(outsider, "status").said["code"] == "forbidden"
    beaten = pool(outsider, "heartbeat", *of(grant))
    assert (beaten.said["code"], beaten.said["slot_id"], beaten.said["kind"]) == ("refreshed", "one", None)
    assert pool(outsider, "release", *of(grant)).said["code"] == "released"


def test_a_held_slot_is_reset_by_its_holder_alone(pool, alice, bob):
    pool.apply(slots=[{"id": 1}], provision="true", reset="echo $POOL_ACTION >> ran; [ ! -e broken ] #", health="true")
    grant = pool.acquired(alice)
    assert pool(alice, "reset", *of(grant)).said == {"ok": True, "code": "reset", "slot_id": 1}
    assert (pool.folder / "ran").read_text() == "reset\n"
    assert pool(bob, "reset", *of(grant)).said == {"ok": False, "code": "not_owner", "slot_id": 1}
    for token in 1, 0, "garbage":
        refused = pool(alice, "reset", "--slot", 1, "--token", token)
        assert (refused.status, refused.said["code"]) == (1, "not_owner")
    (pool.folder / "broken").touch()
    failed = pool(alice, "reset", *of(grant))
    assert (failed.status, list(failed.said)) == (1, ["ok", "code", "slot_id", "error"])
    assert failed.said["code"] == "reset_failed"
    assert pool.status()["slots"][0]["state"] == "held"
    pool(alice, "release", *of(grant))
    assert pool(alice, "reset", *of(grant)).said["code"] == "not_held"


def test_an_operator_makes_a_free_slot_clean_and_asks_for_its_health(pool, alice, operator):
    pool.apply(slots=[{"id": 1}], provision="[ ! -e broken ] #", health="[ ! -e ill ] #")
    assert pool(operator, "reprovision", "--slot", 1).said == {"ok": True, "code": "reprovisioned", "slot_id": 1}
    assert pool(operator, "health", "--slot", 1).said == {"ok": True, "code": "healthy", "slot_id": 1}
    (pool.folder / "ill").touch()
    ill = pool(operator, "health", "--slot", 1)
    assert (ill.status, ill.said["code"], list(ill.said)) == (1, "unhealthy", ["ok", "code", "slot_id", "error"])
    (pool.folder / "broken").touch()
    assert pool(operator, "reprovision", "--slot", 1).said["code"] == "reset_failed"
    (pool.folder / "broken").unlink()
    (pool.folder / "ill").unlink()
    pool.acquired(alice)
    held = pool(operator, "reprovision", "--slot", 1)
    assert held.said == {"ok": False, "code": "held", "slot_id": 1, "holder": "alice"}
    assert pool(alice, "reprovision", "--slot", 1).said["code"] == "forbidden"


def test_a_drained_slot_is_granted_to_nobody_until_it_is_undrained(one_slot, alice, operator):
    drained = one_slot(operator, "drain", "--slot", 1)
    assert drained.said == {"ok": True, "code": "drained", "slot_id": 1, "condition": "draining"}
    assert one_slot.status()["slots"][0]["condition"] == "draining"
    assert one_slot(alice, "acquire", "--no-wait").said["code"] == "saturated"
    assert one_slot(operator, "undrain", "--slot", 1).said["condition"] == "enabled"
    assert one_slot(operator, "repair", "--slot", 1).said["code"] == "repaired"
    one_slot.acquired(alice)
    assert one_slot(alice, "drain", "--slot", 1).said["code"] == "forbidden"


def test_pumping_reaps_what_has_run_out(one_slot, alice):
    one_slot.acquired(alice, "--ttl", "0.02")
    until(lambda: one_slot.status()["slots"][0]["state"] == "unknown")
    pumped = one_slot(alice, "pump")
    assert pumped.status == 0
    assert list(pumped.said) == ["ok", "reapedSlots", "droppedEntries", "status"]
    assert pumped.said["reapedSlots"] == [{"slot_id": 1, "previousOwner": "alice"}]
    assert pumped.said["status"]["slots"][0]["state"] == "free"


def test_a_pool_that_is_not_there(alice):
    outcome = alice("pool", "acquire", "--pool", "no-such-pool")
    assert (outcome.status, outcome.said["code"]) == (1, "not_found")


@pytest.fixture
def asked(fake):
    """What became of the requests at the server whose faults are made by hand, which has no slot free."""
    return fake.leases.requests


def acquire_at(faulty, *flags):
    return faulty.start(
        "pool",
        "acquire",
        "--pool",
        "p",
        "--poll-ms",
        "200",
        *flags,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_request_whose_answer_was_lost_is_made_once(faulty, fake, asked):
    fake.faults.append(dropping(2))
    status, text, _ = ended(acquire_at(faulty, "--wait-ms", "300"))
    assert (status, json.loads(text)["code"]) == (1, "timeout")
    assert list(asked.values()) == ["cancelled"]


def test_a_request_that_cannot_be_heard_of_is_left_as_far_as_that_goes(faulty, fake, asked):
    fake.faults.append(dropping(3))
    status, text, _ = ended(acquire_at(faulty))
    assert (status, json.loads(text)["code"]) == (3, "unreachable")
    assert list(asked.values()) == ["cancelled"]


def refusing(status, code, **fields):
    """Refuses whatever is posted."""

    def fault(handler):
        if handler.command != "POST":
            return False
        handler.reply(status, {"error": {"code": code, "message": "no", **fields}})
        return True

    return fault


@pytest.mark.parametrize(
    ("http", "code", "fields", "status"),
    [
        (409, "SATURATED", {"position": 1, "eta_ms": 480_000}, 1),
        (404, "NOT_FOUND", {}, 1),
        (403, "FORBIDDEN", {"ring": 2}, 1),
        (422, "UNSATISFIABLE", {}, 2),
    ],
)
@pytest.mark.parametrize("verb", ["acquire", "run"])
def test_a_request_that_is_refused_is_sent_once(faulty, fake, verb, http, code, fields, status):
    fake.faults.append(refusing(http, code, **fields))
    arguments = ["pool", "acquire", "--pool", "p"] if verb == "acquire" else ["run", "--pool", "p", "--", "true"]
    outcome = faulty(*arguments)
    assert outcome.status == status
    assert [method for method, *_ in fake.seen if method != "GET"] == ["POST"]
    assert "leave" not in outcome.errors


def test_a_refusal_after_a_lost_answer_still_leaves_what_was_made(faulty, fake, asked):
    refuse = refusing(429, "QUOTA_EXCEEDED")
    fake.faults += [dropping(1), lambda handler: len(fake.seen) == 2 and refuse(handler)]
    assert ended(acquire_at(faulty, "--owner", "o"))[0] == 1
    assert [method for method, *_ in fake.seen] == ["POST", "POST", "POST", "DELETE"]
    assert list(asked.values()) == ["cancelled"]


def test_a_server_that_is_not_there_has_no_queue_to_be_left(alice):
    nowhere = {"LEASEHUB_URL": f"http://127.0.0.1:{free_port()}"}
    for arguments in (["pool", "acquire", "--pool", "p"], ["run", "--pool", "p", "--owner", "o", "--", "true"]):
        outcome = alice(*arguments, environment=nowhere)
        assert (outcome.status, outcome.said["code"]) == (3, "unreachable")
        assert "leave" not in outcome.errors


@pytest.mark.parametrize(("poll_ms", "seconds"), [("0.01", 0.05), ("49", 0.05), ("50", 0.05), ("200", 0.2)])
def test_one_who_waits_does_not_ask_without_a_pause(poll_ms, seconds):
    patience = patience_of(read("pool acquire", ["--poll-ms", poll_ms], values=("poll-ms",)))
    assert patience.poll_seconds == seconds


def test_a_signal_while_the_request_has_no_answer_yet_leaves_nothing(faulty, fake, asked):
    def late(handler):
        if handler.command == "POST" and len(fake.seen) == 1:
            handler.answer()
            time.sleep(20)
            return True
        return False

    fake.faults.append(late)
    process = acquire_at(faulty)
    until(lambda: asked)
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 128 + signal.SIGTERM
    assert list(asked.values()) == ["cancelled"]


def test_an_outage_does_not_cost_the_place_in_the_queue(faulty, fake, asked):
    process = acquire_at(faulty)
    until(lambda: len(fake.seen) > 2)
    fake.faults.append(hang_up)
    time.sleep(1)
    fake.faults.clear()
    asked.update(dict.fromkeys(asked, "ready"))
    status, text, errors = ended(process)
    assert (status, json.loads(text)["state"]) == (0, "ready")
    assert "away" in errors
    assert list(asked.values()) == ["ready"]
