"""The lease verbs against a real server: flags, members, their order, codes and exit statuses."""

import json
import signal
import threading
import time

import pytest

from tests.cli.conftest import until

RECORD = ["v", "kind", "owner", "token", "heartbeat", "ttlMinutes", "payload", "acquiredAt"]


def acquired(who, kind, *flags, ttl="5"):
    outcome = who("lease", "acquire", "--kind", kind, "--ttl", ttl, *flags)
    assert outcome.status == 0, outcome.errors
    return outcome.said["record"]


def run_out(who, kind):
    until(lambda: who("lease", "status", "--kind", kind).said["state"] == "unknown")


def test_a_free_kind_is_acquired(alice, kind):
    outcome = alice("lease", "acquire", "--kind", kind, "--ttl", "5", "--payload", '{"n": [1, "é"]}')
    assert outcome.status == 0
    assert list(outcome.said) == ["ok", "code", "kind", "record"]
    record = outcome.said["record"]
    assert list(record) == RECORD
    assert record == {
        **record,
        "v": 1,
        "kind": kind,
        "owner": "alice",
        "ttlMinutes": 5,
        "payload": {"n": [1, "é"]},
        "heartbeat": record["acquiredAt"],
    }
    assert type(record["token"]) is int
    assert outcome.text.count("\n") == 1
    assert "é" in outcome.text


def test_pretty_is_the_same_object_indented_by_two(alice, kind):
    outcome = alice("lease", "status", "--kind", kind, "--pretty")
    assert outcome.text == f'{{\n  "kind": "{kind}",\n  "state": "free"\n}}\n'


def test_one_who_may_observe_is_told_the_holder_but_no_token(alice, bob, kind):
    record = acquired(alice, kind, "--payload", '"notes"')
    outcome = bob("lease", "acquire", "--kind", kind, "--ttl", "5")
    assert outcome.status == 1
    assert list(outcome.said) == [
        "ok",
        "code",
        "kind",
        "holder",
        "heldBySelf",
        "record",
        "expiresAt",
        "expiresInMs",
    ]
    assert outcome.said["code"] == "held"
    assert outcome.said["holder"] == "alice"
    assert outcome.said["heldBySelf"] is False
    assert outcome.said["record"] == {**record, "token": None}
    assert str(record["token"]) not in outcome.text


def test_an_outsider_is_told_only_until_when(alice, outsider, kind):
    acquired(alice, kind, "--payload", '"notes"')
    outcome = outsider("lease", "acquire", "--kind", kind, "--ttl", "5")
    assert outcome.status == 1
    assert outcome.said["code"] == "held"
    assert outcome.said["holder"] is None
    assert outcome.said["record"] is None
    assert outcome.said["expiresAt"]
    assert 0 < outcome.said["expiresInMs"] <= 300_000
    assert "alice" not in outcome.text
    assert "notes" not in outcome.text


def test_a_second_terminal_of_the_same_owner_is_refused_too(alice, kind):
    record = acquired(alice, kind)
    outcome = alice("lease", "acquire", "--kind", kind, "--ttl", "5")
    assert outcome.status == 1
    assert outcome.said["code"] == "held"
    assert outcome.said["heldBySelf"] is True
    assert str(record["token"]) not in outcome.text


def test_two_owners_on_one_key_are_not_each_other(alice, kind):
    acquired(alice, kind, "--owner", "one")
    outcome = alice("lease", "acquire", "--kind", kind, "--owner", "two", "--ttl", "5")
    assert outcome.said["holder"] == "one"
    assert outcome.said["heldBySelf"] is False


def test_the_owner_comes_from_the_environment_when_no_flag_says_it(alice, kind):
    environment = {"LEASE_OWNER": "from-env"}
    outcome = alice("lease", "acquire", "--kind", kind, "--ttl", "5", environment=environment)
    assert outcome.said["record"]["owner"] == "from-env"


def test_fractions_of_minutes_become_whole_seconds_rounded_half_up(alice, kind):
    assert acquired(alice, kind, ttl="0.175")["ttlMinutes"] == 11 / 60


@pytest.mark.parametrize("ttl", ["1441", "0.001", "0", "-1", "5m", "1_000", "nan", "Infinity", "527041", "1e999"])
def test_a_ttl_outside_the_bounds_is_a_usage_error(alice, kind, ttl):
    outcome = alice("lease", "acquire", "--kind", kind, f"--ttl={ttl}")
    assert outcome.status == 2
    assert outcome.said["code"] == "usage"
    assert "ttl" in outcome.said["message"]


