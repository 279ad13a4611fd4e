"""What has changed for a caller since it last called: told with any result, until the caller says that it has read it.

The notices are events of the journal, and requests of pools that wait to be fetched; kept is only what was read.
"""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.db import connection, transaction
from psycopg.types.numeric import Int8

from handoffs import queries as handoffs
from handoffs.models import Handoff
from leasehub.db import clock, functions
from leasehub.db.locks import lock_rows
from leasehub.events.models import Event
from leasehub.events.queries import first_since
from leasehub.identity.authentication import Caller
from leasehub.mcp.models import Reader
from leases.models import public_lease_id
from pools.models import Request, public_request_id

#: As many are told at a time of turns, of handoffs that wait, and of all else: none of them hides the others, and old
#: ones hide no newer one. The next ones once these were read.
MOST_TOLD = 10
#: As many rows does one look take (unread.sql).
MOST_LOOKED_AT = 200
#: With more ids above it than this the floor follows, as far as nothing is unread.
MANY_SEEN = 100
#: More are not kept: the oldest of them is told again.
MOST_SEEN = 2000
FORGET_AFTER = timedelta(days=30)
FORGET_BATCH = 1000

QUERY = (Path(__file__).resolve().parent / "sql" / "unread.sql").read_text()
PORTABLE = re.sub(r"(?<!:):(\w+)", r"%(\1)s", QUERY[QUERY.index("WITH") :])
OLDEST_FIRST, NEWEST_FIRST = "ORDER BY news.kind, news.id", "ORDER BY news.kind DESC, news.id DESC"
#: The other end of what is unread, and the requests: for those who have left more unread than one look takes.
NEWEST = PORTABLE.replace(OLDEST_FIRST, NEWEST_FIRST)
#: On PostgreSQL a function, whose plan is kept: planning the query costs more than all the rest of a call.
FUNCTION = "SELECT * FROM mcp_unread(%s, %s::text, %s, %s)"
#: The same as one value.
ALONG = (
    "SELECT jsonb_agg(jsonb_build_array(its_floor, its_seen, news_kind, news_id, feed_low_water))"
    " FROM mcp_unread(%s, %s::text, %s, %s)"
)


@dataclass(frozen=True, slots=True)
class Unread:
    floor: int
    seen: list[int]
    events: list[int]
    requests: list[int]
    #: Every event up to this id was looked at, and none with such an id can still appear.
    settled: int

    @classmethod
    def of(cls, rows: list[tuple[Any, ...]], newest: list[tuple[Any, ...]]) -> "Unread":
        floor, seen, low_water = rows[0][0], json.loads(rows[0][1]), rows[0][4] or 0
        oldest = _ids_of("event", rows)
        settled = low_water if len(rows) < MOST_LOOKED_AT else min([low_water, *oldest[-1:]])
        events = sorted({*oldest, *_ids_of("event", newest)} - {*seen})
        requests = sorted({*_ids_of("request", rows), *_ids_of("request", newest)})
        return cls(floor, seen, events, requests, settled)


def _ids_of(wanted: str, rows: list[tuple[Any, ...]]) -> list[int]:
    return [id for _, _, kind, id, _ in rows if kind == wanted]


@contextmanager
def looked_up_along(caller: Caller, holder: str) -> Iterator[functions.Aside | None]:
    """Looks for what is unread in the round trip of a tool that has just one."""
    if connection.vendor != "postgresql":
        yield None
        return
    with functions.asking_aside(ALONG, _named(caller, holder)) as aside:
        yield aside


def told(caller: Caller, holder: str, aside: functions.Aside | None = None) -> dict[str, Any]:
    """The notices of a result, as its members; none when there is nothing new."""
    is_known = aside is not None and aside.is_answered
    rows = aside.answer or [] if aside is not None and is_known else _looked_up(caller, holder)
    if rows and rows[0][0] is None:
        _begin(caller, holder)
        rows = _looked_up(caller, holder)
    if not rows:
        return {}
    newest = _asked(NEWEST, caller, holder) if len(rows) >= MOST_LOOKED_AT else []
    return _told(caller, holder, Unread.of(rows, newest))


