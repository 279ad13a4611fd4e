"""The feed as server-sent events: each stream in a thread of its own, all of them fed by one reader a process."""

import logging
import threading
import time
from collections.abc import Iterator

import orjson
from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection

from leasehub.api.rendering import encoded
from leasehub.api.waiting import Places
from leasehub.errors import Unavailable
from leasehub.events import queries
from leasehub.events.errors import CursorAhead, CursorExpired, Extent
from leasehub.events.following import Follower, Watch
from leasehub.events.models import Event
from leasehub.events.queries import View
from leasehub.events.rendering import event_view

logger = logging.getLogger(__name__)

MEDIA_TYPE = "text/event-stream"
HEARTBEAT_SECONDS = 15
#: How many events of its past a stream reads from the database at a time.
PAGE = 100
#: How many streams read their past at the same time: the others wait, so that they leave the database to the rest.
CATCHING_UP = 2
CROWDED_RETRY_MS = 2000
FAILED_SECONDS = 1


def event_text(event: Event) -> bytes:
    head = f"id: {event.position}\nevent: {event.type}\ndata: ".encode()
    # JSON has no line break outside a string, and in a string it is escaped.
    return head + encoded(event_view(event)) + b"\n\n"


def beginning_text(position: int) -> bytes:
    # An id without data is no event, but a browser that is cut off before the first event goes on from there.
    return b"retry: 3000\nid: %d\n\n" % position


def heartbeat_text(position: int) -> bytes:
    """A comment, which tells both ends that the other one is there, and how far the feed was read."""
    return b":\nid: %d\n\n" % position


def resync_text(known: Extent) -> bytes:
    told = orjson.dumps({"oldest": known.oldest, "tail": known.tail})
    return b"id: %d\nevent: resync\ndata: %s\n\n" % (known.tail, told)


watch = Watch(render=event_text)
_places = Places(settings.LEASEHUB_STREAMS)
_catching_up = threading.BoundedSemaphore(CATCHING_UP)


class Stream:
    """What one follower is written, part by part; whoever takes the parts waits between them."""

    def __init__(self, view: View, *, key: int, after: int, resync: Extent | None) -> None:
        """Raises Unavailable when there are as many as may be, in all or of the organization."""
        if watch.is_closed:
            raise Unavailable("The server is about to stop.", retry_after_ms=CROWDED_RETRY_MS)
        if not _places.take(view.organization):
            # Of a reader that went away is known when something is written to it: perhaps there is room soon.
            watch.ring_all()
            raise Unavailable("There are as many streams as may be.", retry_after_ms=CROWDED_RETRY_MS)
        self._closing = threading.Lock()
        self._is_closed = False
        self._follower = Follower(view, key)
        self._follower.position = after
        self._resync = resync
        self._parts = self._told()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        return next(self._parts)

    def close(self) -> None:
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
            watch.remove(self._follower)
            _places.give_back(self._follower.view.organization)

    def _told(self) -> Iterator[bytes]:
        follower = self._follower
        beginning = beginning_text(follower.position)
        yield beginning if self._resync is None else beginning + resync_text(self._resync)
        with self._closing:
            if self._is_closed:
                return
            watch.add(follower)
        follower.bell.set()
        while True:
            follower.bell.wait(HEARTBEAT_SECONDS)
            follower.bell.clear()
            has_written = False
            while text := self._next():
                yield text
                has_written = True
            if follower.has_ended:
                return
            if not has_written:
                yield heartbeat_text(follower.position)

    def _next(self) -> bytes:
        """What comes next of the view; nothing when all that is known has been written: then it will be rung."""
        follower = self._follower
        while not follower.has_ended:
            chunk = watch.unwritten(follower)
            if chunk is not None:
                text = chunk.text(follower.view, follower.position)
                watch.advance(follower, chunk.last)
            elif watch.is_level(follower):
                break
            else:
                text = self._past()
            if text:
                return text
        return b""

    def _past(self) -> bytes:
        """What is not in memory any more, or never was."""
        follower = self._follower
        try:
            with _catching_up:
                reading = queries.read(view=follower.view, after=follower.position, limit=PAGE)
                text = b"".join(event_text(event) for event in reading.events)
        except CursorExpired as expired:
            watch.advance(follower, expired.known.tail)
            return resync_text(expired.known)
        except CursorAhead:
            # A backup was restored: what was written is of another course of things.
            follower.end()
            return b""
        except (DatabaseError, InterfaceError) as error:
            logger.warning("a stream cannot read the feed: %s", str(error).strip().splitlines()[:1])
            time.sleep(FAILED_SECONDS)
            return heartbeat_text(follower.position)
        finally:
            # Whoever streams holds no connection.
            connection.close()
        watch.advance(follower, reading.cursor)
        return text
