"""The one JSON object on stdout, and the text on stderr."""

import os

from leasehub.client import jsontext


def emit(result: dict[str, object], *, pretty: bool = False) -> int:
    """Prints the result; returns the exit status that it stands for: 1 when it says ``ok: false``."""
    write(1, (jsontext.pretty(result) if pretty else jsontext.compact(result)) + b"\n")
    return 0 if result.get("ok", True) else 1


def tell(text: str) -> None:
    """Text for a person, on stderr because stdout is the program's."""
    write(2, (text.rstrip("\n") + "\n").encode("utf-8", "backslashreplace"))


def say(text: str) -> None:
    """The same, each line with the program's name before it."""
    lines = "".join(f"leasehub: {line}\n" for line in text.splitlines())
    write(2, lines.encode("utf-8", "backslashreplace"))


def write(descriptor: int, content: bytes) -> bool:
    """False when the reader has gone away: the exit status still says how it went."""
    try:
        while content:
            content = content[os.write(descriptor, content) :]
    except (BrokenPipeError, BlockingIOError):
        return False
    return True