def _told(caller: Caller, holder: str, unread: Unread) -> dict[str, Any]:
    turns = _of_requests(unread.requests)
    events = _events(unread.events)
    pending = _pending(events)
    new = [(event.pk, notice) for event in events if (notice := _notice(caller, event, pending)) is not None]
    settled = min(unread.settled, new[0][0] - 1) if new else unread.settled
    if settled > unread.floor and (not new or len(unread.seen) > MANY_SEEN):
        # So that what was read is looked at no more.
        _raise_floor(caller, holder, settled)
    offers = [(id, notice) for id, notice in new if notice["what"] == "handoff_waiting"]
    others = [(id, notice) for id, notice in new if notice["what"] != "handoff_waiting"]
    shown = [*offers[-MOST_TOLD:], *others[-MOST_TOLD:]]
    if not turns and not shown:
        return {}
    more = len(unread.requests) - len(turns) + len(new) - len(shown)
    return {
        "notices": [*turns, *(notice for _, notice in shown)],
        **({"notices_more": more} if more > 0 else {}),
        **({"notices_cursor": _cursor([id for id, _ in shown])} if shown else {}),
    }


def acknowledge(caller: Caller, holder: str, cursor: str) -> None:
    """The caller has read the notices that came with this cursor."""
    ids = _ids(cursor)
    with transaction.atomic():
        reader = lock_rows(Reader.objects.filter(key=caller.key, holder=holder)).first()
        if reader is None:
            return
        seen = sorted({*reader.seen, *(id for id in ids if id > reader.floor)})
        reader.seen = seen[-MOST_SEEN:]
        reader.used_at = clock.now()
        reader.save(update_fields=["seen", "used_at"])


def parsed_cursor(text: str) -> str:
    """Raises ValueError for what no result gave out."""
    _ids(text)
    return text


def forget_readers(*, batches: int = 100) -> int:
    """Deletes the readers of holders that have not been heard of for thirty days. How many."""
    total = 0
    for _ in range(batches):
        before = clock.now() - FORGET_AFTER
        old = Reader.objects.filter(used_at__lt=before).order_by("used_at")
        batch = list(old.values_list("pk", flat=True)[:FORGET_BATCH])
        # Those that were used meanwhile stay.
        forgotten, _ = Reader.objects.filter(pk__in=batch, used_at__lt=before).delete()
        total += forgotten
        if len(batch) < FORGET_BATCH:
            break
    return total


def _looked_up(caller: Caller, holder: str) -> list[tuple[Any, ...]]:
    if connection.vendor == "postgresql":
        return functions.call_many(FUNCTION, _named(caller, holder))
    return _asked(PORTABLE, caller, holder)


def _named(caller: Caller, holder: str) -> tuple[Any, ...]:
    return Int8(caller.key), holder, Int8(caller.organization), Int8(caller.principal)


def _asked(query: str, caller: Caller, holder: str) -> list[tuple[Any, ...]]:
    names: dict[str, str | int] = {
        "key": caller.key, "holder": holder, "organization": caller.organization, "principal": caller.principal
    }  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(query, names)
        found: list[tuple[Any, ...]] = cursor.fetchall()
        return found


def _begin(caller: Caller, holder: str) -> None:
    """A reader that has read everything but the handoffs that wait for it now."""
    at = clock.now()
    newest = Event.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
    waiting = handoffs.inbox(principal=caller.principal, at=at).order_by("-pk")
    offered = dict(waiting.values_list("public_id", "created_at")[:MOST_TOLD])
    floor, seen = newest, []
    if offered:
        floor = min(newest, first_since(min(offered.values())) - 1)
        told = {f"hoff_{handoff.hex}" for handoff in offered}
        since = Event.objects.filter(pk__gt=floor, organization=caller.organization, addressee=caller.principal)
        for event in since.filter(type="handoff.created").order_by("pk"):
            if event.data.get("handoff_id") not in told:
                seen.append(event.pk)
    Reader.objects.bulk_create(
        [Reader(key_id=caller.key, holder=holder, floor=floor, seen=seen, used_at=at)], ignore_conflicts=True
    )


@transaction.atomic
def _raise_floor(caller: Caller, holder: str, settled: int) -> None:
    """Every event up to this id was seen by the statement that found nothing to tell."""
    reader = lock_rows(Reader.objects.filter(key=caller.key, holder=holder)).first()
    if reader is None or reader.floor >= settled:
        return
    reader.floor = settled
    reader.seen = [id for id in reader.seen if id > settled]
    reader.used_at = clock.now()
    reader.save(update_fields=["floor", "seen", "used_at"])


def _events(ids: Iterable[int]) -> list[Event]:
    wanted = list(ids)
    if not wanted:
        return []
    return list(Event.objects.filter(pk__in=wanted).select_related("actor", "principal").order_by("pk"))


