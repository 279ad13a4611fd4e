"""What a command writes, read while it runs and kept within bounds: neither a pipe nor the memory fills up."""

import os

from leasehub.cli.output import write

CHUNK = 64 * 1024


class Stream:
    """A pipe: the command writes to ``writing``, and here it is read."""

    def __init__(self, bound: int) -> None:
        self.descriptor, self.writing = os.pipe()
        os.set_blocking(self.descriptor, False)
        self.bound = bound
        self.kept = b""
        self.is_cut = False

    def read(self) -> bool:
        """False at its end."""
        try:
            received = os.read(self.descriptor, CHUNK)
        except BlockingIOError:
            return True
        self.keep(received)
        return bool(received)

    def drain(self) -> None:
        """Reads what the command, which has ended, has left in the pipe."""
        # Not for ever: what could not be killed may go on writing.
        for _ in range(16):
            self.read()

    def keep(self, received: bytes) -> None:
        raise NotImplementedError

    def text(self) -> str:
        return self.kept.decode("utf-8", "replace")


class Head(Stream):
    """Its beginning is kept."""

    def keep(self, received: bytes) -> None:
        self.is_cut = self.is_cut or len(self.kept) + len(received) > self.bound
        self.kept += received[: self.bound - len(self.kept)]


class Tail(Stream):
    """All of it goes to stderr; its end is kept."""

    def keep(self, received: bytes) -> None:
        write(2, received)
        self.is_cut = self.is_cut or len(self.kept) + len(received) > self.bound
        self.kept = (self.kept + received)[-self.bound :]
