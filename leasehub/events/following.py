"""Following feeds without a transaction or a connection: one thread a process reads them for all who do.

It looks at all feeds that are followed in two queries, numbers what is new and reads it once, however many follow.
Writers ring no bell: a transaction that notifies takes a lock that is one for the whole server while it commits, so
every acquire would wait for the others' disk (docs/adr/0005).
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from django.db import DatabaseError, InterfaceError, connection

from leasehub.events import feed
from leasehub.events.models import Event, Feed
from leasehub.events.queries import View
from leasehub.identity.authentication import working_keys
from leasehub.identity.models import ApiKey, Principal

logger = logging.getLogger(__name__)

#: How often it looks. On SQLite numbering takes a turn of the one writer.
LOOK_SECONDS = {"postgresql": 0.1, "sqlite": 0.25}
#: How often it asks whether the keys of streams still work.
KEY_SECONDS = 2
#: How long the thread stays when nobody follows any more.
LINGER_SECONDS = 10
#: How long it lets a failure pass.
FAILED_SECONDS = 1
#: How many events one query reads.
READ = 500
#: How many events a stream writes at a time.
CHUNK = 100
#: How much text of an organization is kept for streams that have not written it yet; those that need older text read
#: it from the database.
KEPT_BYTES = 8 * 1024 * 1024
MAX_KNOWN = 10_000


class Follower:
    """Somebody who waits for events of a view, or streams them when it has a key."""

    def __init__(self, view: View, key: int | None = None) -> None:
        self.view = view
        self.key = key
        #: Set when there may be something new for the view, and when it has ended.
        self.bell = threading.Event()
        #: The key works no more, or the server is about to stop.
        self.has_ended = False
        #: The last position that a stream has written, or gone past.
        self.position = 0

    def end(self) -> None:
        self.has_ended = True
        self.bell.set()


class Seen(NamedTuple):
    """Of an event what a view looks at, and the text that a stream writes."""

    position: int
    type: str
    resource_type: str
    resource_id: str
    holder: str
    principal_id: int | None
    actor_id: int | None
    addressee_id: int | None
    text: bytes


class Chunk:
    """Events that follow each other in a feed, as text."""

    def __init__(self, events: list[Seen]) -> None:
        self.events = events
        self.first, self.last = events[0].position, events[-1].position
        self.bytes = sum(len(event.text) for event in events)
        self._texts: dict[View, bytes] = {}

    def text(self, view: View, after: int) -> bytes:
        """What the view shows of the events after a position. Made once for all who are shown the same."""
        if after >= self.first:
            return self._text(view, after)
        known = self._texts.get(view)
        if known is None:
            known = self._texts[view] = self._text(view, after)
        return known

    def _text(self, view: View, after: int) -> bytes:
        return b"".join(event.text for event in self.events if event.position > after and view.shows(event))


class Channel:
    """One organization's feed, as far as the thread has read it."""

    def __init__(self) -> None:
        self.followers: set[Follower] = set()
        #: None: not looked at yet.
        self.position: int | None = None
        #: What streams have not written yet: the positions up to ``position`` without a gap.
        self.chunks: deque[Chunk] = deque()

    def forget_written(self) -> None:
        written = min((follower.position for follower in self.followers if follower.key is not None), default=None)
        kept = sum(chunk.bytes for chunk in self.chunks)
        while self.chunks and (written is None or self.chunks[0].last <= written or kept > KEPT_BYTES):
            kept -= self.chunks.popleft().bytes


