"""Faults that somebody could make in the code of the lease, each a few changed words, and what catches them."""

# The texts to replace are as long as the lines they stand on.
# ruff: noqa: E501

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

from tests.concurrency.sql import Change
from tests.faulty import scenarios

ENGINE_MODULES = {"leases.engines.portable", "leases.granting"}


@dataclass(frozen=True)
class Fault:
    name: str
    #: The scenario that catches it.
    scenario: str
    #: Function, old, new: in leases/sql/lease_functions.sql.
    sql: Sequence[Change] = ()
    #: Module, old, new: in the Python source.
    python: Sequence[Change] = ()
    needs_postgresql: bool = False

    @property
    def of_an_engine(self) -> bool:
        return bool(self.sql) or bool({module for module, _, _ in self.python} & ENGINE_MODULES)


@contextmanager
def mutated(changes: Sequence[Change], patch: pytest.MonkeyPatch) -> Iterator[None]:
    """The modules with their source changed: every reference to one of their functions is to the changed one."""
    with patch.context() as patched:
        for name in dict.fromkeys(module for module, _, _ in changes):
            original = importlib.import_module(name)
            faulty = vars(_rewritten(original, [change for change in changes if change[0] == name]))
            replacement = {
                value: faulty[name] for name, value in vars(original).items() if isinstance(value, FunctionType)
            }
            for module in [module for path, module in sys.modules.items() if path.startswith(("leases", "leasehub"))]:
                for attribute, value in list(vars(module).items()):
                    if isinstance(value, FunctionType) and value in replacement:
                        patched.setattr(module, attribute, replacement[value])
        yield


def _rewritten(original: ModuleType, changes: Sequence[Change]) -> ModuleType:
    assert original.__file__
    source = Path(original.__file__).read_text()
    for _, old, new in changes:
        assert old in source, f"there is no {old!r} in {original.__name__} to replace"
        source = source.replace(old, new)
    faulty = ModuleType(original.__name__)
    faulty.__file__ = original.__file__
    # Dataclasses look their module up, and an error raised must be the one that is caught elsewhere.
    exec(compile(source, original.__file__, "exec"), vars(faulty))
    vars(faulty).update({name: value for name, value in vars(original).items() if isinstance(value, type)})
    return faulty


PORTABLE, GRANTING, ENDINGS = "leases.engines.portable", "leases.granting", "leases.endings"
SERVICES, FEED, JOURNAL = "leases.services", "leasehub.events.feed", "leasehub.events.journal"
RECHECK = "                    IF NOT (of_self AND p_reacquire) THEN\n                        outcome := CASE"
LOCK_LEASE = """
    SELECT row.* INTO r
    FROM leasehub_key_owner(p_key) AS owner
    JOIN leases_resource AS row
        ON row.organization_id = owner.organization_id AND row.principal_id = owner.principal_id
    WHERE row.lease_id = p_lease
    FOR UPDATE OF row;"""
BEAT_CLOCK = '            return Outcome("not_found", lease_id)\n        at = clock.now()\n        if row.last_token != fencing_token:'
END_ROW = "    Resource.objects.filter(pk=row.pk).update(**FREE)\n"
BEAT_TTL = "expires_at := least(at + p_ttl_ms * interval '1 millisecond', r.lifetime_ends_at);"

EARLY_BEAT_SQL = [
    ("lease_heartbeat", LOCK_LEASE, f"    at := leasehub_now();{LOCK_LEASE}"),
    (
        "lease_heartbeat",
        "    at := leasehub_now();\n    expires_at := r.expires_at;",
        "    expires_at := r.expires_at;",
    ),
]
EARLY_BEAT = [
    (PORTABLE, BEAT_CLOCK, BEAT_CLOCK.replace("        at = clock.now()\n", "")),
    (
        PORTABLE,
        "    with transaction.atomic():\n        row = _lock_lease(owner, lease_id)",
        "    at = clock.now()\n    with transaction.atomic():\n        row = _lock_lease(owner, lease_id)",
    ),
]

