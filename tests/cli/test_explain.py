"""leasehub explain against a real server."""


def test_why_a_resource_is_not_to_be_had(alice, bob, kind):
    alice("lease", "acquire", "--kind", kind, "--ttl", "5")
    said = bob("explain", "--resource", f"kind/{kind}")
    assert (said.status, said.said["code"], said.said["reason"]) == (0, "explained", "held_by_another")
    assert f"kind/{kind} is held by alice" in said.errors


def test_one_thing_is_asked_about(alice):
    for wrong in ((), ("--resource", "a"), ("--resource", "a/b", "--request", "req_1")):
        assert alice("explain", *wrong).said["code"] == "usage"
    assert alice("explain", "--request", "req_1").said["code"] == "not_found"
