"""What is true of every tool: names, schemas, annotations, strictness, rings, the operation that it is."""

import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from leasehub.mcp import tools  # noqa: F401  registers them
from leasehub.mcp.server import server
from tests.api.test_rings import RINGS
from tests.conftest import cast
from tests.mcp.conftest import Session

TOOLS = """
    lease_acquire lease_heartbeat lease_release lease_status lease_wait lease_force_release
    task_claim task_heartbeat task_complete task_fail task_release task_status
    pool_acquire pool_wait pool_release pool_status
    handoff_offer handoff_inbox handoff_get handoff_accept handoff_reject handoff_withdraw handoff_complete
    agent_whoami agent_list whats_new explain
""".split()  # noqa: SIM905
READS = {
    "lease_status", "lease_wait", "task_status", "pool_status", "handoff_inbox", "handoff_get", "agent_whoami",
    "agent_list", "whats_new", "explain",
}  # fmt: skip
REPEATABLE = {
    "lease_acquire", "lease_heartbeat", "lease_release", "task_heartbeat", "task_complete", "task_fail",
    "task_release", "pool_wait", "pool_release", "handoff_accept",
}  # fmt: skip
#: What a key with every ring may say to each.
MINIMAL: dict[str, dict[str, Any]] = {
    "lease_acquire": {"resource_type": "a", "resource_id": "b"},
    "lease_heartbeat": {"lease_id": "lease_x", "fencing_token": 1},
    "lease_release": {"lease_id": "lease_x"},
    "lease_status": {"resource_type": "a", "resource_id": "b"},
    "lease_wait": {"resource_type": "a", "resource_id": "b"},
    "lease_force_release": {"lease_id": "lease_x", "fencing_token": 1, "reason": "r"},
    "task_claim": {"queue": "q"},
    "task_heartbeat": {"task_id": "t_x", "fencing_token": 1},
    "task_complete": {"task_id": "t_x", "fencing_token": 1},
    "task_fail": {"task_id": "t_x", "fencing_token": 1, "error": "e"},
    "task_release": {"task_id": "t_x", "fencing_token": 1},
    "task_status": {"task_id": "t_x"},
    "pool_acquire": {"pool": "p"},
    "pool_wait": {"pool": "p", "request_id": "req_x"},
    "pool_release": {"pool": "p", "request_id": "req_x"},
    "pool_status": {"pool": "p"},
    "handoff_offer": {"to_principal": "x", "subject_id": "s"},
    "handoff_inbox": {},
    "handoff_get": {"handoff_id": "hoff_x"},
    "handoff_accept": {"handoff_id": "hoff_x"},
    "handoff_reject": {"handoff_id": "hoff_x", "reason": "r"},
    "handoff_withdraw": {"handoff_id": "hoff_x"},
    "handoff_complete": {"handoff_id": "hoff_x"},
    "agent_whoami": {},
    "agent_list": {},
    "whats_new": {},
    "explain": {"resource_type": "a", "resource_id": "b"},
}


def definition(name: str) -> dict[str, Any]:
    known: dict[str, Any] = server._tools[name].definition
    return known


def test_the_tools_are_these(operating: Session) -> None:
    assert list(operating.tools()) == list(server.acts)
    assert sorted(server.acts) == sorted(TOOLS) == sorted(MINIMAL)


def test_the_documentation_names_every_tool() -> None:
    text = (Path(__file__).resolve().parent.parent.parent / "docs" / "mcp.md").read_text()
    assert [name for name in TOOLS if f"`{name}`" not in text] == []


@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_is_within_what_clients_take(name: str) -> None:
    known = definition(name)
    # As Claude Code names it; some clients stop at 64 characters, and at 1,024 of a description.
    assert len(f"mcp__leasehub__{name}") <= 64
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", name)
    assert 30 < len(known["description"]) <= 1024
    for schema in (known["inputSchema"], known["outputSchema"]):
        Draft202012Validator.check_schema(schema)
        assert schema["type"] == "object"
    assert known["inputSchema"]["additionalProperties"] is False
    assert not re.search(r'"(anyOf|oneOf)": .*"null"', str(known["inputSchema"]))


@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_is_annotated(name: str) -> None:
    assert definition(name)["annotations"] == {
        "readOnlyHint": name in READS,
        "destructiveHint": name == "lease_force_release",
        "idempotentHint": name in READS | REPEATABLE,
        "openWorldHint": False,
    }


def test_an_unknown_argument_is_refused_in_band_and_named(operating: Session) -> None:
    for name in TOOLS:
        refusal = operating.refused(name, **MINIMAL[name], force=True)
        assert (refusal["code"], refusal["fields"]) == ("VALIDATION_ERROR", {"force": "is not a known member"}), name


WRONG: dict[str, list[Any]] = {
    "string": [7],
    "integer": ["600", True, 1.5],
    "boolean": ["true"],
    "array": [{}],
    "object": [[]],
}


def test_a_mistyped_argument_is_refused_in_band_and_named(operating: Session) -> None:
    for name in TOOLS:
        for member, known in definition(name)["inputSchema"]["properties"].items():
            for wrong in WRONG[known["type"]] if "type" in known else []:
                refusal = operating.refused(name, **{**MINIMAL[name], member: wrong})
                assert (refusal["code"], list(refusal["fields"])) == ("VALIDATION_ERROR", [member]), (name, member)


def test_a_missing_argument_is_named(operating: Session) -> None:
    for name in TOOLS:
        required = definition(name)["inputSchema"].get("required", [])
        if required:
            assert set(operating.refused(name)["fields"]) == set(required), name


@pytest.mark.parametrize("rings", [rings for size in (1, 2, 3) for rings in combinations((1, 2, 3), size)])
def test_a_key_is_shown_what_its_rings_allow_and_nothing_else(organization: Any, rings: tuple[int, ...]) -> None:
    session = Session(cast(organization, "somebody", rings))
    allowed = {name for name in TOOLS if RINGS[server.acts[name].operation] in (None, *rings)}
    assert set(session.tools()) == allowed
    for name in set(TOOLS) - allowed:
        answer = session.send("tools/call", {"name": name, "arguments": MINIMAL[name]}).json()
        assert answer["error"]["code"] == -32602


@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_has_the_ring_of_the_operation_that_it_is(name: str) -> None:
    act = server.acts[name]
    assert act.ring == RINGS[act.operation]


def test_what_there_is_nothing_of_is_answered_shortly(operating: Session) -> None:
    for name in set(TOOLS) - {"lease_acquire", "task_claim"}:
        result = operating.result(name, MINIMAL[name])
        assert len(str(result["structuredContent"])) < 2000, name
        assert result["isError"] == (name not in READS - {"task_status", "pool_status", "handoff_get"}), name