def _pending(events: Iterable[Event]) -> set[str]:
    """The handoffs of these events that still wait for an answer."""
    offered = [
        handoffs.parse_handoff_id(str(event.data.get("handoff_id")))
        for event in events
        if event.type == "handoff.created"
    ]
    if not offered:
        return set()
    at = clock.now()
    rows = Handoff.objects.filter(public_id__in=offered).only("public_id", "status", "accept_by")
    return {row.handoff_id for row in rows if row.status_at(at) == Handoff.Status.PENDING}


def _of_requests(ids: list[int]) -> list[dict[str, Any]]:
    if not ids:
        return []
    rows = Request.objects.filter(pk__in=ids).select_related("pool").order_by("-pk")[:MOST_TOLD]
    return [
        {
            "what": "turn_come",
            "at": clock.iso(row.ready_at or row.created_at),
            "request_id": public_request_id(row.request_id),
            "pool": row.pool.name,
            "message": f"It is your turn in {row.pool.name}: call pool_wait to get what you were granted.",
        }
        for row in reversed(rows)
    ]


def _notice(caller: Caller, event: Event, pending: set[str]) -> dict[str, Any] | None:
    """What an event means to the caller, of the handoffs that are pending; None when it is of no interest any more."""
    at = clock.iso(event.at)
    if event.type.startswith("handoff."):
        return _of_handoff(event, at, pending)
    if event.type.startswith("pool."):
        request_id = str(event.data.get("request_id", ""))
        reason = event.data.get("reason") or event.data.get("error") or "it failed"
        what = {"pool.dropped": "request_dropped"}.get(event.type, "grant_failed")
        message = f"Your request to {event.resource_id} has ended: {reason}. Ask again if you still need it."
        return {"what": what, "at": at, "request_id": request_id, "pool": event.resource_id, "message": message}
    resource = f"{event.resource_type}/{event.resource_id}"
    lost = event.previous_lease_id if event.type == "lease.taken_over" else event.lease_id
    return {
        "what": "lease_lost",
        "at": at,
        "lease_id": None if lost is None else public_lease_id(lost),
        "resource": resource,
        "message": f"Your lease on {resource} {_how_it_ended(caller, event)}. Stop working on it.",
    }


def _how_it_ended(caller: Caller, event: Event) -> str:
    if event.type == "lease.taken_over":
        by = f" by {event.holder}" if caller.observes else ""
        return f"ran out and was taken over{by}"
    if event.type == "lease.force_released":
        return f"was ended by an operator ({event.data.get('reason')})"
    return "ran out without a heartbeat and was reaped"


def _of_handoff(event: Event, at: str, pending: set[str]) -> dict[str, Any] | None:
    handoff_id, subject = str(event.data.get("handoff_id")), event.data.get("subject_id")
    giver = event.principal.handle if event.principal else ""
    addressee = event.data.get("to_principal")
    what = "handoff_" + event.type.partition(".")[2]
    if event.type == "handoff.created":
        if handoff_id not in pending:
            return None
        what = "handoff_waiting"
    message = {
        "handoff.created": f"{giver} offers you {subject}: call handoff_get, then handoff_accept or handoff_reject.",
        "handoff.withdrawn": f"{giver} took the offer of {subject} back.",
        "handoff.accepted": f"{addressee} accepted {subject}: the leases that went with it are not yours any more.",
        "handoff.rejected": f"{addressee} rejected {subject}: it is yours again, see handoff_get for the reason.",
        "handoff.expired": f"Nobody accepted {subject} in time: it is yours again.",
        "handoff.completed": f"{addressee} completed {subject}: see handoff_get for the result.",
    }[event.type]
    return {"what": what, "at": at, "handoff_id": handoff_id, "message": message}


def _cursor(ids: list[int]) -> str:
    """Names exactly what was told: an event with a lower id may appear later."""
    return "n" + ".".join(f"{id:x}" for id in ids)


def _ids(cursor: str) -> list[int]:
    """Raises ValueError."""
    try:
        ids = [int(part, 16) for part in cursor.removeprefix("n").split(".")]
    except ValueError:
        ids = []
    if not cursor.startswith("n") or not 0 < len(ids) <= 2 * MOST_TOLD or not all(0 < id < 2**63 for id in ids):
        raise ValueError("is not a notices_cursor of an earlier result")
    return ids
