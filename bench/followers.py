"""Followers of the feed as a process of their own: ``python -m bench.followers PORT TOKEN COUNT``.

Opens so many streams, says so on stdout once each of them has begun, and takes what comes until its stdin is closed.
"""

import select
import socket
import sys


def main() -> int:
    port, token, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    asked = f"GET /v1/events/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    poll = select.epoll()
    streams = {}
    for _ in range(count):
        stream = socket.create_connection(("127.0.0.1", port), timeout=20)
        stream.sendall(asked)
        if not stream.recv(4096).startswith(b"HTTP/1.1 200 "):
            return 1
        poll.register(stream, select.EPOLLIN)
        streams[stream.fileno()] = stream
    print("ready", flush=True)
    poll.register(sys.stdin, select.EPOLLIN)
    taken = bytearray(1 << 20)
    while True:
        for fileno, _ in poll.poll():
            if fileno == sys.stdin.fileno():
                return 0
            if not streams[fileno].recv_into(taken):
                return 1


if __name__ == "__main__":
    sys.exit(main())