FAULTS = [
    Fault(
        "the heartbeat does not compare the token",
        scenarios.a_heartbeat_with_another_token_is_refused.__name__,
        sql=[("lease_heartbeat", "IF r.last_token <> p_token THEN", "IF false THEN")],
        python=[(PORTABLE, "if row.last_token != fencing_token:", "if False:")],
    ),
    Fault(
        "the release does not compare the token",
        scenarios.a_release_with_another_token_is_refused.__name__,
        sql=[("lease_release", "p_token IS NOT NULL AND r.last_token <> p_token", "false")],
        python=[(PORTABLE, "fencing_token is not None and row.last_token != fencing_token", "False")],
    ),
    Fault(
        "the forced release does not compare the token",
        scenarios.a_force_release_with_another_token_is_refused.__name__,
        python=[(SERVICES, "if row.last_token != fencing_token:", "if False:")],
    ),
    Fault(
        "a lease is looked up whoever holds it",
        scenarios.nobody_else_can_heartbeat_or_release_a_lease.__name__,
        sql=[("lease_heartbeat", "AND row.principal_id = owner.principal_id", "")],
        python=[(PORTABLE, "organization_id=organization, principal_id=principal)", "organization_id=organization)")],
    ),
    Fault(
        "all holders of a principal are one",
        scenarios.two_holders_of_one_principal_are_two.__name__,
        sql=[
            ("lease_acquire", " AND r.holder = p_holder", ""),
            ("lease_acquire", " AND caller.held_as = p_holder", ""),
        ],
        python=[(PORTABLE, "row.principal_id == principal and row.holder == holder", "row.principal_id == principal")],
    ),
    Fault(
        "the heartbeat reads the clock before the lock",
        scenarios.a_heartbeat_that_waited_past_the_expiry_is_refused.__name__,
        sql=EARLY_BEAT_SQL,
        python=EARLY_BEAT,
    ),
    Fault(
        "the batch of heartbeats reads the clock before the lock",
        scenarios.each_heartbeat_of_a_batch_that_waited_past_the_expiry_is_refused.__name__,
        sql=EARLY_BEAT_SQL,
    ),
    Fault(
        "acquire reads the clock before the lock",
        scenarios.an_acquire_that_waited_past_the_expiry_takes_over.__name__,
        sql=[
            (
                "lease_acquire",
                "            at := leasehub_now();\n            IF r.lease_id",
                "            IF r.lease_id",
            ),
        ],
        python=[
            (
                PORTABLE,
                "    with transaction.atomic():\n        row = lock_or_make(",
                "    at = clock.now()\n    with transaction.atomic():\n        row = lock_or_make(",
            ),
            (
                PORTABLE,
                "        at = clock.now()\n        if (refusal := _refusal(row,",
                "        if (refusal := _refusal(row,",
            ),
        ],
    ),
    Fault(
        "a first acquire that waited keeps the time from before",
        scenarios.a_first_acquire_that_waited_for_one_that_was_taken_back_counts_from_then.__name__,
        sql=[("lease_acquire", "EXIT WHEN leasehub_now() < at + interval '10 milliseconds';", "EXIT;")],
    ),
    Fault(
        "acquire does not decide again under the lock",
        scenarios.a_takeover_that_waited_while_another_took_over_is_refused.__name__,
        sql=[("lease_acquire", RECHECK, RECHECK.replace("NOT (of_self AND p_reacquire)", "false"))],
        python=[
            (
                PORTABLE,
                "        if (refusal := _refusal(row, principal, holder, reacquire, at)) is not None:\n            return refusal\n        outcome =",
                "        outcome =",
            )
        ],
    ),
    Fault(
        "acquire does not lock",
        scenarios.a_takeover_that_waited_while_another_took_over_is_refused.__name__,
        sql=[("lease_acquire", "resource_id = p_id\n            FOR UPDATE;", "resource_id = p_id;")],
        python=[
            (GRANTING, "lock_rows(named)", "named"),
            (
                PORTABLE,
                "    with transaction.atomic():\n        row = lock_or_make(",
                "    if True:\n        row = lock_or_make(",
            ),
        ],
    ),
    Fault(
        "the token is taken before the lock",
        scenarios.the_token_after_a_wait_is_above_the_one_given_meanwhile.__name__,
        sql=[
            (
                "lease_acquire",
                "    LOOP\n",
                "    fencing_token := (SELECT last_token FROM leases_resource WHERE id = caller.row_id);\n    LOOP\n",
            ),
            ("lease_acquire", "greatest(r.last_token + 1,", "greatest(fencing_token + 1,"),
        ],
        python=[
            (
                PORTABLE,
                "    with transaction.atomic():\n        row = lock_or_make(",
                "    before = named.first()\n    with transaction.atomic():\n        row = lock_or_make(",
            ),
            (
                PORTABLE,
                '        outcome = "acquired"\n',
                '        outcome = "acquired"\n        row.last_token = before.last_token if before else 0\n',
            ),
        ],
    ),
    Fault(
        "the heartbeat does not look at the expiry",
        scenarios.an_expired_lease_is_not_revived.__name__,
        sql=[("lease_heartbeat", "IF r.expires_at <= at THEN", "IF false THEN")],
        python=[
            (PORTABLE, "        if row.expires_at <= at:\n            over", "        if False:\n            over")
        ],
    ),
    Fault(
        "exactly at the expiry a lease is alive",
        scenarios.an_expired_lease_is_not_revived.__name__,
        sql=[("lease_heartbeat", "IF r.expires_at <= at THEN", "IF r.expires_at < at THEN")],
        python=[
            (
                PORTABLE,
                "        if row.expires_at <= at:\n            over",
                "        if row.expires_at < at:\n            over",
            )
        ],
    ),
    Fault(
        "an expired lease blocks until it is reaped",
        scenarios.an_expired_lease_blocks_nobody.__name__,
        sql=[("lease_acquire", "IF caller.taken_until > at THEN", "IF caller.taken_until IS NOT NULL THEN")],
        python=[(PORTABLE, "if row.expires_at is None or row.expires_at <= at:", "if row.expires_at is None:")],
    ),
    Fault(
        "a takeover is journaled as any acquisition",
        scenarios.an_expired_lease_blocks_nobody.__name__,
        sql=[
            (
                "lease_acquire",
                "CASE outcome WHEN 'taken_over' THEN 'lease.taken_over' ELSE 'lease.acquired' END",
                "'lease.acquired'",
            )
        ],
        python=[(PORTABLE, '"lease.taken_over" if outcome == "taken_over" else "lease.acquired"', '"lease.acquired"')],
    ),
    Fault(
        "the reaper does not look at the expiry",
        scenarios.the_reaper_spares_the_living.__name__,
        sql=[("lease_reap_due", "row.id = ANY (ids) AND row.expires_at <= now_at", "row.id = ANY (ids)")],
        python=[
            (
                PORTABLE,
                "if row.expires_at is not None and row.expires_at <= at]",
                "if row.expires_at is not None]",
            )
        ],
    ),
    Fault(
        "a reap by name does not look at the expiry",
        scenarios.a_live_lease_cannot_be_reaped_by_name.__name__,
        python=[
            (SERVICES, "    if row.expires_at > at:\n        raise Conflict", "    if False:\n        raise Conflict")
        ],
    ),
    Fault(
        "a shorter lease is looked at as late as before",
        scenarios.a_heartbeat_that_shortens_the_lease_is_seen_by_the_reaper.__name__,
        sql=[
            ("lease_heartbeat", "check_at = least(row.check_at, lease_heartbeat.expires_at)", "check_at = row.check_at")
        ],
        python=[(PORTABLE, 'changed["check_at"] = expires_at', "pass")],
    ),
    Fault(
        "reconcile does not look at the fence",
        scenarios.reconcile_ends_the_dead_inside_the_fence_alone.__name__,
        python=[(SERVICES, '(inside if caller.may_hold_as(row.holder or "") else foreign)', "inside")],
    ),
    Fault(
        "a release goes by the name of the resource",
        scenarios.a_late_release_does_not_touch_the_next_holder.__name__,
        sql=[
            (
                "lease_release",
                "row.lease_id = p_lease\n",
                "row.resource_id = (SELECT event.resource_id FROM events_event AS event WHERE event.lease_id = p_lease LIMIT 1)\n"
                " AND row.lease_id IS NOT NULL\n",
            )
        ],
        python=[
            (
                PORTABLE,
                "lease = Resource.objects.filter(lease_id=lease_id, organization_id=organization, principal_id=principal)",
                "from leasehub.events.models import Event\n"
                "    name = Event.objects.filter(lease_id=lease_id).values('resource_id')[:1]\n"
                "    lease = Resource.objects.filter(resource_id__in=name, principal_id=principal, lease_id__isnull=False)",
            )
        ],
    ),
    Fault(
        "the token starts again after a release",
        scenarios.tokens_only_grow.__name__,
        sql=[
            (
                "lease_release",
                "lease_id = NULL, principal_id = NULL,",
                "last_token = 0, lease_id = NULL, principal_id = NULL,",
            )
        ],
        python=[(ENDINGS, '    "lease_id": None,\n', '    "lease_id": None,\n    "last_token": 0,\n')],
    ),
    Fault(
        "the token has no floor",
        scenarios.tokens_only_grow.__name__,
        sql=[
            (
                "lease_acquire",
                "greatest(r.last_token + 1, floor(extract(epoch FROM at) * 1000)::bigint)",
                "r.last_token + 1",
            )
        ],
        python=[(GRANTING, "max(row.last_token + 1, clock.milliseconds(at))", "row.last_token + 1")],
    ),
    Fault(
        "the token is the clock's alone",
        scenarios.tokens_only_grow.__name__,
        sql=[
            (
                "lease_acquire",
                "greatest(r.last_token + 1, floor(extract(epoch FROM at) * 1000)::bigint)",
                "floor(extract(epoch FROM at) * 1000)::bigint",
            )
        ],
        python=[(GRANTING, "max(row.last_token + 1, clock.milliseconds(at))", "clock.milliseconds(at)")],
    ),
    Fault(
        "rows are pruned as soon as they are free",
        scenarios.only_old_free_rows_are_pruned.__name__,
        python=[(SERVICES, "filter(lease_id=None, last_token__lt=token)", "filter(lease_id=None)")],
    ),
    Fault(
        "rows are pruned though they are held",
        scenarios.only_old_free_rows_are_pruned.__name__,
        python=[(SERVICES, "filter(lease_id=None, last_token__lt=token)", "filter(last_token__lt=token)")],
    ),
    Fault(
        "a heartbeat outlives the lifetime",
        scenarios.a_heartbeat_does_not_outlive_the_lifetime.__name__,
        sql=[("lease_heartbeat", BEAT_TTL, "expires_at := at + p_ttl_ms * interval '1 millisecond';")],
        python=[(PORTABLE, "return at if limit is None else min(at, limit)", "return at")],
    ),
    Fault(
        "a reacquisition has an event for the end and one for the start",
        scenarios.every_transition_has_one_event.__name__,
        python=[
            (
                GRANTING,
                "    record(\n        event,",
                "    if row.lease_id is not None:\n"
                "        record('lease.released', at=at, organization=row.organization_id, data={}, lease_id=row.lease_id,\n"
                "               resource_type=row.resource_type, resource_id=row.resource_id)\n"
                "    record(\n        event,",
            )
        ],
    ),
    Fault(
        "the reaper has no events",
        scenarios.every_transition_has_one_event.__name__,
        sql=[("lease_reap_due", "FROM dead ORDER BY dead.id", "FROM dead WHERE false ORDER BY dead.id")],
        python=[
            (
                ENDINGS,
                'journal.record_all([ending(row, "lease.reaped", at=at, data=epitaph(row)) for row in rows])',
                "pass",
            )
        ],
    ),
    Fault(
        "the event is written after the commit",
        scenarios.an_event_is_in_the_transaction_of_its_transition.__name__,
        python=[
            (
                JOURNAL,
                "    _insert(events)",
                "    from django.db import transaction\n    transaction.on_commit(lambda: _insert(events))",
            )
        ],
    ),
    Fault(
        "the event is written on another connection",
        scenarios.an_event_is_in_the_transaction_of_its_transition.__name__,
        python=[
            (
                JOURNAL,
                "    _insert(events)",
                "    from tests.concurrency.waiting import elsewhere\n    elsewhere(lambda: _insert(events))",
            )
        ],
        needs_postgresql=True,
    ),
    Fault(
        "acquire does not check the key",
        scenarios.a_key_that_works_no_more_is_refused.__name__,
        sql=[
            ("leasehub_key_owner", "      AND key.revoked_at IS NULL\n", ""),
        ],
        python=[(PORTABLE, "revoked_at=None, principal__retired_at=None", "principal__retired_at=None")],
    ),
    Fault(
        "an expired key goes on working",
        scenarios.a_key_that_works_no_more_is_refused.__name__,
        sql=[("leasehub_key_owner", "key.expires_at IS NULL OR key.expires_at >", "true OR key.expires_at >")],
        python=[(PORTABLE, "Q(expires_at=None) | Q(expires_at__gt=clock.now())", "Q()")],
    ),
    Fault(
        "the keys of a retired principal go on working",
        scenarios.a_key_that_works_no_more_is_refused.__name__,
        sql=[("leasehub_key_owner", "AND principal.retired_at IS NULL", "")],
        python=[(PORTABLE, "revoked_at=None, principal__retired_at=None", "revoked_at=None")],
    ),
    Fault(
        "the reader follows ids",
        scenarios.a_reader_sees_the_event_of_a_transaction_that_commits_late.__name__,
        python=[
            ("leasehub.events.queries", "position__gt=after, position__lte=end", "pk__gt=after"),
            ("leasehub.events.queries", 'order_by("position")', 'order_by("pk")'),
            (
                "leasehub.events.queries",
                "return Reading(found, max(after, end), more=end < last)",
                "return Reading(found, max([after, *(event.pk for event in found)]), more=False)",
            ),
        ],
        needs_postgresql=True,
    ),
    Fault(
        "the feed is stamped without a lock",
        scenarios.a_stamper_goes_away_while_another_is_at_it.__name__,
        python=[(FEED, "lock_rows(feeds, skip_locked=True)", "feeds")],
        needs_postgresql=True,
    ),
    Fault(
        "low water is raised at once",
        scenarios.low_water_waits_for_a_long_transaction.__name__,
        python=[(FEED, "feed.candidate_xid <= oldest_running", "True")],
        needs_postgresql=True,
    ),
    Fault(
        "low water waits for those alone that had begun before the candidate was seen",
        scenarios.low_water_waits_for_a_long_transaction.__name__,
        python=[(FEED, "        feed.candidate_xid = own", "        feed.candidate_xid = oldest_running")],
        needs_postgresql=True,
    ),
    Fault(
        "the beat starts at the lowest low water of those that have one",
        scenarios.the_beat_numbers_the_events_of_every_organization.__name__,
        python=[
            (
                FEED,
                'Coalesce("feed__low_water", 0)',
                'Coalesce(Feed.objects.order_by("low_water").values("low_water")[:1], 0)',
            )
        ],
    ),
]
