"""What the clients say."""

import base64
import itertools
import json
import secrets
from collections.abc import Callable

from bench.load import Talk, request

_PLACE = "0" * 12


def _numbered(template: bytes) -> Callable[[], Talk]:
    """One request after the other, each with the next number in place of twelve zeros."""
    fresh = template.replace(_PLACE.encode(), b"%012d")
    numbers = itertools.count()

    def talk() -> Talk:
        while True:
            yield fresh % next(numbers)

    return talk


def acquire(path: str, token: str, *, scheme: str = "Bearer") -> Callable[[], Talk]:
    """Takes resources that nobody has used."""
    body = {
        "resource_type": "bench",
        "resource_id": f"{secrets.token_hex(4)}.{_PLACE}",
        "ttl_seconds": 600,
        "holder": "bench",
    }
    return _numbered(request("POST", path, json.dumps(body).encode(), token, scheme))


def refused(token: str, resource_id: str) -> Callable[[], Talk]:
    body = {"resource_type": "bench", "resource_id": resource_id, "ttl_seconds": 600, "holder": "another"}
    asked = request("POST", "/v1/leases", json.dumps(body).encode(), token)

    def talk() -> Talk:
        while True:
            yield asked

    return talk


def heartbeat(path: Callable[[int], str], token: str, leases: int, *, scheme: str = "Bearer") -> Callable[[], Talk]:
    """Beats on the leases 1 to ``leases`` in turn."""
    beats = itertools.cycle(
        [
            request("POST", path(n), json.dumps({"fencing_token": n}).encode(), token, scheme)
            for n in range(1, leases + 1)
        ]
    )

    def talk() -> Talk:
        while True:
            yield next(beats)

    return talk


def etcd_acquire() -> Callable[[], Talk]:
    """Grants a lease, then puts a fresh key under it if there is none: two requests a unit."""
    run, numbers = secrets.token_hex(4), itertools.count()
    grant = request("POST", "/v3/lease/grant", b'{"TTL": "600"}')
    value = base64.b64encode(b"bench").decode()

    def talk() -> Talk:
        while True:
            lease = json.loads((yield grant))["ID"]
            key = base64.b64encode(f"bench/{run}.{next(numbers):012d}".encode()).decode()
            body = {
                "compare": [{"key": key, "target": "CREATE", "result": "EQUAL", "create_revision": "0"}],
                "success": [{"request_put": {"key": key, "value": value, "lease": lease}}],
            }
            yield request("POST", "/v3/kv/txn", json.dumps(body).encode())

    return talk