class Watch:
    """Who follows what in this process, and the thread that reads for them."""

    def __init__(self, *, render: Callable[[Event], bytes]) -> None:
        self._render = render
        self._lock = threading.Lock()
        self._channels: dict[int, Channel] = {}
        self._thread: threading.Thread | None = None
        self._keys_asked_at = 0.0
        self._principals: dict[int, Principal] = {}
        self._keys: dict[int, ApiKey] = {}
        self.is_closed = False

    @contextmanager
    def following(self, view: View) -> Iterator[Follower]:
        """Whoever reads the feed after this has begun, and finds nothing, is rung when there is something."""
        follower = Follower(view)
        self.add(follower)
        try:
            yield follower
        finally:
            self.remove(follower)

    def add(self, follower: Follower) -> None:
        with self._lock:
            self._channels.setdefault(follower.view.organization, Channel()).followers.add(follower)
            if self.is_closed:
                follower.end()
            elif self._thread is None:
                self._thread = threading.Thread(target=self._run, name="feed-watch", daemon=True)
                self._thread.start()

    def remove(self, follower: Follower) -> None:
        with self._lock:
            channel = self._channels.get(follower.view.organization)
            if channel is None:
                return
            channel.followers.discard(follower)
            if not channel.followers:
                del self._channels[follower.view.organization]

    def unwritten(self, follower: Follower) -> Chunk | None:
        """The next part of the feed that a stream has not written; None when it is not known here."""
        with self._lock:
            channel = self._channels[follower.view.organization]
            for chunk in channel.chunks:
                if chunk.last > follower.position:
                    return chunk if chunk.first <= follower.position + 1 else None
            return None

    def advance(self, follower: Follower, position: int) -> None:
        """A stream has written everything up to a position."""
        with self._lock:
            follower.position = max(follower.position, position)

    def is_level(self, follower: Follower) -> bool:
        """Whether a stream has written all that is known here: it will be rung, and need not look itself."""
        with self._lock:
            position = self._channels[follower.view.organization].position
            return position is None or follower.position >= position

    def ring_all(self) -> None:
        with self._lock:
            for channel in self._channels.values():
                for follower in channel.followers:
                    follower.bell.set()

    def close(self) -> None:
        """The server is about to stop: nobody follows any longer."""
        with self._lock:
            self.is_closed = True
            for channel in self._channels.values():
                for follower in channel.followers:
                    follower.end()

    def _followed(self) -> dict[int, Channel]:
        with self._lock:
            return dict(self._channels)

    def _followers(self, channels: Iterable[Channel]) -> list[Follower]:
        with self._lock:
            return [follower for channel in channels for follower in channel.followers]

    def _run(self) -> None:
        last_wanted = time.monotonic()
        while True:
            channels = self._followed()
            if channels:
                last_wanted = time.monotonic()
                self._look_once(channels)
            elif time.monotonic() - last_wanted > LINGER_SECONDS and self._ended():
                connection.close()
                return
            time.sleep(LOOK_SECONDS[connection.vendor])

    def _ended(self) -> bool:
        with self._lock:
            if self._channels:
                return False
            self._thread = None
            return True

    def _look_once(self, channels: dict[int, Channel]) -> None:
        try:
            self._end_those_without_a_key(channels)
            for organization in feed.with_news(among=list(channels)):
                feed.stamp(organization=organization)
            tails = dict(Feed.objects.filter(pk__in=channels).values_list("pk", "last_position"))
            for organization, channel in channels.items():
                self._look_at(organization, channel, tails.get(organization, 0))
        except (DatabaseError, InterfaceError) as error:
            # They go on waiting, and each of them meets the failure itself when its time is up.
            logger.warning("cannot read the feed: %s", str(error).strip().splitlines()[:1])
            connection.close()
            time.sleep(FAILED_SECONDS)
        except Exception:
            # Without this thread all who follow would wait for nothing.
            logger.exception("reading the feed for those who follow it failed")
            connection.close()
            time.sleep(FAILED_SECONDS)

    def _end_those_without_a_key(self, channels: dict[int, Channel]) -> None:
        if time.monotonic() - self._keys_asked_at < KEY_SECONDS:
            return
        streams = [follower for follower in self._followers(channels.values()) if follower.key is not None]
        working = working_keys({follower.key for follower in streams if follower.key is not None})
        for follower in streams:
            if follower.key not in working:
                follower.end()
        self._keys_asked_at = time.monotonic()

    def _look_at(self, organization: int, channel: Channel, tail: int) -> None:
        if channel.position is None or channel.position > tail:
            # What came between a follower's own look and this one is not known, or a backup was restored.
            with self._lock:
                channel.chunks.clear()
                channel.position = tail
                for follower in channel.followers:
                    follower.bell.set()
            return
        while channel.position < tail:
            events = Event.objects.filter(organization_id=organization, position__gt=channel.position)
            found = list(events.order_by("position")[:READ])
            if not found:
                return
            self._tell(channel, found)

    def _tell(self, channel: Channel, events: list[Event]) -> None:
        followers = self._followers([channel])
        has_streams = any(follower.key is not None for follower in followers)
        chunks = list(self._chunks(events)) if has_streams else []
        shown = {view: any(map(view.shows, events)) for view in {follower.view for follower in followers}}
        before, after = channel.position, events[-1].position
        assert before is not None and after is not None
        with self._lock:
            # They may have looked before this was known here.
            joined = channel.followers.difference(followers)
            for follower in followers:
                if not shown[follower.view] and follower.position >= before:
                    follower.position = max(follower.position, after)
            channel.chunks.extend(chunks)
            channel.position = after
            channel.forget_written()
        for follower in followers:
            if shown[follower.view]:
                follower.bell.set()
        for follower in joined:
            follower.bell.set()

    def _chunks(self, events: list[Event]) -> Iterator[Chunk]:
        self._name(events)
        for start in range(0, len(events), CHUNK):
            yield Chunk([self._seen(event) for event in events[start : start + CHUNK]])

    def _seen(self, event: Event) -> Seen:
        assert event.position is not None
        return Seen(
            event.position,
            event.type,
            event.resource_type,
            event.resource_id,
            event.holder,
            event.principal_id,
            event.actor_id,
            event.addressee_id,
            self._render(event),
        )

    def _name(self, events: list[Event]) -> None:
        """Gives the events their principals and keys, whose names never change: a join for each would cost more."""
        if len(self._principals) + len(self._keys) > MAX_KNOWN:
            self._principals.clear()
            self._keys.clear()
        principals = {id for event in events for id in (event.principal_id, event.actor_id, event.addressee_id)}
        keys = {event.key_id for event in events}
        self._principals.update(Principal.objects.in_bulk(principals - self._principals.keys() - {None}))
        self._keys.update(ApiKey.objects.in_bulk(keys - self._keys.keys() - {None}))
        for event in events:
            event.principal = self._principals.get(event.principal_id)  # type: ignore[arg-type]
            event.actor = self._principals.get(event.actor_id)  # type: ignore[arg-type]
            event.addressee = self._principals.get(event.addressee_id)  # type: ignore[arg-type]
            event.key = self._keys.get(event.key_id)  # type: ignore[arg-type]
