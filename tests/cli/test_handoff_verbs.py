"""The handoff and checkpoint verbs against a real server."""

import json
import time

import pytest

from tests.cli.test_lease_verbs import acquired

NOTES = {
    "done": ["built", "pushed"],
    "decisions": [{"what": "canary first", "why": "traffic"}],
    "failed-approaches": ["all at once"],
    "blockers": ["no access"],
    "artifacts": [{"kind": "log", "uri": "file:///var/log/deploy.log"}],
    "state": {"repo": "shop", "branch": "main", "commit": "abc1234", "dirty": False},
}


def sent(giver, *flags, to="bob", subject="deploy-41"):
    outcome = giver("handoff", "send", "--to", to, "--subject", subject, *flags)
    assert outcome.status == 0, outcome.errors
    return outcome.said["handoff_id"]


def test_work_moves_with_its_lease_and_a_larger_token(alice, bob, kind):
    record = acquired(alice, kind)
    notes = [part for name, value in NOTES.items() for part in (f"--{name}", json.dumps(value))]
    outcome = alice(
        "handoff", "send", "--to", "bob", "--subject", "deploy-41", "--kind", kind, "--message", "half done",
        "--next-action", "shift the traffic", *notes,
    )  # fmt: skip
    assert (outcome.status, outcome.said["code"], outcome.said["status"]) == (0, "sent", "pending")
    named = ["--handoff", outcome.said["handoff_id"]]
    listed = bob("handoff", "inbox").said
    assert listed["code"] == "listed"
    assert outcome.said["handoff_id"] in [entry["handoff_id"] for entry in listed["handoffs"]]
    shown = bob("handoff", "show", *named).said
    assert (shown["code"], shown["message"], shown["next_action"]) == ("shown", "half done", "shift the traffic")
    assert (shown["done"], shown["state"]["commit"]) == (NOTES["done"], "abc1234")
    accepted = bob("handoff", "accept", *named, "--holder", "bob-2", "--observed-commit", "def5678")
    assert (accepted.status, accepted.said["code"], accepted.said["state_drift"]) == (0, "accepted", True)
    [moved] = accepted.said["leases"]
    assert moved["fencing_token"] > record["token"]
    token = ["--token", moved["fencing_token"]]
    assert bob("lease", "heartbeat", "--kind", kind, "--owner", "bob-2", *token).status == 0
    assert alice("lease", "heartbeat", "--kind", kind, "--token", record["token"]).said["code"] == "not_owner"
    done = bob("handoff", "complete", *named, "--result", '{"ok": 1}')
    assert (done.status, done.said["code"], done.said["status"]) == (0, "completed", "completed")
    assert alice("handoff", "show", *named).said["result"] == {"ok": 1}


def test_a_lease_is_named_by_its_id_or_its_resource(alice, bob, kind):
    acquired(alice, kind)
    handoff = ["--handoff", sent(alice, "--resource", f"kind/{kind}")]
    [lease] = bob("handoff", "show", *handoff).said["leases"]
    assert alice("handoff", "withdraw", *handoff, "--reason", "mine").said["code"] == "withdrawn"
    again = ["--handoff", sent(alice, "--lease-ids", lease["lease_id"])]
    assert bob("handoff", "accept", *again).said["leases"][0]["resource_id"] == kind


def test_what_is_not_ones_own_cannot_be_handed_on(alice, bob, kind):
    acquired(bob, kind)
    outcome = alice("handoff", "send", "--to", "bob", "--subject", "x", "--kind", kind)
    assert (outcome.status, outcome.said["code"]) == (1, "conflict")
    assert kind in outcome.said["message"]


def test_a_handoff_is_rejected_with_a_reason(alice, bob):
    named = ["--handoff", sent(alice)]
    assert bob("handoff", "reject", *named).status == 2
    assert alice("handoff", "accept", *named).status == 2
    rejected = bob("handoff", "reject", *named, "--reason", "no access")
    assert (rejected.status, rejected.said["code"], rejected.said["status"]) == (0, "rejected", "rejected")
    again = bob("handoff", "accept", *named)
    assert (again.status, again.said["code"]) == (1, "not_found")
    boxes = alice("handoff", "inbox", "--sent", "--status", "rejected", "--limit", "200").said
    assert [entry["reason"] for entry in boxes["handoffs"] if entry["handoff_id"] == named[1]] == ["no access"]


