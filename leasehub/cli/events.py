"""leasehub events list|tail."""

from collections.abc import Iterator
from contextlib import contextmanager

from leasehub.cli import flags
from leasehub.cli.output import emit, say, write
from leasehub.cli.signals import Signals
from leasehub.cli.task import connection
from leasehub.client import credentials, jsontext
from leasehub.client.events import PAGE
from leasehub.client.failures import Usage
from leasehub.client.hub import Hub
from leasehub.client.patience import Patience
from leasehub.client.wire import quoted

VALUES = ("after", "type", "types", "resource", "holder")


class Interrupted(Exception):
    """A signal came while there was nothing to print."""


def list_events(arguments: list[str]) -> int:
    given = flags.read("events list", arguments, values=("limit", *VALUES), switches=("pretty", "follow"))
    if "follow" in given:
        if "limit" in given or "pretty" in given:
            raise Usage("events list --follow prints one event a line: it takes neither --limit nor --pretty")
        return _follow(given, given["after"] if "after" in given else _beginning())
    limit = flags.whole("limit", given.get("limit", "50"), least=1, most=PAGE)
    asked = {"types": _types(given), **{name: given.get(name) for name in ("after", "resource", "holder")}}
    filters = "".join(f"&{name}={quoted(value)}" for name, value in asked.items() if value is not None)
    answer = connection().call("GET", f"/v1/events?limit={limit}{filters}")
    return emit({"ok": True, "code": "listed", **answer}, pretty="pretty" in given)


def _beginning() -> str:
    """The cursor before the oldest event on file."""
    page = connection().call("GET", "/v1/events?limit=1")
    return str(page["events"][0]["position"] - 1 if page["events"] else page["cursor"])


def tail(arguments: list[str]) -> int:
    given = flags.read("events tail", arguments, values=VALUES, switches=("follow",))
    return _follow(given, given.get("after"))


def _types(given: flags.Flags) -> str | None:
    if "type" in given and "types" in given:
        raise Usage("--type and --types are the same")
    return given.get("type", given.get("types"))


def _follow(given: flags.Flags, after: str | None) -> int:
    """One event a line, until a signal or until nobody reads any more."""
    known = credentials.find()
    # The follower waits for a server that is away; one that was never there is reported at once.
    hub = Hub(known.url, known.token, retry_seconds=0)
    types = _types(given)
    follower = hub.events.follower(
        after=after,
        types=() if types is None else types.split(","),
        resource=given.get("resource"),
        holder=given.get("holder"),
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
