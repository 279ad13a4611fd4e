"""leasehub key and whoami against a real server."""

import pytest


def test_a_key_is_made_shown_once_listed_rotated_and_revoked(operator, person):
    made = operator(
        "key", "create", "--principal", "kim", "--label", "laptop", "--rings", "1,2", "--holder-pattern", "^kim$"
    )
    assert made.status == 0, made.errors
    assert made.said["code"] == "created"
    assert made.said["rings"] == [1, 2]
    assert made.said["holder_pattern"] == "^kim$"
    secret = made.said["api_key"]
    listed = operator("key", "list")
    assert listed.said["code"] == "listed"
    assert made.said["key_id"] in [key["key_id"] for key in listed.said["keys"]]
    assert secret not in listed.text
    kim = {"LEASEHUB_TOKEN": secret}
    assert operator("whoami", environment=kim).said["principal"] == "kim"
    rotated = operator("key", "rotate", made.said["key_id"], "--overlap-seconds", "60")
    assert rotated.said["code"] == "rotated"
    new = {"LEASEHUB_TOKEN": rotated.said["api_key"]}
    assert operator("whoami", environment=new).said["principal"] == "kim"
    assert operator("whoami", environment=kim).status == 0
    for _ in range(2):
        revoked = operator("key", "revoke", made.said["key_id"])
        assert revoked.status == 0
        assert revoked.said["code"] == "revoked"
    refused = operator("whoami", environment=kim)
    assert refused.status == 1
    assert refused.said["code"] == "unauthenticated"


@pytest.mark.parametrize(
    "arguments", [["create", "--principal", "x"], ["list"], ["revoke", "key_x"], ["rotate", "key_x"]]
)
def test_keys_are_the_operators(alice, arguments):
    outcome = alice("key", *arguments)
    assert outcome.status == 1
    assert outcome.said["code"] == "forbidden"


def test_a_key_that_is_not_there(operator):
    outcome = operator("key", "revoke", "key_" + "0" * 32)
    assert outcome.status == 1
    assert outcome.said["code"] == "not_found"


def test_whoami_says_which_server_and_from_where(alice, server):
    said = alice("whoami").said
    assert said["principal"] == "alice"
    assert said["url"] == server["url"]
    assert said["credentials"] == "LEASEHUB_URL and LEASEHUB_TOKEN"


def test_doctor_examines_the_server(operator, alice):
    outcome = operator("doctor")
    said = outcome.said
    assert (outcome.status == 0) == said["ok"]
    checks = {check["check"]: check["status"] for check in said["checks"]}
    assert {checks[name] for name in ("server", "database", "migrations", "clock_of_client")} == {"ok"}
    assert len(outcome.errors.splitlines()) == len(checks)
    assert alice("doctor").said["code"] == "forbidden"
