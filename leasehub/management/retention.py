"""Events that are old move out, in batches of short transactions; the feed goes on meanwhile.

A batch is a prefix of the feed: what its events came to is folded into the snapshots of their subjects in the
transaction that deletes them, so that the journal can be replayed from there on (leasehub.management.invariants).
The feed's counter row survives, and its newest event too: database time that is behind it stops the pruning of
resources (leases.services.prune).
"""

import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Q, QuerySet

from leasehub.db import clock
from leasehub.db.locks import lock_rows
from leasehub.events.models import Event, Feed, Snapshot
from leasehub.events.rendering import event_view
from leasehub.identity.models import Organization
from leasehub.management.invariants.replay import (
    HANDOFF,
    REQUEST,
    RESOURCE,
    SLOT,
    Key,
    Past,
    State,
    apply,
    is_over,
    slot_name,
)

# On SQLite everybody waits for a transaction that writes: this many take under 50 ms.
BATCHES = {"sqlite": 100, "postgresql": 1000}
NAMED_AT_ONCE = 100
ARCHIVED_AT_ONCE = 10_000
CHUNK = 2000
#: A file that is being written grows; hosts that share the folder may have different clocks.
LEFT_BEHIND_SECONDS = 3600


def prune_events(*, batches: int = 200) -> int:
    """Moves out what is older than LEASEHUB_EVENT_DAYS, of every organization. How many events."""
    before = clock.now() - timedelta(days=settings.LEASEHUB_EVENT_DAYS)
    total = 0
    for feed in Feed.objects.order_by("pk"):
        total += _prune(feed.pk, before, batches=batches)
    return total


def _prune(organization: int, before: datetime, *, batches: int) -> int:
    total = 0
    archived = 0
    for _ in range(batches):
        feed = Feed.objects.get(pk=organization)
        end = _end_of_old(feed, before, limit=BATCHES[connection.vendor])
        if end <= feed.pruned_through:
            break
        if settings.LEASEHUB_EVENT_ARCHIVE:
            if archived <= feed.pruned_through:
                archived = _end_of_old(feed, before, limit=ARCHIVED_AT_ONCE)
                whole = archive(Organization.objects.get(pk=organization), after=feed.pruned_through, through=archived)
                if whole is None:
                    # Another process is at it.
                    break
            end = min(end, archived)
        moved = _prune_batch(organization, after=feed.pruned_through, through=end)
        total += moved
        if not moved:
            # Another process is at it.
            break
    return total


def _end_of_old(feed: Feed, before: datetime, *, limit: int) -> int:
    """The position through which everything is old, at most so many events on; never the newest event."""
    end = min(feed.pruned_through + limit, feed.last_position - 1)
    coming = Event.objects.filter(organization_id=feed.pk, position__gt=feed.pruned_through, position__lte=end)
    # Not in the order of time, quite: a prefix ends before its first young event.
    young = coming.filter(at__gte=before).order_by("position").values_list("position", flat=True).first()
    return end if young is None else young - 1


@transaction.atomic
def _prune_batch(organization: int, *, after: int, through: int) -> int:
    """Folds and deletes a batch; 0 when another process has it, or had it before."""
    batch = Event.objects.filter(organization_id=organization, position__gt=after, position__lte=through)
    events = sorted(lock_rows(batch, skip_locked=True), key=lambda event: event.position or 0)
    # Dense: whoever gets them all is alone with them.
    if len(events) != through - after or Feed.objects.get(pk=organization).pruned_through != after:
        return 0
    _fold(organization, [Past.of(event) for event in events])
    batch.delete()
    # The feed's row last, and only for a moment: a stamper passes over a locked one.
    Feed.objects.filter(pk=organization, pruned_through=after).update(pruned_through=through)
    return len(events)


