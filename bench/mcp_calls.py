"""Calls LeaseHub's WSGI application in this process and prints the CPU time of a call, by door and verb, as JSON.

A process of its own, because the settings of the bench are another application's. Without a web server in between,
whose share is the same for both doors: the figure is stricter for it.
"""

import io
import itertools
import json
import sys
import time
from collections.abc import Callable
from typing import Any

MODERN = "2026-07-28"
META = {"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}}


class Doors:
    """The same verbs over HTTP and MCP, each against a lease of its own."""

    def __init__(self, secret: str) -> None:
        from leasehub.wsgi import application

        self.application = application
        self.secret = secret
        self.numbers = itertools.count()
        granted = self.rest("POST", "/v1/leases", self.resource("kept"), 201)["data"]
        self.held = {"lease_id": granted["lease_id"], "fencing_token": granted["fencing_token"]}

    def verbs(self) -> dict[str, dict[str, Callable[[], object]]]:
        beat = {"fencing_token": self.held["fencing_token"]}
        kept = {"resource_type": "bench", "resource_id": "kept"}
        query = "resource_type=bench&resource_id=kept"
        return {
            "acquire": {
                "HTTP": lambda: self.rest("POST", "/v1/leases", self.resource(f"r{next(self.numbers)}"), 201),
                "MCP": lambda: self.tool("lease_acquire", self.resource(f"m{next(self.numbers)}")),
            },
            "heartbeat": {
                "HTTP": lambda: self.rest("POST", f"/v1/leases/{self.held['lease_id']}/heartbeat", beat, 200),
                "MCP": lambda: self.tool("lease_heartbeat", self.held),
            },
            "status": {
                "HTTP": lambda: self.rest("GET", f"/v1/leases/status?{query}", None, 200),
                "MCP": lambda: self.tool("lease_status", kept),
            },
        }

    def resource(self, resource_id: str) -> dict[str, object]:
        return {"resource_type": "bench", "resource_id": resource_id, "ttl_seconds": 600, "holder": "bench.1"}

    def rest(self, method: str, path: str, body: object, expected: int) -> Any:
        return self.call(method, path, body, expected, {})

    def tool(self, name: str, arguments: dict[str, object]) -> Any:
        message = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": name, "arguments": arguments, "_meta": META},
        }
        headers = {
            "HTTP_MCP_PROTOCOL_VERSION": MODERN,
            "HTTP_MCP_METHOD": "tools/call",
            "HTTP_MCP_NAME": name,
            "HTTP_LEASEHUB_HOLDER": "bench.1",
        }
        answer = self.call("POST", "/mcp", message, 200, headers)
        if answer["result"]["isError"]:
            raise SystemExit(f"{name}: {answer}")
        return answer

    def call(self, method: str, path: str, body: object, expected: int, headers: dict[str, str]) -> Any:
        content = b"" if body is None else json.dumps(body).encode()
        address, _, query = path.partition("?")
        environ = {
            "REQUEST_METHOD": method, "PATH_INFO": address, "QUERY_STRING": query, "SCRIPT_NAME": "",
            "SERVER_NAME": "127.0.0.1", "SERVER_PORT": "80", "SERVER_PROTOCOL": "HTTP/1.1",
            "HTTP_HOST": "127.0.0.1", "HTTP_AUTHORIZATION": f"Bearer {self.secret}",
            "CONTENT_TYPE": "application/json", "CONTENT_LENGTH": str(len(content)),
            "wsgi.input": io.BytesIO(content), "wsgi.errors": sys.stderr, "wsgi.url_scheme": "http",
            "wsgi.version": (1, 0), "wsgi.multithread": False, "wsgi.multiprocess": False, "wsgi.run_once": False,
            **headers,
        }  # fmt: skip
        statuses: list[str] = []
        answered = b"".join(self.application(environ, lambda status, headers: statuses.append(status)))
        if not statuses[0].startswith(str(expected)):
            raise SystemExit(f"{method} {path}: {statuses[0]} {answered[:500]!r}")
        return json.loads(answered)


def main() -> None:
    secret, rounds, calls = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    doors = Doors(secret)
    seen: dict[str, dict[str, list[float]]] = {}
    for verb, sides in doors.verbs().items():
        for call in sides.values():
            for _ in range(20):
                call()
        seen[verb] = {door: [] for door in sides}
        for _ in range(rounds):
            for door, call in sides.items():
                start = time.process_time()
                for _ in range(calls):
                    call()
                seen[verb][door].append((time.process_time() - start) / calls)
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
