"""A server with the leases of one organization in memory, for the faults that the real one cannot make:
answers that are dropped, late, broken off or nonsense.

``faults`` is a list of functions that see each request first: one that returns True has dealt with it.
"""

import json
import socket
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

from leasehub.cli.timestamps import iso


class Refusal(Exception):
    def __init__(self, status, code, **fields):
        self.status, self.error = status, {"code": code, "message": f"refused: {code}", **fields}


class Leases:
    def __init__(self, principals):
        self.principals = principals
        self.rows = {}
        self.remembered = {}
        self.tokens = {}
        # Payloads that wait in the one queue, and the results that came of them.
        self.tasks = []
        self.results = []
        # The states of the requests to the one pool, by id.
        self.requests = {}
        self.events = []
        self.lock = threading.Lock()

    def now(self):
        return time.time_ns() // 1_000_000

    def answer(self, principal, method, path, query, body, key):
        with self.lock:
            if key and (principal, key) in self.remembered:
                return self.remembered[principal, key]
            answered = self.route(principal, method, path.split("/")[2:], query, body)
            if key:
                self.remembered[principal, key] = answered
            return answered

    def route(self, principal, method, path, query, body):
        match method, path:
            case "GET", ["whoami"]:
                return 200, {"principal": principal, "organization": "acme", "rings": [1, 2, 3]}
            case "POST", ["leases"]:
                return 201, self.acquire(principal, body)
            case "GET", ["leases", "status"]:
                return 200, self.view(principal, query["resource_type"], query["resource_id"])
            case "POST", ["leases", "hot-claim"]:
                return (200, self.claim(principal, body)) if self.tasks else (204, None)
            case "POST", ["tasks", task_id, "complete"]:
                return 200, self.complete(principal, task_id, body)
            case "GET", ["events"]:
                after = len(self.events) if query["after"] == "tail" else int(query["after"])
                events = [event for event in self.events if event["position"] > after]
                return 200, {"events": events, "next": None, "cursor": str(len(self.events))}
            case "POST", ["pools", _, "requests"]:
                request_id = f"req_{uuid.uuid4().hex}"
                self.requests[request_id] = "queued"
                return 202, self.request(request_id)
            case "GET", ["pools", _, "requests", request_id]:
                return 200, self.request(request_id)
            case "DELETE", ["pools", _, "requests", request_id]:
                self.requests[request_id] = "cancelled"
                return 200, self.request(request_id)
            case "POST", ["leases", lease_id, "heartbeat"]:
                return 200, self.heartbeat(principal, lease_id, body["fencing_token"])
            case "DELETE", ["leases", lease_id]:
                return 200, self.release(principal, lease_id)
            case "POST", ["fence", "check"]:
                resource = body["resource_type"], body["resource_id"]
                return 200, {"current": False, "highest_token": self.tokens.get(resource, 0)}
        raise Refusal(404, "NOT_FOUND")

    def acquire(self, principal, body):
        resource, now = (body["resource_type"], body["resource_id"]), self.now()
        row = self.rows.get(resource)
        if row and now < row["expires"]:
            raise Refusal(
                409,
                "CONFLICT",
                expires_at=iso(row["expires"]),
                retry_after_ms=row["expires"] - now,
                held_by_self=(row["principal"], row["holder"]) == (principal, body["holder"]),
            )
        token = max(self.tokens.get(resource, 0) + 1, now)
        self.tokens[resource] = token
        self.rows[resource] = {
            "lease_id": f"lease_{uuid.uuid4().hex}",
            "principal": principal,
            "holder": body["holder"],
            "token": token,
            "ttl": body["ttl_seconds"],
            "expires": now + body["ttl_seconds"] * 1000,
            "beat": now,
            "since": now,
            "payload": body.get("payload"),
            "purpose": body.get("purpose"),
        }
        new = self.rows[resource]
        previous = row and {
            "lease_id": row["lease_id"],
            "holder": row["holder"],
            "acquired_at": iso(row["since"]),
            "heartbeat_at": iso(row["beat"]),
            "expires_at": iso(row["expires"]),
        }
        return {**self.figures(new), "took_over_expired": bool(row), "previous": previous}

    def claim(self, principal, body):
        task_id = f"t_{uuid.uuid4().hex}"
        resource = {"resource_type": "task", "resource_id": task_id}
        payload = self.tasks.pop(0)
        self.acquire(principal, {**body, **resource, "ttl_seconds": body.get("ttl_seconds", 300), "payload": payload})
        row = self.rows["task", task_id]
        return {**self.figures(row), "task_id": task_id, "attempt": 1, "payload": payload}

    def complete(self, principal, task_id, body):
        row = self.rows.get(("task", task_id))
        self.heartbeat(principal, row and row["lease_id"], body["fencing_token"])
        del self.rows["task", task_id]
        self.results.append(body.get("result"))
        return {"task_id": task_id, "state": "done", "ready_at": None}

    def request(self, request_id):
        view = {"request_id": request_id, "state": self.requests[request_id], "position": 1, "eta_ms": 480_000}
        return {**view, "count": 1, "mode": "blocking", "grants": [], "shell_prefix": "POOL_LEASE"}

    def figures(self, row):
        return {
            "lease_id": row["lease_id"],
            "fencing_token": row["token"],
            "expires_at": iso(row["expires"]),
            "expires_in_ms": max(0, row["expires"] - self.now()),
        }

    def view(self, principal, resource_type, resource_id):
        row, now = self.rows.get((resource_type, resource_id)), self.now()
        resource = {"resource_type": resource_type, "resource_id": resource_id}
        if row is None:
            names = "expires_at expires_in_ms expired_for_ms lease_id holder payload fencing_token"
            return {**resource, "state": "free", "mine": False, **dict.fromkeys(names.split())}
        return {
            **resource,
            **self.figures(row),
            "state": "held" if now < row["expires"] else "unknown",
            "expired_for_ms": max(0, now - row["expires"]),
            "mine": row["principal"] == principal,
            "principal": row["principal"],
            "holder": row["holder"],
            "purpose": row["purpose"],
            "payload": row["payload"],
            "ttl_seconds": row["ttl"],
            "acquired_at": iso(row["since"]),
            "heartbeat_at": iso(row["beat"]),
        }

    def own(self, principal, lease_id):
        for resource, row in self.rows.items():
            if row["lease_id"] == lease_id and row["principal"] == principal:
                return resource, row
        raise Refusal(404, "NOT_FOUND")

    def heartbeat(self, principal, lease_id, token):
        _, row = self.own(principal, lease_id)
        if row["token"] != token:
            raise Refusal(409, "STALE_TOKEN")
        if self.now() >= row["expires"]:
            raise Refusal(410, "LEASE_LOST", ended_by="expired", ended_at=iso(row["expires"]))
        row["beat"] = self.now()
        row["expires"] = self.now() + row["ttl"] * 1000
        return self.figures(row)

    def release(self, principal, lease_id):
        resource, row = self.own(principal, lease_id)
        del self.rows[resource]
        return {
            "lease_id": lease_id,
            "released_at": iso(self.now()),
            "was_expired": self.now() >= row["expires"],
        }


class FakeServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.leases = Leases({"lh_alice": "alice", "lh_bob": "bob"})
        self.faults = []
        self.seen = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request, client_address):
        """A client that went away is what these tests are about."""

    def environment(self, name="alice", **more):
        return {"LEASEHUB_URL": self.url, "LEASEHUB_TOKEN": f"lh_{name}", **more}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeServer

    def log_message(self, *arguments):
        pass

    def handle_request(self):
        size = int(self.headers.get("content-length") or 0)
        self.body = json.loads(self.rfile.read(size)) if size else None
        self.server.seen.append((self.command, self.path, self.headers, self.body))
        if any(fault(self) for fault in self.server.faults):
            return
        self.reply(*self.answer())

    do_GET = do_POST = do_DELETE = handle_request

    def answer(self):
        token = self.headers.get("authorization", "").removeprefix("Bearer ")
        principal = self.server.leases.principals.get(token)
        address = urlsplit(self.path)
        try:
            if principal is None:
                raise Refusal(401, "UNAUTHENTICATED")
            status, data = self.server.leases.answer(
                principal,
                self.command,
                address.path,
                dict(parse_qsl(address.query)),
                self.body,
                self.headers.get("idempotency-key"),
            )
        except Refusal as refusal:
            return refusal.status, {"error": refusal.error}
        return status, {"data": data}

    def reply(self, status, document):
        self.reply_with(status, b"" if status == 204 else json.dumps(document).encode())

    def reply_with(self, status, content, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "transfer_encoding" not in headers:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def hang_up(self):
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)