@pytest.mark.parametrize(("ttl", "bound"), [("1441", "at most 1440 minutes"), ("0.001", "at least 0.0166667 minutes")])
def test_a_bound_of_the_server_is_told_in_what_the_flag_takes(alice, kind, ttl, bound):
    said = alice("lease", "acquire", "--kind", kind, "--ttl", ttl)
    assert f"--ttl: must be {bound}" in said.said["message"]
    assert "ttl_seconds" not in said.text + said.errors


def test_waiting_ends_with_the_last_refusal_as_a_timeout(alice, bob, kind):
    acquired(alice, kind)
    outcome = bob("lease", "acquire", "--kind", kind, "--ttl", "5", "--wait-ms", "120")
    assert outcome.status == 1
    assert list(outcome.said)[1] == "code"
    assert list(outcome.said)[-1] == "waitedMs"
    assert outcome.said["code"] == "timeout"
    assert outcome.said["waitedMs"] == 120
    assert outcome.said["holder"] == "alice"


def test_a_lease_that_runs_out_meanwhile_is_taken_by_the_one_who_waits(alice, bob, kind):
    record = acquired(alice, kind, ttl="0.02")
    outcome = bob("lease", "acquire", "--kind", kind, "--ttl", "5", "--wait-ms", "20000")
    assert outcome.status == 0
    assert outcome.said["record"]["token"] > record["token"]
    assert list(outcome.said) == ["ok", "code", "kind", "record", "tookOverExpired", "previous"]
    assert outcome.said["tookOverExpired"] is True
    assert outcome.said["previous"] == {**record, "token": None}


def test_a_heartbeat_moves_the_expiry(alice, kind):
    record = acquired(alice, kind, "--payload", "7")
    time.sleep(0.05)
    outcome = alice("lease", "heartbeat", "--kind", kind, "--token", record["token"])
    assert outcome.status == 0
    assert list(outcome.said) == ["ok", "code", "kind", "record", "expiresAt", "expiresInMs"]
    assert outcome.said["code"] == "refreshed"
    assert outcome.said["record"] == {**record, "heartbeat": outcome.said["record"]["heartbeat"]}
    assert outcome.said["record"]["heartbeat"] > record["heartbeat"]
    assert outcome.said["expiresInMs"] == 300_000
    # What the record says is what the server has.
    shown = alice("lease", "status", "--kind", kind).said
    assert shown["record"]["heartbeat"] == outcome.said["record"]["heartbeat"]
    assert shown["expiresAt"] == outcome.said["expiresAt"]


def test_only_the_owner_with_the_token_can_beat(alice, bob, kind):
    token = acquired(alice, kind)["token"]
    for who, flags in [
        (bob, ["--token", token]),
        (alice, ["--token", token + 1]),
        (alice, ["--token", token, "--owner", "another"]),
    ]:
        outcome = who("lease", "heartbeat", "--kind", kind, *flags)
        assert outcome.status == 1
        assert outcome.said == {"ok": False, "code": "not_owner", "kind": kind, "holder": "alice"}


def test_a_beat_on_nothing_is_not_held(alice, kind):
    outcome = alice("lease", "heartbeat", "--kind", kind, "--token", "1")
    assert outcome.status == 1
    assert outcome.said == {"ok": False, "code": "not_held", "kind": kind}


def test_a_beat_after_the_expiry_revives_nothing(alice, kind):
    record = acquired(alice, kind, "--payload", "1", ttl="0.02")
    run_out(alice, kind)
    outcome = alice("lease", "heartbeat", "--kind", kind, "--token", record["token"])
    assert outcome.status == 1
    assert list(outcome.said) == ["ok", "code", "kind", "record"]
    assert outcome.said["code"] == "expired"
    assert outcome.said["record"] == {**record, "token": None}
    # With a wrong token it is not even one's own.
    outcome = alice("lease", "heartbeat", "--kind", kind, "--token", record["token"] + 1)
    assert outcome.said["code"] == "not_owner"


def test_a_lease_that_ran_out_is_unknown_until_somebody_ends_it(alice, bob, kind):
    record = acquired(alice, kind, ttl="0.02")
    run_out(bob, kind)
    outcome = bob("lease", "status", "--kind", kind)
    assert outcome.status == 0
    assert list(outcome.said) == ["kind", "state", "record", "expiredForMs"]
    assert outcome.said["record"] == {**record, "token": None}
    assert outcome.said["expiredForMs"] >= 0
    outcome = alice("lease", "release", "--kind", kind, "--token", record["token"])
    assert (outcome.status, outcome.said["code"], outcome.said["wasExpired"]) == (0, "released", True)


