"""A verb has one name at every door: service, route, event, command line."""

import inspect
from importlib import import_module

from leasehub import cli
from leasehub.events.types import TYPES
from leasehub.mcp import tools  # noqa: F401  registers them
from leasehub.mcp.server import server as mcp
from leases import services
from tests import contract

# For owners of types alone (queues, pools, handoffs): nobody calls these from outside.
FOR_OWNERS = {"grant", "transfer"}
# Questions: a query answers them, and nothing is journaled.
READS = {"list", "show", "status", "reaped"}
# The command line beats one lease at a time, forces with ``release --force``, and asks by resource.
NOT_ON_THE_COMMAND_LINE = {"heartbeats", "force_release", "show", "reaped"}
# What each event tells of: heartbeats are not journaled, and a sweep journals what it reaps.
EVENTS = {
    "lease.acquired": "acquire",
    "lease.taken_over": "acquire",
    "lease.released": "release",
    "lease.force_released": "force_release",
    "lease.reaped": "reap",
    "lease.transferred": "transfer",
}
UNJOURNALED = {"heartbeat", "heartbeats", "reconcile"}

# A model is told of an agent what the API says of a key, and asks for what it wants rather than for a page of it.
TOOLS_OF_ANOTHER_NAME = {
    "lease_wait": "lease_status",
    "task_heartbeat": "lease_heartbeat",
    "task_release": "lease_release",
    "task_status": "task_show",
    "pool_acquire": "pool_request",
    "pool_wait": "pool_request_show",
    "pool_status": "pool_show",
    "handoff_offer": "handoff_send",
    "handoff_inbox": "handoff_list",
    "handoff_get": "handoff_show",
    "handoff_accept": "handoff_resolve",
    "handoff_reject": "handoff_resolve",
    "agent_whoami": "whoami",
    "agent_list": "principal_list",
    "whats_new": "event_list",
}


def verbs() -> set[str]:
    """The services that somebody from outside may call: keyword-only, with a caller or an actor."""
    found = set()
    for name, function in inspect.getmembers(services, inspect.isfunction):
        parameters = inspect.signature(function).parameters.values()
        keyword_only = all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters)
        who = {parameter.name for parameter in parameters} & {"caller", "actor"}
        if function.__module__ == services.__name__ and not name.startswith("_") and keyword_only and who:
            found.add(name)
    return found - FOR_OWNERS


def routes(word: str) -> set[str]:
    ids = {operation["operationId"] for operation in contract.operations().values()}
    return {name.removeprefix(f"{word}_") for name in ids if name.startswith(f"{word}_")}


def commands(word: str) -> set[str]:
    return {verb.removeprefix(f"{word} ") for verb in cli.VERBS if verb.startswith(f"{word} ")}


def test_there_are_verbs() -> None:
    assert verbs() >= {"acquire", "heartbeat", "release", "force_release", "reap", "reconcile"}
    assert {name for name, _ in inspect.getmembers(services, inspect.isfunction)} >= FOR_OWNERS


def test_every_verb_of_the_lease_has_its_route_and_every_route_its_verb() -> None:
    assert routes("lease") == verbs() | READS


def test_every_verb_of_the_lease_has_its_event_and_every_event_its_verb() -> None:
    assert {name for name in TYPES if name.startswith("lease.")} == set(EVENTS)
    assert set(EVENTS.values()) | UNJOURNALED == verbs() | {"transfer"}


def test_every_verb_of_the_lease_is_on_the_command_line_and_nothing_else() -> None:
    assert commands("lease") == (verbs() | READS) - NOT_ON_THE_COMMAND_LINE


def test_every_verb_of_a_key_on_the_command_line_is_a_route() -> None:
    assert commands("key") == routes("key")


def test_every_verb_of_a_webhook_on_the_command_line_is_a_route() -> None:
    # The command line has one replay for both, and waits for a test by looking at its delivery.
    assert commands("webhook") == routes("webhook") - {"replay_delivery", "delivery"}


def test_every_command_is_a_function() -> None:
    for module, name in cli.VERBS.values():
        assert callable(getattr(import_module(f"leasehub.cli.{module}"), name))


def test_a_path_says_the_verb_that_its_operation_says() -> None:
    for (_, path), operation in contract.operations().items():
        if operation["operationId"] == "task_claim":
            assert path == "/v1/leases/hot-claim"
            continue
        words = {segment.rstrip("s") for segment in path.split("/")}
        assert operation["operationId"].partition("_")[0] in words, (path, operation["operationId"])


def test_every_tool_is_an_operation_by_its_name_or_by_one_of_these() -> None:
    known = {operation["operationId"] for operation in contract.operations().values()}
    assert {act.operation for act in mcp.acts.values()} <= known
    renamed = {name: act.operation for name, act in mcp.acts.items() if name != act.operation}
    assert renamed == TOOLS_OF_ANOTHER_NAME


def test_every_verb_of_a_holder_has_its_tool() -> None:
    done = {act.operation.removeprefix("lease_") for act in mcp.acts.values()}
    # One beats a lease at a time; sweeping up is the reaper's and the command line's.
    assert verbs() - {"heartbeats", "reap", "reconcile"} <= done
