"""A client process with many connections: at each line on stdin all of them ask for the resource it names, at once.

Arguments: port, secret, connections. Answers each line with one of JSON: [status, lease id or null, token or null] for
every connection.
"""

import json
import socket
import sys


def main() -> None:
    port, secret, size = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    sockets = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(size)]
    print("ready", flush=True)
    for line in sys.stdin:
        resource, prefix = line.split()
        for number, connection in enumerate(sockets):
            body = json.dumps(
                {"resource_type": "deploy", "resource_id": resource, "ttl_seconds": 60, "holder": f"{prefix}-{number}"}
            ).encode()
            connection.sendall(
                b"POST /v1/leases HTTP/1.1\r\nHost: leasehub\r\nContent-Type: application/json\r\n"
                + f"Authorization: Bearer {secret}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
        print(json.dumps([answer(connection) for connection in sockets]), flush=True)


def answer(connection: socket.socket) -> list[object]:
    received = b""
    while b"\r\n\r\n" not in received:
        received += chunk(connection)
    head, _, body = received.partition(b"\r\n\r\n")
    length = next(
        int(line.partition(b":")[2]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
    )
    while len(body) < length:
        body += chunk(connection)
    data = json.loads(body).get("data", {})
    return [int(head.split()[1]), data.get("lease_id"), data.get("fencing_token")]


def chunk(connection: socket.socket) -> bytes:
    received = connection.recv(65536)
    if not received:
        raise ConnectionError("the server hung up")
    return received


if __name__ == "__main__":
    main()