def test_a_release_ends_the_lease_and_can_be_repeated(alice, kind):
    token = acquired(alice, kind)["token"]
    outcome = alice("lease", "release", "--kind", kind, "--token", token)
    assert outcome.status == 0
    assert json.dumps(outcome.said) == json.dumps(
        {"ok": True, "code": "released", "kind": kind, "released": True, "wasExpired": False}
    )
    again = alice("lease", "release", "--kind", kind, "--token", token)
    assert again.status == 0
    assert again.said == {"ok": True, "code": "not_held", "kind": kind, "released": False}
    assert again.errors == ""


def test_a_release_of_another_kind_by_mistake_does_not_look_like_success(alice, kind):
    token = acquired(alice, kind)["token"]
    outcome = alice("lease", "release", "--kind", f"{kind}x", "--token", token)
    assert outcome.said["code"] == "not_held"
    assert outcome.said["unknownToken"] is True
    assert "never gave out" in outcome.errors


def test_a_release_by_others_is_refused(alice, bob, kind):
    token = acquired(alice, kind)["token"]
    outcome = bob("lease", "release", "--kind", kind, "--token", token)
    assert outcome.status == 1
    assert outcome.said == {"ok": False, "code": "not_owner", "kind": kind, "holder": "alice"}
    outcome = alice("lease", "release", "--kind", kind, "--token", token - 1)
    assert outcome.status == 1
    assert outcome.said == {"ok": False, "code": "token_mismatch", "kind": kind, "holder": "alice"}


# Longer than what int() reads, too.
NO_TOKENS = ["garbage", "0", "-1", "1.5", "T1 T2", str(2**53), "9" * 5000]


@pytest.mark.parametrize("token", NO_TOKENS)
def test_a_token_is_not_validated_only_compared(alice, bob, kind, token):
    flags = ["--kind", kind, f"--token={token}"]
    free = alice("lease", "heartbeat", *flags)
    assert (free.status, free.said) == (1, {"ok": False, "code": "not_held", "kind": kind})
    free = alice("lease", "release", *flags)
    assert (free.status, free.said["code"], free.said["unknownToken"]) == (0, "not_held", True)
    assert "never gave out" in free.errors
    acquired(alice, kind)
    for who, verb, code in [
        (alice, "heartbeat", "not_owner"),
        (bob, "heartbeat", "not_owner"),
        (alice, "release", "token_mismatch"),
        (bob, "release", "not_owner"),
    ]:
        outcome = who("lease", verb, *flags)
        assert outcome.status == 1
        assert outcome.said == {"ok": False, "code": code, "kind": kind, "holder": "alice"}


@pytest.mark.parametrize("owner", ["a b", "-a", "é", "a\n", "a" * 129])
@pytest.mark.parametrize("verb", ["heartbeat", "release"])
def test_an_owner_that_no_lease_can_have_is_a_usage_error(alice, kind, verb, owner):
    outcome = alice("lease", verb, "--kind", kind, "--token", "1", f"--owner={owner}")
    assert outcome.status == 2
    assert "--owner" in outcome.said["message"]
    assert "fence" in outcome.said["message"]


def test_an_odd_owner_that_the_keys_fence_allows_gives_back_what_it_acquired(person, kind):
    wide = person("wilma", "--holder-pattern", "^[a-z ]+$")
    flags = ["--kind", kind, "--owner", "a b"]
    token = wide("lease", "acquire", *flags, "--ttl", "5").said["record"]["token"]
    assert wide("lease", "release", *flags, "--token", token).said["code"] == "released"


def test_force_needs_the_operators_ring(alice, bob, operator, kind):
    acquired(alice, kind)
    refused = bob("lease", "release", "--kind", kind, "--force")
    assert refused.status == 1
    assert refused.said["code"] == "forbidden"
    outcome = operator("lease", "release", "--kind", kind, "--force", "--reason", "it hangs")
    assert outcome.status == 0
    assert outcome.said == {
        "ok": True,
        "code": "released",
        "kind": kind,
        "released": True,
        "wasExpired": False,
    }
    again = operator("lease", "release", "--kind", kind, "--force")
    assert again.said == {"ok": True, "code": "not_held", "kind": kind, "released": False}


def test_status_never_refuses_and_never_shows_a_token(alice, bob, kind):
    free = alice("lease", "status", "--kind", kind)
    assert free.status == 0
    assert free.said == {"kind": kind, "state": "free"}
    record = acquired(alice, kind)
    for who in (alice, bob):
        held = who("lease", "status", "--kind", kind)
        assert held.status == 0
        assert list(held.said) == ["kind", "state", "holder", "record", "expiresAt", "expiresInMs"]
        assert held.said["record"] == {**record, "token": None}