def _fold(organization: int, events: list[Past]) -> None:
    """Brings the snapshots of what these events are about up to date."""
    states = _states(organization, events)
    before = {key: json.dumps(state, sort_keys=True) for key, state in states.items()}
    for event in events:
        # What cannot be is check_invariants' to report: it has been there since the event was written.
        for _ in apply(states, event):
            pass
    over = [key for key, state in states.items() if is_over(key, state)]
    kept = {key: state for key, state in states.items() if key not in over}
    changed = {key: state for key, state in kept.items() if before.get(key) != json.dumps(state, sort_keys=True)}
    gone = [key for key in over if key in before]
    for start in range(0, len(gone), NAMED_AT_ONCE):
        Snapshot.objects.filter(_named(organization, gone[start : start + NAMED_AT_ONCE])).delete()
    Snapshot.objects.bulk_create(
        [
            Snapshot(organization_id=organization, kind=kind, subject_type=type, subject_id=name, state=state)
            for (kind, type, name), state in changed.items()
        ],
        update_conflicts=True,
        unique_fields=["organization", "kind", "subject_type", "subject_id"],
        update_fields=["state"],
    )


def _states(organization: int, events: list[Past]) -> dict[Key, State]:
    """The snapshots of everything that the events can change."""
    named: set[Key] = set()
    for event in events:
        if event.resource_type:
            named.add((RESOURCE, *event.subject))
        if event.type == "pool.declared":
            slots = (*event.data.get("added", []), *event.data.get("removed", []))
            named |= {(RESOURCE, SLOT, slot_name(event.resource_id, slot)) for slot in slots}
        if "request_id" in event.data:
            named.add((REQUEST, event.resource_id.partition("/")[0], event.data["request_id"]))
        if "handoff_id" in event.data:
            named.add((HANDOFF, "", event.data["handoff_id"]))
    states = _loaded(organization, named)
    # A slot's lease that ends may end a request that only the slot names.
    behind = {
        (REQUEST, name.partition("/")[0], state["slot"]["request"])
        for (kind, type, name), state in states.items()
        if (kind, type) == (RESOURCE, SLOT) and state.get("slot", {}).get("request")
    }
    return {**states, **_loaded(organization, behind - named)}


def _loaded(organization: int, keys: set[Key]) -> dict[Key, State]:
    found: dict[Key, State] = {}
    wanted = sorted(keys)
    for start in range(0, len(wanted), NAMED_AT_ONCE):
        for row in Snapshot.objects.filter(_named(organization, wanted[start : start + NAMED_AT_ONCE])):
            found[(row.kind, row.subject_type, row.subject_id)] = row.state
    return found


def _named(organization: int, keys: list[Key]) -> Q:
    any_of = Q(pk=None)
    for kind, type in sorted({key[:2] for key in keys}):
        names = [name for (one, other, name) in keys if (one, other) == (kind, type)]
        any_of |= Q(kind=kind, subject_type=type, subject_id__in=names)
    return any_of & Q(organization=organization)


# --- out -----------------------------------------------------------------------------------------------------------


def lines(events: QuerySet[Event]) -> Iterator[bytes]:
    """NDJSON: what the feed shows of each event, and its organization's name."""
    shown = events.select_related("organization", "actor", "key", "principal", "addressee")
    for event in shown.iterator(chunk_size=CHUNK):
        document = {"organization": event.organization.name, **event_view(event)}
        yield json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def archive(organization: Organization, *, after: int, through: int) -> Path | None:
    """Writes a span of the feed to a file of LEASEHUB_EVENT_ARCHIVE; None, and no file, when some is gone already.

    Named by its first and last position: whoever replaces a file writes the very same events.
    """
    folder = Path(settings.LEASEHUB_EVENT_ARCHIVE) / f"organization-{organization.pk}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _remove_left_behind(folder)
    span = Event.objects.filter(organization=organization, position__gt=after, position__lte=through)
    # Not named by the process: those of other hosts, which have the same numbers, may share the folder.
    descriptor, name = tempfile.mkstemp(prefix=".", suffix=".part", dir=folder)
    aside = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            written = 0
            for line in lines(span.order_by("position")):
                stream.write(line)
                written += 1
            stream.flush()
            os.fsync(stream.fileno())
        if written < through - after:
            return None
        return aside.replace(folder / f"events-{after + 1:020d}-{through:020d}.ndjson")
    finally:
        aside.unlink(missing_ok=True)


def _remove_left_behind(folder: Path) -> None:
    """What a worker was writing when it was killed."""
    for aside in folder.glob(".*.part"):
        with suppress(FileNotFoundError):
            if aside.stat().st_mtime < time.time() - LEFT_BEHIND_SECONDS:
                aside.unlink()
