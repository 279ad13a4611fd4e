"""leasehub events list|tail."""

from collections.abc import Iterator
from contextlib import contextmanager

from leasehub.cli import flags
from leasehub.cli.output import emit, say, write
from leasehub.cli.signals import Signals
from leasehub.cli.task import connection
from leasehub.client import credentials, jsontext
from leasehub.client.events import PAGE
from leasehub.client.hub import Hub
from leasehub.client.patience import Patience
from leasehub.client.wire import quoted

FILTERS = ("types", "resource")


class Interrupted(Exception):
    """A signal came while there was nothing to print."""


def list_events(arguments: list[str]) -> int:
    given = flags.read("events list", arguments, values=("after", "limit", *FILTERS), switches=("pretty",))
    limit = flags.whole("limit", given.get("limit", "50"), least=1, most=PAGE)
    filters = "".join(f"&{name}={quoted(given[name])}" for name in FILTERS if name in given)
    answer = connection().call("GET", f"/v1/events?after={quoted(given.get('after', '0'))}&limit={limit}{filters}")
    return emit({"ok": True, "code": "listed", **answer}, pretty="pretty" in given)


def tail(arguments: list[str]) -> int:
    """One event a line, until a signal or until nobody reads any more."""
    given = flags.read("events tail", arguments, values=("after", *FILTERS), switches=("follow",))
    known = credentials.find()
    # The follower waits for a server that is away; one that was never there is reported at once.
    hub = Hub(known.url, known.token, retry_seconds=0)
    follower = hub.events.follower(
        after=given.get("after"),
        types=given["types"].split(",") if "types" in given else (),
        resource=given.get("resource"),
        away=lambda lost: say(f"the server is away: {lost}"),
    )
    signals = Signals()
    patience = Patience(None)
    try:
        while True:
            with _interruptible(signals):
                page = follower.next_page(patience)
            if not write(1, b"".join(jsontext.compact(event) + b"\n" for event in page)):
                return 0
    except Interrupted:
        return 128 + signals.received[0]


@contextmanager
def _interruptible(signals: Signals) -> Iterator[None]:
    """Within it a signal raises Interrupted at once, also one that came before."""

    def interrupt() -> None:
        signals.at_once = _later
        raise Interrupted

    signals.at_once = interrupt
    try:
        if signals.received:
            interrupt()
        yield
    finally:
        signals.at_once = _later


def _later() -> None:
    """Looked at when the line has been printed."""
