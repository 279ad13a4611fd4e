"""The feed of events, followed for as long as it is wanted."""

import random
from collections.abc import Callable, Iterator, Sequence

from leasehub.client.clock import boot_clock
from leasehub.client.failures import Unreachable, Usage
from leasehub.client.patience import Patience
from leasehub.client.wire import Members, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from leasehub.client.hub import Hub

PAGE = 200
# How long one call waits at the server for news.
WAIT_SECONDS = 20
# How often to look at a server that cannot wait.
POLL_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 10.0


class Events:
    def __init__(self, hub: "Hub") -> None:
        self._hub = hub

    def follow(
        self,
        *,
        after: str | int | None = None,
        types: Sequence[str] = (),
        resource: str | None = None,
        holder: str | None = None,
    ) -> Iterator[Members]:
        """Every event from a position on, each once, in order, for ever; from now on when ``after`` is None. An
        event's ``position`` is where to go on from. A server that goes away after it was there is waited for."""
        follower = self.follower(after=after, types=types, resource=resource, holder=holder)
        while True:
            yield from follower.next_page(Patience(None))

    def follower(
        self,
        *,
        after: str | int | None,
        types: Sequence[str] = (),
        resource: str | None = None,
        holder: str | None = None,
        away: Callable[[Unreachable], None] = lambda lost: None,
    ) -> "Follower":
        """``away`` is called once for each time that the server is away."""
        if isinstance(types, str):
            # It would be taken for the list of its letters.
            raise Usage(f"types must be a list, such as [{types!r}], not the text {types!r}")
        filters = f"&types={quoted(','.join(types))}" if types else ""
        filters += f"&resource={quoted(resource)}" if resource else ""
        filters += f"&holder={quoted(holder)}" if holder else ""
        return Follower(self._hub, None if after is None else str(after), filters, away)

    def end(self) -> str:
        """The cursor from which on everything is still to come."""
        return str(self._hub.call("GET", "/v1/events?after=tail&limit=1")["cursor"])


class Follower:
    def __init__(self, hub: "Hub", cursor: str | None, filters: str, away: Callable[[Unreachable], None]) -> None:
        self.cursor = cursor
        self._hub = hub
        self._filters = filters
        self._away = away
        self._waiting = f"&wait_seconds={WAIT_SECONDS}"
        self._was_there = False
        self._failures = 0

    def next_page(self, patience: Patience) -> list[Members]:
        """What came next, waited for a while; perhaps nothing yet."""
        began = boot_clock()
        try:
            page = self._page()
        except Unreachable as lost:
            if not self._was_there:
                raise
            if not self._failures:
                self._away(lost)
            self._failures += 1
            pause = min(POLL_SECONDS * 2.0 ** min(self._failures, 10), LONGEST_PAUSE_SECONDS)
            patience.sleep(pause * random.uniform(0.5, 1.0))
            return []
        self.cursor, self._was_there, self._failures = str(page["cursor"]), True, 0
        early = POLL_SECONDS - (boot_clock() - began)
        if not page["events"] and page["next"] is None and early > 0:
            # So many wait at the server that this call could not, or it does not know how to.
            patience.sleep(early)
        return list(page["events"])

    def _page(self) -> Members:
        if self.cursor is None:
            self.cursor, self._was_there = self._hub.events.end(), True
        query = f"/v1/events?after={quoted(self.cursor)}&limit={PAGE}{self._filters}"
        try:
            with self._hub.connection() as connection:
                connection.timeout += WAIT_SECONDS
                return connection.call("GET", query + self._waiting)
        except Usage as wrong:
            # An older server does not know how to wait.
            if not self._waiting or "wait_seconds" not in str(wrong):
                raise
            self._waiting = ""
            return self._page()
