"""A client of /mcp that holds every result against the tool's own schema."""

import itertools
import json
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from django.test import Client
from jsonschema import Draft202012Validator

from tests.conftest import Caster

MODERN = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
}
_ids = itertools.count(1)


@dataclass
class Session:
    """Somebody who speaks MCP with a key, perhaps under a holder of the process's own."""

    who: Caster
    holder: str | None = None
    era: str = MODERN

    def post(self, message: Any, **headers: str) -> Any:
        known = {"Authorization": f"Bearer {self.who.secret}", "Accept": "application/json, text/event-stream"}
        if self.holder is not None:
            known["LeaseHub-Holder"] = self.holder
        content = message if isinstance(message, bytes) else json.dumps(message).encode()
        return Client(headers={**known, **headers}).post("/mcp", content, content_type="application/json")

    def send(self, method: str, params: dict[str, Any] | None = None) -> Any:
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": next(_ids), "method": method, "params": params or {}}
        if self.era != MODERN:
            return self.post(message, **{"MCP-Protocol-Version": self.era})
        message["params"] = {**(params or {}), "_meta": META}
        headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": method}
        if method == "tools/call":
            headers["Mcp-Name"] = message["params"]["name"]
        return self.post(message, **headers)

    def tools(self) -> dict[str, dict[str, Any]]:
        return {tool["name"]: tool for tool in self.send("tools/list").json()["result"]["tools"]}

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """What a tool answers; fails when it is a refusal."""
        result = self.result(tool, arguments)
        assert result["isError"] is False, result
        answer: dict[str, Any] = result["structuredContent"]
        validator(tool).validate(answer)
        return answer

    def refused(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """What a tool refuses with; fails when it answers."""
        result = self.result(tool, arguments)
        assert result["isError"] is True, result
        refusal: dict[str, Any] = result["structuredContent"]
        assert set(refusal) >= {"code", "message", "hint"}
        return refusal

    def result(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        response = self.send("tools/call", {"name": tool, "arguments": arguments})
        assert response.status_code == 200, response.content
        result: dict[str, Any] = response.json()["result"]
        (text,) = result["content"]
        assert text["type"] == "text"
        assert json.loads(text["text"]) == result["structuredContent"]
        return result

    def acquire(self, resource_id: str = "checkout", **members: Any) -> dict[str, Any]:
        return self.call("lease_acquire", resource_type="deploy", resource_id=resource_id, **members)


@cache
def validator(tool: str) -> Draft202012Validator:
    """Of a tool's results; members that its schema does not mention are a fault too."""
    from leasehub.mcp import tools  # noqa: F401  registers them
    from leasehub.mcp.server import server

    return Draft202012Validator(_closed(server._tools[tool].definition["outputSchema"]))


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(value) for name, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        closed["additionalProperties"] = False
    return closed


@pytest.fixture
def mine(agent: Caster) -> Session:
    return Session(agent)


@pytest.fixture
def theirs(teammate: Caster) -> Session:
    return Session(teammate)


@pytest.fixture
def operating(operator: Caster) -> Session:
    return Session(operator)
