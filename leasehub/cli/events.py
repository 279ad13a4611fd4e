"""leasehub events list|tail."""

from leasehub.cli import flags
from leasehub.cli.output import emit, say, write
from leasehub.cli.signals import Signals
from leasehub.cli.task import connection
from leasehub.client import jsontext
from leasehub.client.failures import Unreachable
from leasehub.client.wire import Connection, Members, quoted

FILTERS = ("types", "resource")
PAGE = 200
POLL_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 10.0
# Nothing matches it, so a call goes past as many events as the server looks at in one.
NOTHING = "resource=-%2F-&limit=1"


def list_events(arguments: list[str]) -> int:
    given = flags.read("events list", arguments, values=("after", "limit", *FILTERS), switches=("pretty",))
    limit = flags.whole("limit", given.get("limit", "50"), least=1, most=PAGE)
    answer = _read(connection(), given.get("after", "0"), f"limit={limit}{_filters(given)}")
    return emit({"ok": True, "code": "listed", **answer}, pretty="pretty" in given)


def tail(arguments: list[str]) -> int:
    """One event a line, until a signal or until nobody reads any more."""
    given = flags.read("events tail", arguments, values=("after", *FILTERS))
    query = f"limit={PAGE}{_filters(given)}"
    server = connection()
    signals = Signals()
    cursor = given["after"] if "after" in given else _end(server)
    was_there, pause = "after" not in given, 0.0
    while not signals.received:
        try:
            page = _read(server, cursor, query)
        except Unreachable as lost:
            if not was_there:
                raise
            if pause <= POLL_SECONDS:
                say(f"the server is away: {lost}")
            pause = min(max(pause, POLL_SECONDS) * 2, LONGEST_PAUSE_SECONDS)
        else:
            lines = b"".join(jsontext.compact(event) + b"\n" for event in page["events"])
            if not write(1, lines):
                return 0
            cursor, was_there = str(page["cursor"]), True
            pause = 0.0 if page["next"] is not None else POLL_SECONDS
        signals.wait(pause)
    return 128 + signals.received[0]


def _end(server: Connection) -> str:
    """The cursor from which on everything is still to come."""
    cursor = "0"
    while True:
        page = _read(server, cursor, NOTHING)
        cursor = str(page["cursor"])
        if page["next"] is None:
            return cursor


def _read(server: Connection, after: str, query: str) -> Members:
    return server.call("GET", f"/v1/events?after={quoted(after)}&{query}")


def _filters(given: flags.Flags) -> str:
    return "".join(f"&{name}={quoted(given[name])}" for name in FILTERS if name in given)
