"""What SQL can see of the invariants (docs/architecture.md), row by row, whatever the journal says.

Most of it is kept by a constraint, too: a restored or repaired database may have lost one.
"""

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import Count, Exists, F, Max, Min, OuterRef, Q, QuerySet

from handoffs.models import Checkpoint, CheckpointVersion, Handoff, OfferedLease
from handoffs.services import hash_of
from leasehub.events.models import Event, Feed, WebhookEndpoint
from leasehub.identity.models import ApiKey, Principal, RememberedAnswer
from leases.models import LARGEST_TOKEN, Resource
from leases.queues.models import LIVE, Task
from pools.models import CommandRun, Pool, Request, Slot, public_request_id
from pools.promotion import grantable

Found = Iterator[tuple[str, str, str]]
LIVE_RUNS = CommandRun.objects.exclude(state="ended").exclude(purpose="nudge")
Outcome = OfferedLease.Outcome


def resource_is_whole(row: Resource) -> Iterator[tuple[str, str]]:
    """A held row has everything that a lease has, a free one nothing; called for each row by the replay."""
    held = (row.principal_id, row.holder, row.acquired_at, row.heartbeat_at, row.expires_at, row.check_at, row.ttl_ms)
    if len({value is None for value in (row.lease_id, *held)}) > 1:
        yield "half_a_lease", f"lease {row.lease_id} with {held}"
    if not 0 <= row.last_token <= LARGEST_TOKEN:
        yield "token_out_of_bounds", f"token {row.last_token}"
    if row.expires_at is None or row.heartbeat_at is None or row.check_at is None:
        return
    if row.expires_at <= row.heartbeat_at:
        yield "lease_born_dead", f"expires {row.expires_at}, beaten {row.heartbeat_at}"
    if row.ttl_ms is not None and row.expires_at > row.heartbeat_at + timedelta(milliseconds=row.ttl_ms):
        yield "lease_outlives_its_ttl", f"expires {row.expires_at}, beaten {row.heartbeat_at} for {row.ttl_ms} ms"
    if row.check_at > row.expires_at:
        yield "reaper_comes_late", f"expires {row.expires_at}, but is looked at from {row.check_at} on"
    if row.lifetime_ends_at is not None and row.expires_at > row.lifetime_ends_at:
        yield "lifetime_outlived", f"expires {row.expires_at}, its lifetime ends {row.lifetime_ends_at}"


def leases_are_of_one_organization(organization: int) -> Found:
    foreign = Resource.objects.filter(organization_id=organization, lease_id__isnull=False).exclude(
        principal__organization_id=organization
    )
    for row in foreign.iterator():
        yield "held_from_outside", str(row), f"principal {row.principal_id} is of another organization"


def lease_ids_are_unique(organization: int) -> Found:
    held = Resource.objects.filter(organization_id=organization, lease_id__isnull=False)
    twice = held.order_by().values("lease_id").annotate(times=Count("pk")).filter(times__gt=1)
    for row in twice.iterator():
        yield "one_lease_on_two_resources", f"lease {row['lease_id']}", f"on {row['times']} rows"


def feed_is_dense(organization: int) -> Found:
    """Positions go from the first that is kept to the last that was given, without a gap or a double."""
    feed = Feed.objects.filter(pk=organization).first()
    pruned, last = (feed.pruned_through, feed.last_position) if feed else (0, 0)
    numbered = Event.objects.filter(organization_id=organization, position__isnull=False)
    seen = numbered.aggregate(count=Count("pk"), first=Min("position"), last=Max("position"))
    if seen["count"] == 0:
        if last > pruned:
            yield "feed_has_a_gap", "feed", f"positions {pruned + 1} to {last} are gone"
        return
    if seen["first"] != pruned + 1 or seen["last"] != last or seen["count"] != last - pruned:
        yield (
            "feed_has_a_gap",
            "feed",
            f"{seen['count']} events at {seen['first']} to {seen['last']},"
            f" not {last - pruned} at {pruned + 1} to {last}",
        )
    highest = _highest_event_id()
    if feed and max(feed.low_water, feed.candidate) > highest:
        yield (
            "feed_is_deaf",
            "feed",
            f"events up to {max(feed.low_water, feed.candidate)} count as numbered, and the last is {highest}:"
            " those that come are not",
        )
    if feed and Event.objects.filter(organization_id=organization, position=None, pk__lte=feed.low_water).exists():
        yield "event_below_low_water", "feed", f"an event with an id up to {feed.low_water} has no position"


