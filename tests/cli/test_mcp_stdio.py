"""leasehub mcp-stdio: lines in, lines out, whatever the server does meanwhile."""

import json
import socket
import subprocess

import pytest

from tests.cli.conftest import is_alive
from tests.client.proxy import lose_answer, proxying

MODERN = "2026-07-28"
META = {"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}}


class Host:
    """What starts a bridge and speaks with it."""

    def __init__(self, who, *arguments, environment=None):
        self.process = who.start(
            "mcp-stdio", *arguments, environment=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip
        self.asked = 0

    def write(self, line):
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def ask(self, method, **params):
        self.asked += 1
        self.write(json.dumps({"jsonrpc": "2.0", "id": self.asked, "method": method, "params": params}).encode())
        return self.asked

    def read(self):
        return json.loads(self.process.stdout.readline())

    def call(self, tool, **arguments):
        asked = self.ask("tools/call", name=tool, arguments=arguments, _meta=META)
        answer = self.read()
        assert answer["id"] == asked
        return answer["result"]["structuredContent"]

    def end(self):
        """Closes stdin; everything that was written besides what was read."""
        return self.process.communicate(timeout=30)


@pytest.fixture
def host(alice):
    started = Host(alice)
    yield started
    if is_alive(started.process.pid):
        started.process.kill()
    started.process.communicate()


def test_a_session_of_either_era_and_nothing_but_messages_on_stdout(host, alice):
    host.ask("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "t", "version": "1"})
    assert host.read()["result"]["protocolVersion"] == "2025-06-18"
    host.write(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}')
    host.write(b"")
    who = host.call("agent_whoami")
    assert who["holder"].startswith("alice:") and who["holder"].endswith(f":{host.process.pid}")
    host.write(b"nonsense")
    assert host.read()["error"]["code"] == -32700
    host.write(b"[]")
    assert host.read()["error"]["code"] == -32600
    rest, errors = host.end()
    assert (host.process.returncode, rest, errors) == (0, b"", b"")


def test_two_bridges_on_one_key_are_two_holders(host, alice, kind):
    other = Host(alice, "--holder", "alice.other")
    named = {"resource_type": "kind", "resource_id": kind}
    assert host.call("lease_acquire", **named)["granted"] is True
    taken = other.call("lease_acquire", **named)
    assert (taken["granted"], taken["held_by_self"]) == (False, False)
    assert other.call("agent_whoami")["holder"] == "alice.other"
    other.end()


def test_calls_do_not_wait_for_each_other(host, alice, kind):
    named = {"resource_type": "kind", "resource_id": kind}
    granted = host.call("lease_acquire", **named)
    waits = host.ask("tools/call", name="lease_wait", arguments={**named, "wait_seconds": 25}, _meta=META)
    mine = {"lease_id": granted["lease_id"], "fencing_token": granted["fencing_token"]}
    quick = host.ask("tools/call", name="lease_release", arguments=mine, _meta=META)
    assert {host.read()["id"] for _ in range(2)} == {waits, quick}


def test_a_server_that_is_away_is_told_in_band_and_the_next_call_goes_through(alice):
    with proxying(alice.environment["LEASEHUB_URL"]) as proxy:
        host = Host(alice, environment={"LEASEHUB_URL": proxy.url})
        assert host.call("agent_whoami")["principal"] == "alice"
        with proxy.away():
            away = host.call("agent_whoami")
            assert (away["code"], away["retry_after_s"]) == ("UNREACHABLE", 2)
            host.ask("tools/list")
            assert host.read()["error"]["code"] == -32603
        assert host.call("agent_whoami")["principal"] == "alice"
        _, errors = host.end()
    assert alice.environment["LEASEHUB_TOKEN"].encode() not in errors


def test_what_may_have_been_done_is_never_sent_again(alice, kind):
    with proxying(alice.environment["LEASEHUB_URL"]) as proxy:
        host = Host(alice, environment={"LEASEHUB_URL": proxy.url})
        host.call("agent_whoami")
        proxy.once(lose_answer, path="/mcp")
        lost = host.call("lease_acquire", resource_type="kind", resource_id=kind)
        assert (lost["code"], "look" in lost["hint"]) == ("UNREACHABLE", True)
        assert host.call("lease_status", resource_type="kind", resource_id=kind)["mine"] is True
        assert proxy.of("POST", "/mcp") == 3
        host.end()


def test_a_server_that_was_never_there_is_waited_for_and_told(alice):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        host = Host(alice, environment={"LEASEHUB_URL": url})
        away = host.call("agent_whoami")
    assert (away["code"], "Nothing was done" in away["hint"]) == ("UNREACHABLE", True)
    host.end()


def test_a_key_that_does_not_work_is_told_in_band_and_never_printed(alice):
    token = f"lh_{'a' * 8}_{'b' * 49}"
    host = Host(alice, environment={"LEASEHUB_TOKEN": token})
    refused = host.call("agent_whoami")
    assert (refused["code"], "operator" in refused["hint"]) == ("UNAUTHENTICATED", True)
    host.ask("tools/list")
    assert host.read()["error"]["code"] == -32000
    rest, errors = host.end()
    assert token.encode() not in rest + errors


def test_a_fence_without_room_for_a_process_leaves_the_principal(person):
    host = Host(person("fred", "--holder-pattern", "^fred$"))
    assert host.call("agent_whoami")["holder"] == "fred"
    host.end()


def test_a_holder_outside_the_fence_is_refused_in_band(person):
    host = Host(person("fred", "--holder-pattern", "^fred(-.*)?$"), environment={"LEASEHUB_HOLDER": "other"})
    assert host.call("agent_whoami")["code"] == "FORBIDDEN"
    _, errors = host.end()
    assert errors == b""


def test_an_empty_holder_counts_as_none(alice):
    host = Host(alice, "--holder", "", environment={"LEASEHUB_HOLDER": ""})
    assert host.call("agent_whoami")["holder"].endswith(f":{host.process.pid}")
    host.end()


@pytest.mark.parametrize("holder", ["h" * 129, "a\nb", " a", "fred-\n", "ü", "fred-\u2014"])
@pytest.mark.parametrize("by_environment", [False, True])
def test_a_holder_that_none_can_be_is_usage_at_the_start(alice, holder, by_environment):
    arguments = () if by_environment else ("--holder", holder)
    environment = {"LEASEHUB_HOLDER": holder} if by_environment else {}
    outcome = alice("mcp-stdio", *arguments, environment=environment, input="")
    assert (outcome.status, outcome.said["code"]) == (2, "usage")