def test_reap_ends_only_what_has_run_out(alice, bob, kind):
    assert bob("lease", "reap", "--kind", kind).said == {
        "ok": True,
        "code": "not_held",
        "kind": kind,
        "reaped": False,
    }
    acquired(alice, kind)
    outcome = bob("lease", "reap", "--kind", kind)
    assert outcome.status == 1
    assert list(outcome.said) == ["ok", "code", "kind", "holder", "expiresAt", "expiresInMs"]
    assert outcome.said["code"] == "held"
    assert outcome.said["holder"] == "alice"


def test_what_has_run_out_is_reaped_with_its_record(alice, bob, kind):
    record = acquired(alice, kind, "--payload", "[1]", ttl="0.02")
    run_out(bob, kind)
    outcome = bob("lease", "reap", "--kind", kind)
    assert outcome.status == 0
    assert list(outcome.said) == ["ok", "code", "kind", "reaped", "previous"]
    assert outcome.said["previous"] == {**record, "token": None}


def test_list_is_sorted_and_pages_through_everything(alice, bob, kind):
    names = [f"{kind}-{n}" for n in (3, 1, 2)]
    for name in names:
        acquired(alice, name)
    outcome = bob("lease", "list")
    assert outcome.status == 0
    assert list(outcome.said) == ["ok", "leases"]
    kinds = [lease["kind"] for lease in outcome.said["leases"]]
    assert kinds == sorted(kinds)
    assert set(names) <= set(kinds)


def test_reconcile_reports_what_is_held_and_what_is_foreign(person, bob, kind):
    fenced = person("fred", "--holder-pattern", "^fred(-.*)?$")
    acquired(fenced, f"{kind}-own", "--owner", "fred-1")
    record = acquired(fenced, f"{kind}-dead", "--owner", "fred-2", ttl="0.02")
    acquired(bob, f"{kind}-other", ttl="0.02")
    run_out(bob, f"{kind}-dead")
    run_out(bob, f"{kind}-other")
    report = fenced("lease", "reconcile").said
    assert list(report) == ["ok", "held", "reaped", "foreign"]
    assert f"{kind}-own" in [entry["kind"] for entry in report["held"]]
    assert f"{kind}-other" in [entry["kind"] for entry in report["foreign"]]
    [reaped] = [entry for entry in report["reaped"] if entry["kind"] == f"{kind}-dead"]
    assert list(reaped) == ["ok", "code", "kind", "reaped", "previous"]
    assert reaped["previous"] == {**record, "token": None}
    assert bob("lease", "status", "--kind", f"{kind}-other").said["state"] == "unknown"


def test_reconcile_with_a_pattern_of_its_own_leaves_alone_what_is_outside(alice, kind):
    acquired(alice, f"{kind}-a", "--owner", "a-1", ttl="0.02")
    acquired(alice, f"{kind}-b", "--owner", "b-1", ttl="0.02")
    acquired(alice, f"{kind}-c", "--owner", "a-2")
    run_out(alice, f"{kind}-b")
    report = alice("lease", "reconcile", "--owner-pattern", "^a-[0-9]+$").said
    assert f"{kind}-a" in [entry["kind"] for entry in report["reaped"]]
    assert f"{kind}-b" in [entry["kind"] for entry in report["foreign"]]
    assert f"{kind}-c" in [entry["kind"] for entry in report["held"]]
    assert alice("lease", "status", "--kind", f"{kind}-b").said["state"] == "unknown"


@pytest.mark.parametrize(
    ("pattern", "owner"),
    [
        ("^acme-[a-z]+|ci$", "acme-x.rm"),
        ("^acme-[a-z]+|ci$", "evil.ci"),
        ("^[a-z]+$", "alice\n"),
        (r"^\w+$", "älice"),
    ],
)
def test_an_owner_must_match_the_whole_of_the_pattern(alice, kind, pattern, owner):
    flags = ["--kind", kind, "--ttl", "5", "--owner", owner, "--owner-pattern", pattern]
    outcome = alice("lease", "acquire", *flags)
    assert outcome.status == 2
    assert "owner pattern" in outcome.said["message"]