def _highest_event_id() -> int:
    """The highest that was ever given, whatever was pruned since."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT pg_sequence_last_value(pg_get_serial_sequence('events_event', 'id')::regclass)")
        else:
            cursor.execute("SELECT max(seq) FROM sqlite_sequence WHERE name = 'events_event'")
        return cursor.fetchone()[0] or 0


def event_ids_are_unique(organization: int) -> Found:
    events = Event.objects.filter(organization_id=organization).order_by()
    twice = events.values("event_id").annotate(times=Count("pk")).filter(times__gt=1)
    for row in twice.iterator():
        yield "event_id_twice", f"event evt_{row['event_id'].hex}", f"on {row['times']} rows"


def webhooks_are_behind_the_feed(organization: int) -> Found:
    tail = Feed.objects.filter(pk=organization).values_list("last_position", flat=True).first() or 0
    beyond = WebhookEndpoint.objects.filter(organization_id=organization, deleted_at=None, cursor__gt=tail)
    for endpoint in beyond.iterator():
        yield "webhook_beyond_the_feed", endpoint.webhook_id, f"at {endpoint.cursor}, the feed at {tail}: it misses"


def everything_is_of_its_organization(organization: int) -> Found:
    """What names a principal or a key names one of the organization; of events the replay looks."""
    parties: tuple[tuple[str, QuerySet[Any], tuple[str, ...], tuple[str, ...]], ...] = (
        ("webhook", WebhookEndpoint.objects.filter(organization_id=organization), ("principal",), ("key",)),
        ("request", Request.objects.filter(pool__organization_id=organization), ("principal",), ("key",)),
        ("task", Task.objects.filter(queue__organization_id=organization), ("principal",), ()),
        ("handoff", Handoff.objects.filter(organization_id=organization), ("giver", "addressee"), ()),
        ("checkpoint", Checkpoint.objects.filter(organization_id=organization), ("principal",), ()),
    )
    for what, rows, principals, keys in parties:
        for name in principals:
            own = Principal.objects.filter(pk=OuterRef(f"{name}_id"), organization_id=organization)
            for row in rows.exclude(Exists(own)).order_by("pk").values("pk", f"{name}_id").iterator():
                yield "owned_from_outside", f"{what} {row['pk']}", f"its {name} is principal {row[f'{name}_id']}"
        for name in keys:
            own_keys = ApiKey.objects.filter(pk=OuterRef(f"{name}_id"), principal__organization_id=organization)
            named = rows.filter(**{f"{name}__isnull": False}).exclude(Exists(own_keys))
            for row in named.order_by("pk").values("pk", f"{name}_id").iterator():
                yield "owned_from_outside", f"{what} {row['pk']}", f"its {name} is {row[f'{name}_id']}"
    rotated = ApiKey.objects.filter(principal__organization_id=organization, rotated_from__isnull=False)
    for key in rotated.exclude(rotated_from__principal=F("principal")).order_by("pk").iterator():
        yield "owned_from_outside", key.key_id, "it was rotated from another principal's"


def tasks_have_an_end(organization: int) -> Found:
    tasks = Task.objects.filter(queue__organization_id=organization)
    for task in tasks.filter(Q(attempts__gt=F("max_attempts")) | Q(attempts__lt=0)).iterator():
        yield "task_loops", f"task/{task}", f"attempt {task.attempts} of {task.max_attempts}"
    known = [*LIVE, "done", "dead"]
    for task in tasks.exclude(state__in=known).iterator():
        yield "task_is_nowhere", f"task/{task}", f"state {task.state!r}"
    finished = Q(state__in=LIVE, finished_at__isnull=False) | Q(state__in=["done", "dead"], finished_at=None)
    for task in tasks.filter(finished).iterator():
        yield "task_is_nowhere", f"task/{task}", f"{task.state}, finished at {task.finished_at}"
    live = tasks.filter(state__in=LIVE, dedupe_key__isnull=False).order_by()
    for row in live.values("queue", "dedupe_key").annotate(times=Count("pk")).filter(times__gt=1).iterator():
        yield "work_is_there_twice", f"queue {row['queue']}", f"{row['times']} live tasks for {row['dedupe_key']!r}"


def slots_and_leases_agree(organization: int) -> Found:
    slots = Slot.objects.filter(pool__organization_id=organization).select_related("pool", "request")
    lease = Resource.objects.filter(lease_id=OuterRef("lease_id"), resource_type="slot", organization_id=organization)
    for slot in slots.filter(lease_id__isnull=False).exclude(Exists(lease)).iterator():
        yield (
            "slot_says_another_lease",
            f"slot/{slot}",
            f"its row says lease {slot.lease_id}",
        )
    held = Resource.objects.filter(organization_id=organization, resource_type="slot", lease_id__isnull=False)
    for row in held.exclude(Exists(Slot.objects.filter(lease_id=OuterRef("lease_id")))).iterator():
        yield "slot_says_another_lease", str(row), "is leased, and no slot's row says so"
    twice = slots.filter(lease_id__isnull=False).order_by().values("lease_id").annotate(n=Count("pk")).filter(n__gt=1)
    for double in twice:
        yield "one_lease_on_two_resources", f"lease {double['lease_id']}", f"on {double['n']} slots"
    for slot in slots.filter(request__isnull=False, lease_id=None).iterator():
        yield "slot_kept_without_lease", f"slot/{slot}", "is kept for a request, and free"


def slots_are_handed_out_clean(organization: int) -> Found:
    slots = Slot.objects.filter(pool__organization_id=organization).select_related("pool", "request")
    for slot in slots.filter(request__state="ready", is_clean=False).iterator():
        yield "unclean_slot_granted", f"slot/{slot}", "is granted, and its commands have not passed"
    live = LIVE_RUNS.filter(slot=OuterRef("pk"))
    for slot in slots.filter(is_busy=False).filter(Exists(live)).iterator():
        yield "busy_slot_looks_idle", f"slot/{slot}", "a command runs on it, and it could be granted"
    for slot in slots.filter(is_busy=True).exclude(Exists(live)).iterator():
        yield "slot_is_stuck", f"slot/{slot}", "it counts as busy, and no command runs: it is never granted again"
    of_grant = live.filter(purpose="grant", lease_id=OuterRef("lease_id"))
    for slot in slots.filter(request__state="ready").filter(Exists(of_grant)).iterator():
        yield "unclean_slot_granted", f"slot/{slot}", "is granted, and a command of the grant still runs"


def requests_have_their_slots(organization: int) -> Found:
    requests = Request.objects.filter(pool__organization_id=organization).select_related("pool")
    counted = requests.annotate(slots_held=Count("slots", distinct=True))
    wrong = (
        Q(state="ready", slots_held=0)
        | Q(slots_held__gt=F("count"))
        | Q(state="provisioning") & ~Q(slots_held=F("count"))
        | (~Q(state__in=Request.OPEN) & Q(slots_held__gt=0))
    )
    # Of those that are over, the ones alone that still have a slot: there may be many.
    for request in counted.filter(Q(state__in=Request.OPEN) | Q(slots__isnull=False)).filter(wrong).iterator():
        name = f"{request.pool}/{public_request_id(request.request_id)}"
        yield "request_has_wrong_slots", name, f"{request.state} with {request.slots_held} slots of {request.count}"


def nobody_waits_beside_a_free_slot(organization: int, at: datetime) -> Found:
    """At every commit nothing more can be granted: whoever is first would have got what is free."""
    for pool in Pool.objects.filter(organization_id=organization).order_by("pk").iterator():
        alive = at - timedelta(milliseconds=pool.waiter_stale_ms)
        first = Request.objects.filter(pool=pool, state="queued", seen_at__gte=alive).order_by("ticket").first()
        # With a selector, what is free may not be what it wants.
        if first is None or first.selector:
            continue
        has = Slot.objects.filter(request=first).count()
        if len(grantable(pool)[: first.count]) + has >= first.count:
            yield "waits_beside_a_free_slot", f"pool/{pool}", f"{public_request_id(first.request_id)} could be granted"


def tickets_are_unique(organization: int) -> Found:
    requests = Request.objects.filter(pool__organization_id=organization)
    for row in requests.order_by().values("pool", "ticket").annotate(times=Count("pk")).filter(times__gt=1).iterator():
        yield "ticket_given_twice", f"pool {row['pool']}", f"ticket {row['ticket']}"
    for request in requests.filter(ticket__gt=F("pool__last_ticket")).select_related("pool").iterator():
        yield "ticket_given_twice", f"pool/{request.pool}", f"ticket {request.ticket} will be given again"


def handoffs_and_their_leases_agree(organization: int) -> Found:
    offered = OfferedLease.objects.filter(handoff__organization_id=organization).select_related("handoff")
    accepted = Q(handoff__status__in=["accepted", "completed"])
    pending = Q(handoff__status="pending")
    wrong = (
        (accepted & ~Q(outcome__in=[Outcome.MOVED, Outcome.LOST]))
        | (pending & ~Q(outcome=Outcome.OFFERED))
        | (~accepted & ~pending & ~Q(outcome=Outcome.KEPT))
    )
    for lease in offered.filter(wrong).iterator():
        yield (
            "lease_moved_otherwise",
            str(lease.handoff),
            f"{lease} is {lease.outcome}, the handoff {lease.handoff.status}",
        )
    handoffs = Handoff.objects.filter(organization_id=organization)
    for handoff in handoffs.filter(Q(status="pending", resolved_at__isnull=False)).iterator():
        yield "handoff_resolved_twice", str(handoff), "it is pending, and was resolved before"


def checkpoints_have_their_version(organization: int) -> Found:
    head = CheckpointVersion.objects.filter(checkpoint=OuterRef("pk"), version=OuterRef("version"))
    beyond = CheckpointVersion.objects.filter(checkpoint=OuterRef("pk"), version__gt=OuterRef("version"))
    heads = Checkpoint.objects.filter(organization_id=organization)
    for checkpoint in heads.filter(~Exists(head) | Exists(beyond)).iterator():
        yield "checkpoint_without_version", checkpoint.checkpoint_id, f"its head says version {checkpoint.version}"


def states_have_their_hash(organization: int) -> Found:
    versions = CheckpointVersion.objects.filter(checkpoint__organization_id=organization)
    for row in versions.select_related("checkpoint").order_by("pk").iterator(chunk_size=100):
        head = row.checkpoint
        name = f"{head.checkpoint_id} version {row.version}"
        if row.version == head.version and row.state_hash != head.state_hash:
            yield "checkpoint_has_another_hash", name, f"{row.state_hash}, by its head {head.state_hash}"
        if hash_of(row.state) != row.state_hash and not _is_rewritten(row.state):
            yield "checkpoint_has_another_hash", name, f"its state does not hash to {row.state_hash}"


def _is_rewritten(state: Any) -> bool:
    """Whether it has a number that PostgreSQL may give back in another form than it was hashed in: 1e+16, -0.0."""
    text = json.dumps(state)
    whole: list[float] = []
    broken: list[float] = []
    json.loads(
        text,
        parse_int=lambda digits: whole.append(float(digits)),
        parse_float=lambda digits: broken.append(float(digits)),
    )
    return any(abs(number) >= 1e16 for number in whole) or 0 in broken


def answers_are_whole(organization: int) -> Found:
    """A key's row and the effect are of one transaction: nobody can see one without the other."""
    half = RememberedAnswer.objects.filter(principal__organization_id=organization, status=None)
    for row in half.iterator():
        yield "answer_without_effect", f"key {row.key_sha256[:12]}…", f"remembered {row.created_at} without an answer"
    answers = RememberedAnswer.objects.filter(principal__organization_id=organization).order_by()
    twice = answers.values("principal", "key_sha256").annotate(times=Count("pk")).filter(times__gt=1)
    for double in twice.iterator():
        yield "answer_without_effect", f"key {double['key_sha256'][:12]}…", f"was used {double['times']} times"


RULES: tuple[Callable[[int], Found], ...] = (
    leases_are_of_one_organization,
    lease_ids_are_unique,
    feed_is_dense,
    event_ids_are_unique,
    webhooks_are_behind_the_feed,
    everything_is_of_its_organization,
    tasks_have_an_end,
    slots_and_leases_agree,
    slots_are_handed_out_clean,
    requests_have_their_slots,
    tickets_are_unique,
    handoffs_and_their_leases_agree,
    checkpoints_have_their_version,
    states_have_their_hash,
    answers_are_whole,
)
