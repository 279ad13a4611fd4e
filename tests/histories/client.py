"""A client process that takes, keeps and gives back leases at random, and records what it did and was told.

Arguments: port, secret, file, seed, seconds. The file's name is the holder. A line is written before each request and
one after its answer, so that a client that is killed leaves its last request unanswered, as it was.
"""

import http.client
import json
import random
import sys
import time
from pathlib import Path
from typing import Any, TextIO

RESOURCES = ("build", "deploy", "database", "staging")


class Client:
    def __init__(self, port: int, secret: str, record: TextIO, holder: str, dice: random.Random) -> None:
        self.secret, self.record, self.holder, self.dice = secret, record, holder, dice
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        self.number = 0
        #: What this client believes to hold, and what it once held.
        self.leases: dict[str, tuple[str, int]] = {}
        self.ended: list[tuple[str, str, int]] = []

    def step(self) -> None:
        resource = self.dice.choice(RESOURCES)
        choice = self.dice.random()
        if choice < 0.05 and self.ended:
            self.beat(*self.dice.choice(self.ended))
        elif resource not in self.leases or choice < 0.15:
            self.acquire(resource)
        elif choice < 0.7:
            self.beat(resource, *self.leases[resource])
        elif choice < 0.95:
            self.release(resource)
        else:
            time.sleep(self.dice.uniform(0.5, 2.0))
        time.sleep(self.dice.expovariate(1 / 0.02))

    def acquire(self, resource: str) -> None:
        ttl = self.dice.randint(1, 3)
        body = {"resource_type": "r", "resource_id": resource, "ttl_seconds": ttl, "holder": self.holder}
        reacquire = self.dice.random() < 0.5
        sent = {"verb": "acquire", "resource": resource, "ttl": ttl}
        status, answer = self.send(sent, "POST", "/v1/leases", body | {"reacquire": reacquire}, ok=201)
        if status == 201:
            self.forget(resource)
            self.leases[resource] = (answer["data"]["lease_id"], answer["data"]["fencing_token"])

    def beat(self, resource: str, lease: str, token: int) -> None:
        ttl = self.dice.randint(1, 3)
        body = {"fencing_token": token, "ttl_seconds": ttl}
        sent = {"verb": "heartbeat", "resource": resource, "ttl": ttl, "token": token}
        status, _ = self.send(sent, "POST", f"/v1/leases/{lease}/heartbeat", body, ok=200)
        if status in (404, 409, 410):
            self.forget(resource)

    def release(self, resource: str) -> None:
        lease, token = self.leases[resource]
        sent = {"verb": "release", "resource": resource, "token": token}
        self.send(sent, "DELETE", f"/v1/leases/{lease}?fencing_token={token}", None, ok=200)
        self.forget(resource)

    def forget(self, resource: str) -> None:
        if resource in self.leases:
            self.ended = [*self.ended[-20:], (resource, *self.leases.pop(resource))]

    def send(self, sent: dict[str, Any], method: str, path: str, body: Any, *, ok: int) -> tuple[int, dict[str, Any]]:
        self.number += 1
        self.write(sent | {"number": self.number, "holder": self.holder, "sent": time.monotonic()})
        try:
            self.connection.request(
                method,
                path,
                None if body is None else json.dumps(body),
                {"Authorization": f"Bearer {self.secret}", "Content-Type": "application/json"},
            )
            response = self.connection.getresponse()
            answer = json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError):
            # Nothing is recorded: what became of it is unknown.
            self.connection.close()
            return 0, {}
        status = response.status
        told = {
            "number": self.number,
            "answered": time.monotonic(),
            "ok": True if status == ok else None if status >= 500 else False,
            "status": status,
        }
        data = answer.get("data", {})
        if "fencing_token" in data:
            told["token"] = data["fencing_token"]
        if "was_expired" in data:
            told["was_expired"] = data["was_expired"]
        if "error" in answer:
            told["code"] = answer["error"]["code"]
        self.write(told)
        return status, answer

    def write(self, record: dict[str, Any]) -> None:
        self.record.write(json.dumps(record) + "\n")
        self.record.flush()


def main() -> None:
    port, secret, file, seed, seconds = sys.argv[1:]
    deadline = time.monotonic() + float(seconds)
    with Path(file).open("w") as record:
        client = Client(int(port), secret, record, Path(file).stem, random.Random(seed))
        while time.monotonic() < deadline:
            client.step()


if __name__ == "__main__":
    main()
