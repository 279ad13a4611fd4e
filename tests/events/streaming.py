"""A reader of server-sent events, from a real server's socket or from the parts of a response."""

import http.client
import json
import queue
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Told:
    """One block of a stream. ``type``: comment, retry, or what the event says."""

    type: str
    id: int | None
    data: Any


def parsed(block: str) -> Told:
    lines = block.split("\n")
    is_comment = lines[0] == ":"
    fields = dict(line.split(": ", 1) for line in lines[is_comment:])
    assert len(fields) == len(lines) - is_comment, f"a field is given twice: {block}"
    position = int(fields["id"])
    if is_comment:
        return Told("comment", position, None)
    if "retry" in fields:
        return Told("retry", position, int(fields["retry"]))
    return Told(fields["event"], position, json.loads(fields["data"]))


class Reader:
    """Reads a stream in a thread of its own until it ends."""

    def __init__(self, port: int, secret: str, query: str = "", **headers: str) -> None:
        self._client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._client.request(
            "GET", f"/v1/events/stream?{query}", headers={"Authorization": f"Bearer {secret}", **headers}
        )
        self._socket = self._client.sock
        self.response = self._client.getresponse()
        self._told: queue.Queue[Told | None] = queue.Queue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        if self.response.status == 200:
            self._thread.start()

    def _read(self) -> None:
        lines: list[str] = []
        try:
            for line in self.response:
                if line != b"\n":
                    lines.append(line.decode().rstrip("\n"))
                elif lines:
                    self._told.put(parsed("\n".join(lines)))
                    lines = []
        except (OSError, ValueError, http.client.HTTPException):
            pass
        self._told.put(None)

    def next(self, *, among: tuple[str, ...] = ()) -> Told | None:
        """The next one that is no comment, or is of these types; None at the end."""
        while True:
            told = self._told.get(timeout=30)
            if told is None or (told.type in among if among else told.type != "comment"):
                return told

    def positions(self, count: int) -> list[int | None]:
        found = [self.next() for _ in range(count)]
        assert None not in found, "the stream ended"
        return [told.id for told in found if told is not None]

    def has_ended(self) -> bool:
        return self.next(among=("the end",)) is None

    def close(self) -> None:
        """Hangs up."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._thread.is_alive():
            self._thread.join(20)
        self.response.close()
        self._client.close()
        self._socket.close()
