"""Who holds: a label of one process."""

import os

from leasehub.client.credentials import Credentials
from leasehub.client.wire import Connection

MAX_HOLDER = 128
CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:@-")


def fitting(text: str) -> str:
    """The text with what a holder may not have replaced."""
    return "".join(c if c in CHARACTERS else "-" for c in text)


def distinct(text: str, most: int = MAX_HOLDER) -> str:
    """The text as a holder. Two that would be the same, what does not fit replaced or cut, are told apart."""
    fits = fitting(text)[:most]
    if fits == text:
        return fits
    import hashlib

    mark = "-" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return fits[: most - len(mark)] + mark


def own_holder(known: Credentials, connection: Connection) -> str:
    """A holder of this process alone: two terminals on one key must not pass for each other."""
    handle = known.principal or str(connection.call("GET", "/v1/whoami")["principal"])
    process = f":{os.getpid()}"
    return distinct(f"{handle}:{os.uname().nodename}", MAX_HOLDER - len(process)) + process