@pytest.mark.parametrize("pattern", ["acme", "^acme", "acme$", r"^acme\$"])
def test_a_pattern_must_be_anchored_whatever_the_verb(alice, kind, pattern):
    for environment, flags in [({}, ["--owner-pattern", pattern]), ({"LEASE_OWNER_PATTERN": pattern}, [])]:
        outcome = alice("lease", "status", "--kind", kind, *flags, environment=environment)
        assert outcome.status == 2
        assert "anchored" in outcome.said["message"]


def test_an_owner_outside_the_keys_fence_is_a_usage_error(person, kind):
    fenced = person("fay", "--holder-pattern", "^fay$")
    outcome = fenced("lease", "acquire", "--kind", kind, "--ttl", "5", "--owner", "eve")
    assert outcome.status == 2
    assert "fence" in outcome.said["message"]


@pytest.mark.parametrize("name", ["", "Upper", "-x", ".x", "a b", "a/b", "k" * 129, "é", "a\n"])
def test_a_kind_that_is_not_legal_is_a_usage_error(alice, name):
    outcome = alice("lease", "status", f"--kind={name}")
    assert outcome.status == 2
    assert outcome.said["code"] == "usage"


@pytest.mark.parametrize("payload", ["", "{", "NaN", "[Infinity]", "1e999", "[" * 100_000, "\ufeff1", "1 2"])
def test_a_payload_must_be_json(alice, kind, payload):
    outcome = alice("lease", "acquire", "--kind", kind, "--ttl", "5", f"--payload={payload}")
    assert outcome.status == 2
    assert "--payload" in outcome.said["message"]
    assert "Traceback" not in outcome.errors


def test_odd_text_in_a_payload_comes_back_as_it_was(alice, kind):
    payload = '"\\u2028/\\b\\u0001\\u007f\\ud83d\\ude00"'
    outcome = alice("lease", "acquire", "--kind", kind, "--ttl", "5", "--payload", payload)
    assert outcome.said["record"]["payload"] == json.loads(payload)
    assert '"\u2028/\\b\\u0001\x7f\U0001f600"' in outcome.text


def test_a_key_without_the_ring_is_forbidden_and_told_so(outsider):
    outcome = outsider("lease", "list")
    assert outcome.status == 1
    assert outcome.said["code"] == "forbidden"
    assert "RING-1" in outcome.said["message"]


def test_a_wrong_key_is_refused(alice, kind):
    outcome = alice("lease", "status", "--kind", kind, environment={"LEASEHUB_TOKEN": "lh_wrong"})
    assert outcome.status == 1
    assert outcome.said["code"] == "unauthenticated"


def test_status_and_list_show_a_resource_that_another_door_leased(alice, kind):
    resource = f"deploy/{kind}"
    process = alice.start("run", "--resource", resource, "--", "sleep", "60")
    try:
        until(lambda: alice("lease", "status", "--resource", resource).said["state"] == "held")
        assert resource in [entry["kind"] for entry in alice("lease", "list").said["leases"]]
    finally:
        process.terminate()
        process.wait(timeout=20)
    assert alice("lease", "status", "--resource", resource).said == {"kind": resource, "state": "free"}
    assert alice("lease", "status", "--resource", kind).status == 2
    assert alice("lease", "status", "--resource", resource, "--kind", "k").status == 2


def test_help_for_a_verb_that_is_none_is_a_usage_error(alice):
    assert alice("bogus", "--help").status == 2
    assert alice("lease", "--help").said == {"ok": True, "code": "help"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_wait_with_an_object(alice, bob, kind, number):
    acquired(alice, kind)
    flags = ["--kind", kind, "--ttl", "5", "--wait-ms", "30000"]
    process = bob.start("lease", "acquire", *flags, stdout=-1, stderr=-1, text=True)
    time.sleep(1)
    process.send_signal(number)
    text, errors = process.communicate(timeout=20)
    assert (process.returncode, json.loads(text)["code"]) == (128 + number, "interrupted")
    assert "Traceback" not in errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_lease_that_comes_after_the_signal_is_given_back(faulty, fake, number):
    answers = threading.Event()

    def late(handler):
        if handler.command == "POST":
            answers.wait(20)
        return False

    fake.faults.append(late)
    process = faulty.start("lease", "acquire", "--kind", "k", "--ttl", "5", "--owner", "o", stdout=-1, stderr=-1)
    until(lambda: fake.seen)
    process.send_signal(number)
    time.sleep(0.2)
    answers.set()
    text, _ = process.communicate(timeout=20)
    assert (process.returncode, json.loads(text)["code"]) == (128 + number, "interrupted")
    assert [seen[0] for seen in fake.seen] == ["POST", "DELETE"]
    assert fake.leases.rows == {}
