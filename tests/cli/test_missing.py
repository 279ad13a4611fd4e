"""What is not there is named, with what to do: the server alone does not say it."""

import json

import pytest

NOTHING = "f" * 32
TASK, HANDOFF, WEBHOOK, KEY = (f"{prefix}_{NOTHING}" for prefix in ("t", "hoff", "wh", "key"))


@pytest.mark.parametrize(
    ("command", "named", "remedy"),
    [
        ("pool status --pool nowhere", "pool 'nowhere'", "leasehub pool apply FILE"),
        ("pool acquire --pool=nowhere --no-wait", "pool 'nowhere'", "leasehub pool apply FILE"),
        ("pool drain --pool nowhere --slot 1", "pool 'nowhere'", "leasehub pool apply FILE"),
        ("run --pool nowhere -- true --task x", "pool 'nowhere'", "leasehub pool apply FILE"),
        ("explain --request req_1", "request 'req_1'", "leasehub pool request"),
        (f"task show --task {TASK}", f"task '{TASK}'", "leasehub task put"),
        (f"task fail --token 1 --error x --task={TASK}", f"task '{TASK}'", "leasehub task put"),
        ("queue status --queue nowhere", "queue 'nowhere'", "leasehub task put --queue Q"),
        (f"handoff show --handoff {HANDOFF}", f"handoff '{HANDOFF}'", "leasehub handoff inbox"),
        (f"webhook show --webhook {WEBHOOK}", f"webhook '{WEBHOOK}'", "leasehub webhook list"),
        (f"key revoke {KEY}", f"key '{KEY}'", "leasehub key list"),
        (f"key rotate --overlap-seconds 5 {KEY}", f"key '{KEY}'", "leasehub key list"),
        ("checkpoint get --subject s-none --kind k", "checkpoint", "leasehub checkpoint save"),
    ],
)
def test_what_is_not_there_is_named_with_what_to_do(operator, command, named, remedy):
    outcome = operator(*command.split())
    assert (outcome.status, outcome.said["code"]) == (1, "not_found"), outcome.errors
    message = outcome.said["message"]
    assert message.startswith(f"There is no {'such ' if named == 'checkpoint' else ''}{named}")
    assert remedy in message
    assert message in outcome.errors


def test_a_pool_that_a_file_or_the_environment_names_is_named(operator, tmp_path):
    file = tmp_path / "pool.json"
    file.write_text(json.dumps({"name": "of-a-file", "slots": [{"id": 1}]}))
    outcome = operator("pool", "status", environment={"LEASE_POOL_FILE": str(file)})
    assert "There is no pool 'of-a-file'" in outcome.said["message"]


def test_what_the_server_has_words_for_it_says_itself(alice):
    outcome = alice("handoff", "send", "--to", "nobody-at-all", "--subject", "s", "--lease-ids", TASK)
    assert outcome.said["code"] == "not_found"
    assert "that this key may see" not in outcome.said["message"]