def test_the_inbox_comes_in_pages(alice, person):
    carol = person(f"carol-{time.time_ns()}")
    name = carol("whoami").said["principal"]
    both = [sent(alice, to=name), sent(alice, to=name)]
    first = carol("handoff", "inbox", "--limit", "1").said
    second = carol("handoff", "inbox", "--limit", "1", "--after", first["next"]).said
    assert [first["handoffs"][0]["handoff_id"], second["handoffs"][0]["handoff_id"]] == both
    assert second["next"] is None


def test_an_unknown_addressee_is_answered_with_who_may_be_meant(alice, bob):
    outcome = alice("handoff", "send", "--to", "bobb", "--subject", "x")
    assert (outcome.status, outcome.said["code"]) == (1, "not_found")
    assert "bob" in outcome.said["did_you_mean"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["send", "--subject", "x"], "--to"),
        (["send", "--to", "bob", "--subject", "x", "--done", "{"], "--done"),
        (["send", "--to", "bob", "--subject", "x", "--done", '"x"'], "done"),
        (["send", "--to", "bob", "--subject", "x", "--resource", "x"], "--resource"),
        (["inbox", "--limit", "0"], "--limit"),
        (["show"], "--handoff"),
        (["accept", "--handoff", "x", "--ttl-seconds", "x"], "--ttl-seconds"),
        (["complete", "--handoff", "x", "--result", "{"], "--result"),
    ],
)
def test_a_wrong_command_line_names_what_is_wrong(alice, arguments, named):
    outcome = alice("handoff", *arguments)
    assert (outcome.status, outcome.said["code"]) == (2, "usage")
    assert named in outcome.said["message"]


def test_a_checkpoint_is_saved_by_compare_and_swap(alice, bob):
    name = ["--subject", f"s/{time.time_ns()}", "--kind", "progress"]
    first = alice("checkpoint", "save", *name, "--state", '{"step": 1}')
    assert (first.status, first.said["code"], first.said["version"]) == (0, "saved", 1)
    stale = alice("checkpoint", "save", *name, "--state", '{"step": 9}')
    assert (stale.status, stale.said["code"], stale.said["current_version"]) == (1, "version_conflict", 1)
    second = alice("checkpoint", "save", *name, "--state", "-", "--expected-version", "1", input='{"step": 2}')
    assert second.said["version"] == 2
    assert alice("checkpoint", "save", *name, "--state", "3", "--expected-version", "any").said["version"] == 3
    got = alice("checkpoint", "get", *name, "--version", "2")
    assert (got.status, got.said["code"], got.said["state"]) == (0, "shown", {"step": 2})
    by_id = alice("checkpoint", "get", "--checkpoint", first.said["checkpoint_id"])
    assert (by_id.said["state"], by_id.said["version"]) == (3, 3)
    assert bob("checkpoint", "get", *name).said["code"] == "not_found"


def test_a_stale_writer_is_refused_by_the_fence(alice, kind):
    name = ["--subject", kind, "--kind", "progress", "--fence", f"kind/{kind}"]
    token = acquired(alice, kind)["token"]
    assert alice("checkpoint", "save", *name, "--token", token, "--state", "1").status == 0
    alice("lease", "release", "--kind", kind, "--token", token)
    acquired(alice, kind)
    stale = alice("checkpoint", "save", *name, "--token", token, "--state", "2", "--expected-version", "1")
    assert (stale.status, stale.said["code"]) == (1, "stale_token")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["save", "--subject", "s", "--kind", "k"], "--state"),
        (["save", "--subject", "s", "--kind", "k", "--state", "{"], "--state"),
        (["save", "--subject", "s", "--kind", "k", "--state", "1", "--expected-version", "-1"], "--expected-version"),
        (["save", "--subject", "s", "--kind", "k", "--state", "1", "--fence", "a/b"], "--token"),
        (["save", "--subject", "s", "--kind", "k", "--state", "1", "--fence", "a", "--token", "1"], "--fence"),
        (["get", "--subject", "s"], "--kind"),
        (["get", "--subject", "s", "--checkpoint", "c"], "--checkpoint"),
    ],
)
def test_a_wrong_checkpoint_command_names_what_is_wrong(alice, arguments, named):
    outcome = alice("checkpoint", *arguments)
    assert (outcome.status, outcome.said["code"]) == (2, "usage")
    assert named in outcome.said["message"]
