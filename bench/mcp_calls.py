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

MODERN = "2026-07-28"
#: Stands for another resource at each call.
ANY = "resource-of-this-call"
META = {"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}}


class Doors:
    """The same verbs over HTTP and MCP, each against a lease of its own."""

    def __init__(self, secret: str) -> None:
        from leasehub.wsgi import application

        self.application = application
        self.secret = secret
        self.numbers = itertools.count()
        acquire = self.sender("POST", "/v1/leases", self.resource("kept"), "201", b'"fencing_token"')
        granted = json.loads(acquire())["data"]
        self.held: dict[str, object] = {"lease_id": granted["lease_id"], "fencing_token": granted["fencing_token"]}

    def verbs(self) -> dict[str, dict[str, Callable[[], object]]]:
        """What is sent is written beforehand, and of the answers only as much read as tells that they are right: the
        client's own work is no part of the figures."""
        beat = {"fencing_token": self.held["fencing_token"]}
        kept = {"resource_type": "bench", "resource_id": "kept"}
        heartbeat = f"/v1/leases/{self.held['lease_id']}/heartbeat"
        status = "/v1/leases/status?resource_type=bench&resource_id=kept"
        return {
            "acquire": {
                "HTTP": self.sender("POST", "/v1/leases", self.resource(ANY), "201", b'"fencing_token"'),
                "MCP": self.tool_sender("lease_acquire", self.resource(ANY), b'"granted":true'),
            },
            "heartbeat": {
                "HTTP": self.sender("POST", heartbeat, beat, "200", b'"fencing_token"'),
                "MCP": self.tool_sender("lease_heartbeat", self.held, b'"fencing_token"'),
            },
            "status": {
                "HTTP": self.sender("GET", status, None, "200", b'"held"'),
                "MCP": self.tool_sender("lease_status", kept, b'"held"'),
            },
        }

    def resource(self, resource_id: str) -> dict[str, object]:
        return {"resource_type": "bench", "resource_id": resource_id, "ttl_seconds": 600, "holder": "bench.1"}

    def tool_sender(self, name: str, arguments: dict[str, object], said: bytes) -> Callable[[], object]:
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
        return self.sender("POST", "/mcp", message, "200", said, headers)

    def sender(
        self, method: str, path: str, body: object, status: str, said: bytes, headers: dict[str, str] | None = None
    ) -> Callable[[], bytes]:
        content = b"" if body is None else json.dumps(body).encode()
        address, _, query = path.partition("?")
        common = {
            "REQUEST_METHOD": method, "PATH_INFO": address, "QUERY_STRING": query, "SCRIPT_NAME": "",
            "SERVER_NAME": "127.0.0.1", "SERVER_PORT": "80", "SERVER_PROTOCOL": "HTTP/1.1",
            "HTTP_HOST": "127.0.0.1", "HTTP_AUTHORIZATION": f"Bearer {self.secret}",
            "CONTENT_TYPE": "application/json", "CONTENT_LENGTH": str(len(content)),
            "wsgi.errors": sys.stderr, "wsgi.url_scheme": "http", "wsgi.version": (1, 0), "wsgi.multithread": False,
            "wsgi.multiprocess": False, "wsgi.run_once": False, **(headers or {}),
        }  # fmt: skip
        statuses: list[str] = []

        def send() -> bytes:
            # As long as what it stands in for.
            sent = content.replace(ANY.encode(), b"%0*d" % (len(ANY), next(self.numbers)))
            statuses.clear()
            environ = {**common, "wsgi.input": io.BytesIO(sent)}
            answered: bytes = b"".join(self.application(environ, lambda told, _: statuses.append(told)))
            if not statuses[0].startswith(status) or said not in answered:
                raise SystemExit(f"{method} {path}: {statuses[0]} {answered[:500]!r}")
            return answered

        return send


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
