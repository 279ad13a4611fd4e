"""The feed: events in an order that no reader can miss one of, whatever order transactions commit in.

An event's id is allotted while its resource is locked, but a transaction with a lower id may commit after one
with a higher id: a reader that follows ids would pass over it. So positions are stamped afterwards, only on rows
that are already visible, in id order, under the organization's feed row. Of two events of one resource the first
is visible before the second gets its id, so positions agree with the order per resource.
"""

from django.db import connection, transaction
from django.db.models import Exists, OuterRef, Subquery
from django.db.models.functions import Coalesce

from leasehub.db.locks import lock_rows
from leasehub.events.models import Event, Feed
from leasehub.identity.models import Organization

# On SQLite everybody waits for a transaction that writes: this many take well under 50 ms.
STAMP_BATCH = 2000
STAMP_ROUNDS = 50


def stamp_all() -> int:
    """Numbers what is unnumbered in every organization: the beat's tick. How many events were numbered."""
    return sum(_stamp_through(organization) for organization in with_news())


def _stamp_through(organization: int) -> int:
    total = 0
    for _ in range(STAMP_ROUNDS):
        numbered = stamp(organization=organization)
        total += numbered
        if numbered < STAMP_BATCH:
            break
    return total


def stamp(*, organization: int) -> int:
    """Numbers the visible, unnumbered events of an organization. How many; 0 when another stamper is at it."""
    with transaction.atomic():
        # The lock in one statement, the rows in the next: a snapshot from before the lock would miss events that
        # were committed while it was waited for.
        feed = _lock(organization)
        if feed is None:
            return 0
        oldest_running, own = _transactions()
        ids = list(
            Event.objects.filter(organization_id=organization, position=None, pk__gt=feed.low_water)
            .order_by("pk")
            .values_list("pk", flat=True)[:STAMP_BATCH]
        )
        if ids:
            _number(ids, feed.last_position)
            feed.last_position += len(ids)
        if len(ids) < STAMP_BATCH:
            _raise_low_water(feed, ids, oldest_running, own)
        feed.save(update_fields=["last_position", "low_water", "candidate", "candidate_xid"])
    return len(ids)


def _lock(organization: int) -> Feed | None:
    feeds = Feed.objects.filter(organization_id=organization)
    feed = lock_rows(feeds, skip_locked=True).first()
    if feed is None and not feeds.exists():
        # Only when there is none: an insert that meets a row which a stamper is changing waits for that stamper.
        Feed.objects.bulk_create([Feed(organization_id=organization)], ignore_conflicts=True)
        feed = lock_rows(feeds, skip_locked=True).first()
    return feed


def has_news(*, organization: int) -> bool:
    """Whether a visible event is unnumbered."""
    low_water = Coalesce(Subquery(Feed.objects.filter(pk=organization).values("low_water")), 0)
    return Event.objects.filter(organization_id=organization, position=None, pk__gt=low_water).exists()


def with_news(*, among: list[int] | None = None) -> list[int]:
    """The organizations, of these or of all, of which a visible event is unnumbered."""
    # Each from its own low water on: the head of the index of unnumbered rows is full of dead entries.
    fresh = Event.objects.filter(organization_id=OuterRef("pk"), position=None, pk__gt=OuterRef("low_water"))
    organizations = Organization.objects.annotate(low_water=Coalesce("feed__low_water", 0))
    if among is not None:
        organizations = organizations.filter(pk__in=among)
    return list(organizations.filter(Exists(fresh)).values_list("pk", flat=True))


def _number(ids: list[int], last_position: int) -> None:
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                "UPDATE events_event AS event SET position = %s + fresh.rank"
                " FROM unnest(%s::bigint[]) WITH ORDINALITY AS fresh (id, rank) WHERE event.id = fresh.id",
                [last_position, ids],
            )
        else:
            cursor.executemany(
                "UPDATE events_event SET position = %s WHERE id = %s",
                [(last_position + rank, event) for rank, event in enumerate(ids, start=1)],
            )


def _transactions() -> tuple[int, int]:
    """Every transaction below the first number has ended; the second is this transaction's own."""
    if connection.vendor != "postgresql":
        # One writer at a time: whatever has an id is visible.
        return 1, 1
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint, pg_current_xact_id()::text::bigint"
        )
        oldest_running, own = cursor.fetchone()
    return oldest_running, own


def _raise_low_water(feed: Feed, ids: list[int], oldest_running: int, own: int) -> None:
    """Moves the low water to the candidate once no transaction that could hold a lower id is left.

    Three stamps do it. One notes the highest id that it saw. The next one's own number is larger than those of all
    who hold lower ids: whoever writes an event has locked a row before, so it had its number before its event had
    an id, and the candidate was seen after that. (The snapshot's xmax is no such bound: of the running transactions
    those that began last have that number or a larger one.) A later one finds that all below that number have
    ended; ``oldest_running`` was read before ``ids``, so what they left is among them.
    """
    if feed.candidate and (not feed.candidate_xid or feed.candidate_xid > own):
        # A number above one's own comes from the server that a backup was taken of.
        feed.candidate_xid = own
    elif feed.candidate and feed.candidate_xid <= oldest_running:
        feed.low_water, feed.candidate = feed.candidate, 0
    if ids and not feed.candidate:
        feed.candidate, feed.candidate_xid = ids[-1], 0
