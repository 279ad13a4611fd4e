"""Following feeds without a transaction or a connection: one thread a process reads them for all who do.

It looks ten times a second, in two queries for all feeds that are followed, numbers what is new and reads it once,
however many follow. Writers ring no bell: a transaction that notifies takes a lock that is one for the whole server
while it commits, so every acquire would wait for the others' disk (docs/adr/0005).
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import DatabaseError, InterfaceError, connection

from leasehub.events import feed
from leasehub.events.models import Event, Feed
from leasehub.events.queries import View

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
#: How long the thread stays when nobody follows any more.
LINGER_SECONDS = 10
#: How many events one look reads of a feed at a time.
CHUNK = 500


class Follower:
    """Somebody who waits for events of a view."""

    def __init__(self, view: View) -> None:
        self.view = view
        #: Set when the feed may have something new for the view.
        self.bell = threading.Event()


class Channel:
    """One organization's feed, as far as the thread has read it."""

    def __init__(self) -> None:
        self.followers: set[Follower] = set()
        #: None: not looked at yet.
        self.position: int | None = None


class Watch:
    """Who follows what in this process, and the thread that reads for them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channels: dict[int, Channel] = {}
        self._thread: threading.Thread | None = None

    @contextmanager
    def following(self, view: View) -> Iterator[Follower]:
        """Whoever reads the feed after this has begun, and finds nothing, is rung when there is something."""
        follower = Follower(view)
        with self._lock:
            self._channels.setdefault(view.organization, Channel()).followers.add(follower)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="feed-watch", daemon=True)
                self._thread.start()
        try:
            yield follower
        finally:
            with self._lock:
                channel = self._channels[view.organization]
                channel.followers.discard(follower)
                if not channel.followers:
                    del self._channels[view.organization]

    def _followed(self) -> dict[int, Channel]:
        with self._lock:
            return dict(self._channels)

    def _followers(self, channel: Channel) -> list[Follower]:
        with self._lock:
            return list(channel.followers)

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
            time.sleep(LOOK_SECONDS)

    def _ended(self) -> bool:
        with self._lock:
            if self._channels:
                return False
            self._thread = None
            return True

    def _look_once(self, channels: dict[int, Channel]) -> None:
        try:
            for organization in feed.with_news(among=list(channels)):
                feed.stamp(organization=organization)
            tails = dict(Feed.objects.filter(pk__in=channels).values_list("pk", "last_position"))
            for organization, channel in channels.items():
                self._look_at(organization, channel, tails.get(organization, 0))
        except (DatabaseError, InterfaceError) as error:
            # They go on waiting, and each of them meets the failure itself when its time is up.
            logger.warning("cannot read the feed: %s", str(error).strip().splitlines()[:1])
            connection.close()
            time.sleep(1)

    def _look_at(self, organization: int, channel: Channel, tail: int) -> None:
        if channel.position is None or channel.position > tail:
            # What came between a follower's own look and this one is not known, or a backup was restored.
            channel.position = tail
            for follower in self._followers(channel):
                follower.bell.set()
            return
        while channel.position < tail:
            events = Event.objects.filter(organization_id=organization, position__gt=channel.position)
            found = list(events.order_by("position")[:CHUNK])
            if not found or found[-1].position is None:
                return
            channel.position = found[-1].position
            self._tell(channel, found)

    def _tell(self, channel: Channel, events: list[Event]) -> None:
        shown: dict[View, bool] = {}
        for follower in self._followers(channel):
            view = follower.view
            if view not in shown:
                shown[view] = any(view.shows(event) for event in events)
            if shown[view]:
                follower.bell.set()


watch = Watch()
