"""Rebuilds each organization's state from its journal, and compares.

Resources, the bulk of it, are walked in the order of their names: events, rows, tasks and what retention kept come side
by side, so that no more than one resource is in memory at a time. Of a pool its open requests and its slots are,
of handoffs those that are pending or accepted.
"""

import heapq
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any, TypeVar
from uuid import UUID

from django.db import connection
from django.db.models import F, Q, QuerySet
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Collate

from handoffs.models import Checkpoint, Handoff
from leasehub.db import clock
from leasehub.db.reading import consistent
from leasehub.events.models import Event, Feed, Snapshot
from leasehub.identity.models import ApiKey, Organization, Principal
from leasehub.management.invariants import rows
from leasehub.management.invariants.replay import (
    HANDOFF,
    OPEN,
    POOL,
    REQUEST,
    RESOURCE,
    SLOT,
    TASK,
    Key,
    Past,
    State,
    apply_to_handoff,
    apply_to_pool,
    apply_to_resource,
    concerns_leases,
    is_over,
)
from leasehub.management.invariants.report import Report
from leases.models import Resource
from leases.queues.models import Task, public_task_id
from pools import queries as pool_queries
from pools.models import Pool, Request, Slot, public_request_id

CHUNK = 2000
#: Final states are compared with the rows so many at a time.
BATCH = 500

Name = tuple[str, str]
Named = TypeVar("Named", str, Name)
Progress = Callable[[str], None]


def check(*, organization: str | None = None, progress: Progress = lambda text: None) -> Report:
    """Everything that the journal and SQL can say, as of one moment, on a live server. Nothing is changed."""
    report = Report()
    began = time.monotonic()
    with consistent():
        at = clock.now()
        report.at = clock.iso(at)
        found = Organization.objects.order_by("pk")
        for row in found if organization is None else found.filter(name=organization):
            pruned = Feed.objects.filter(pk=row.pk, pruned_through__gt=0).exists()
            Check(row, report, progress, pruned=pruned).run()
            for finding in rows.nobody_waits_beside_a_free_slot(row.pk, at):
                report.add(row.name, *finding)
    report.took_ms = round((time.monotonic() - began) * 1000)
    return report


class Noted(dict[Key, State]):
    """States that remember which of them were written since they were last asked."""

    def __init__(self, states: dict[Key, State]) -> None:
        super().__init__(states)
        self._written: set[Key] = set()

    def __setitem__(self, key: Key, state: State) -> None:
        super().__setitem__(key, state)
        self._written.add(key)

    def written(self) -> set[Key]:
        written, self._written = self._written, set()
        return written


class Check:
    def __init__(self, organization: Organization, report: Report, progress: Progress, *, pruned: bool) -> None:
        self.organization = organization
        self.report = report
        self.progress = progress
        #: Of what ended before, the events are gone.
        self.pruned = pruned

    def run(self) -> None:
        self.report.checked["organizations"] += 1
        self.progress(f"{self.organization}: resources")
        self.resources()
        for pool in Pool.objects.filter(organization=self.organization).order_by("pk"):
            self.progress(f"{self.organization}: pool {pool}")
            self.pool(pool)
        self.progress(f"{self.organization}: handoffs and checkpoints")
        self.handoffs()
        self.checkpoints()
        self.progress(f"{self.organization}: rows")
        for rule in rows.RULES:
            for finding in rule(self.organization.pk):
                self.report.add(self.organization.name, *finding)

    def add(self, code: str, subject: str, text: str) -> None:
        self.report.add(self.organization.name, code, subject, text)

    # --- resources -----------------------------------------------------------------------------------------------

    def resources(self) -> None:
        kept = self.by_name(self.snapshots(RESOURCE), "subject_type", "subject_id")
        held = self.by_name(Resource.objects.filter(organization=self.organization), "resource_type", "resource_id")
        tasks = Task.objects.filter(queue__organization=self.organization).select_related("queue").order_by("pk")
        streams = (
            _tagged(0, kept.iterator(chunk_size=CHUNK), lambda row: (row.subject_type, row.subject_id)),
            _tagged(1, self.named_from_inside(self.journal()), lambda event: event.subject),
            _tagged(2, held.iterator(chunk_size=CHUNK), lambda row: (row.resource_type, row.resource_id)),
            _tagged(3, tasks.iterator(chunk_size=CHUNK), lambda row: (TASK, public_task_id(row.pk))),
        )
        merged = heapq.merge(*streams, key=lambda item: item[:2])
        for name, items in groupby(merged, key=lambda item: item[0]):
            self.resource(name, (item for _, _, item in items))

    def journal(self) -> QuerySet[Event]:
        """The events that are about a resource."""
        events = Event.objects.filter(organization=self.organization).exclude(resource_type="")
        return events.order_by(*self.ordered("resource_type", "resource_id"), "pk")

    def resource(self, name: Name, items: Iterable[Any]) -> None:
        """One resource: what retention kept, then its events, then its rows."""
        subject = "/".join(name)
        key: Key = (RESOURCE, *name)
        states: dict[Key, State] = {}
        found: list[Resource] = []
        task: Task | None = None
        last: int | None = 0
        for item in items:
            if isinstance(item, Snapshot):
                states[key] = item.state
            elif isinstance(item, Past):
                self.count("events")
                last = self.position(subject, item, last)
                for finding in apply_to_resource(states, item) if concerns_leases(item) else ():
                    self.add(finding[0], subject, finding[1])
            elif isinstance(item, Resource):
                found.append(item)
            else:
                task = item
        self.count("resources")
        if len(found) > 1:
            self.add("two_rows", subject, f"{len(found)} rows say who holds it")
        state = states.get(key, {})
        for row in found:
            for finding in (*rows.resource_is_whole(row), *self.row_differs(row, state)):
                self.add(finding[0], subject, finding[1])
        if not found and state.get("lease"):
            self.add("row_is_gone", subject, f"{state['lease']} is held as the journal says, and has no row")
        if name[0] == TASK:
            for finding in self.task_differs(task, state.get("task"), found):
                self.add(finding[0], subject, finding[1])

    def position(self, subject: str, event: Past, last: int | None) -> int | None:
        if event.position is not None and (last is None or event.position <= last):
            self.add("feed_out_of_order", subject, f"event {event.id} is at {event.position}, the one before at {last}")
        return event.position

    def row_differs(self, row: Resource, state: State) -> Iterator[tuple[str, str]]:
        lease = None if row.lease_id is None else row.lease_id.hex
        is_said = (lease, row.principal_id, row.holder or None)
        should_be = (state.get("lease"), state.get("principal"), state.get("holder") or None)
        if is_said != should_be:
            yield "row_differs", f"held by {is_said}, by the journal {should_be}"
        since = None if row.acquired_at is None else clock.iso(row.acquired_at)
        # What retention kept of older journals does not say it.
        if lease is not None and lease == state.get("lease") and since != state.get("since", since):
            yield "row_differs", f"acquired {since}, by the journal {state['since']}"
        token = state.get("token")
        # The events of a free row may be gone altogether.
        if (token is not None or not self.pruned or lease is not None) and row.last_token != (token or 0):
            yield "token_differs", f"token {row.last_token}, by the journal {token}"

    def task_differs(self, row: Task | None, state: State | None, held: list[Resource]) -> Iterator[tuple[str, str]]:
        if row is None:
            # Finished ones are pruned, dead ones purged.
            if state is not None and state["state"] in ("ready", "leased"):
                yield "task_is_nowhere", f"{state['state']} by the journal, and has no row"
            return
        self.count("tasks")
        if state is None:
            if row.state != "done" or not self.pruned:
                yield "task_without_beginning", f"{row.state}, and nothing in the journal"
        elif (row.state, row.attempts) != (state["state"], state["attempts"]):
            yield (
                "task_differs",
                f"{row.state} after {row.attempts} attempts, by the journal {state['state']} after {state['attempts']}",
            )
        queue = (state or {}).get("queue")
        if queue is not None and queue != row.queue.name:
            yield "task_differs", f"of queue {row.queue.name}, by the journal of {queue}"
        is_held = any(resource.lease_id is not None for resource in held)
        if is_held != (row.state == "leased"):
            yield "task_is_nowhere", f"{row.state}, and {'a' if is_held else 'no'} lease is on it"

    # --- pools ---------------------------------------------------------------------------------------------------

    def pool(self, pool: Pool) -> None:
        states = self.pool_snapshot(pool)
        closed: dict[str, str] = {}
        declared: str | None = None
        events = Event.objects.filter(organization=self.organization).filter(
            Q(resource_type=POOL, resource_id=pool.name)
            | Q(resource_type=SLOT, resource_id__gte=f"{pool.name}/", resource_id__lt=f"{pool.name}0")
        )
        # An expression, so that the few of a pool are sorted and not all events walked through.
        for event in self.past(events.order_by(F("pk") + 0)):
            for finding in apply_to_pool(states, event):
                self.add(finding[0], "/".join(event.subject), finding[1])
            if event.type == "pool.declared":
                declared = event.data.get("declaration_sha256", declared)
            for key in states.written():
                if key[0] == REQUEST and states[key]["state"] not in OPEN:
                    closed[key[2]] = states[key]["state"]
                    if is_over(key, states[key]):
                        del states[key]
            if len(closed) >= BATCH:
                self.compare_closed(pool, closed)
        self.compare_closed(pool, closed)
        self.compare_open(pool, {key: state for key, state in states.items() if key[0] == REQUEST})
        self.compare_slots(pool, states)
        if declared is not None and declared != pool_queries.declaration_sha256(pool=pool):
            self.add("declaration_differs", f"pool/{pool}", "it is not as it was last declared")

    def pool_snapshot(self, pool: Pool) -> "Noted":
        slots = self.snapshots(RESOURCE).filter(
            subject_type=SLOT, subject_id__gte=f"{pool.name}/", subject_id__lt=f"{pool.name}0"
        )
        kept = (*slots, *self.snapshots(REQUEST).filter(subject_type=pool.name))
        return Noted({(row.kind, row.subject_type, row.subject_id): row.state for row in kept})

    def compare_closed(self, pool: Pool, closed: dict[str, str]) -> None:
        found = Request.objects.filter(pool=pool, request_id__in=[UUID(name.removeprefix("req_")) for name in closed])
        for request in found:
            name = public_request_id(request.request_id)
            if request.state != closed[name]:
                self.add("request_differs", f"{pool}/{name}", f"{request.state}, by the journal {closed[name]}")
        closed.clear()

    def compare_open(self, pool: Pool, states: dict[Key, State]) -> None:
        by_journal = {key[2]: state["state"] for key, state in states.items() if state["state"] in OPEN}
        for request in Request.objects.filter(pool=pool, state__in=Request.OPEN).iterator(chunk_size=CHUNK):
            self.count("requests")
            name = public_request_id(request.request_id)
            said = by_journal.pop(name, None)
            if request.state != said:
                self.add("request_differs", f"{pool}/{name}", f"{request.state}, by the journal {said}")
        for name, said in by_journal.items():
            self.add("request_differs", f"{pool}/{name}", f"not open, by the journal {said}")

    def compare_slots(self, pool: Pool, states: dict[Key, State]) -> None:
        for slot in Slot.objects.filter(pool=pool).select_related("request").iterator(chunk_size=CHUNK):
            self.count("slots")
            name = f"{pool.name}/{slot.slot_id}"
            by_journal = states.get((RESOURCE, SLOT, name), {}).get("slot", {})
            request = None if slot.request is None else public_request_id(slot.request.request_id)
            said = (slot.is_declared, slot.is_draining, slot.is_broken, request)
            flags = [by_journal.get(flag, False) for flag in ("declared", "draining", "broken")]
            if said != (*flags, by_journal.get("request")):
                self.add("slot_differs", f"slot/{name}", f"declared, draining, broken, request {said}, by the journal "
                         f"{(*flags, by_journal.get('request'))}")  # fmt: skip

    # --- handoffs ------------------------------------------------------------------------------------------------

    def handoffs(self) -> None:
        states: dict[Key, State] = {
            (HANDOFF, "", row.subject_id): row.state for row in self.snapshots(HANDOFF).iterator(chunk_size=CHUNK)
        }
        closed: dict[str, State] = {}
        last: dict[str, int | None] = {}
        events = Event.objects.filter(organization=self.organization, resource_type="", resource_id="")
        for event in self.named_from_inside(events.order_by("pk")):
            self.count("events")
            if not event.type.startswith("handoff."):
                continue
            name = str(event.data["handoff_id"])
            last[name] = self.position(name, event, last.get(name, 0))
            for finding in apply_to_handoff(states, event):
                self.add(finding[0], name, finding[1])
            key: Key = (HANDOFF, "", name)
            if key in states and is_over(key, states[key]):
                closed[name] = states.pop(key)
                del last[name]
            if len(closed) >= BATCH:
                self.compare_handoffs(closed)
        self.compare_handoffs(closed)
        by_journal = {key[2]: state for key, state in states.items()}
        waiting = Handoff.objects.filter(organization=self.organization, status__in=["pending", "accepted"])
        for handoff in waiting.iterator(chunk_size=CHUNK):
            self.count("handoffs")
            self.compare_handoff(handoff.handoff_id, handoff, by_journal.pop(handoff.handoff_id, None))
        for name, state in by_journal.items():
            self.add("handoff_differs", name, f"not open, by the journal {state}")

    def compare_handoffs(self, closed: dict[str, State]) -> None:
        found = Handoff.objects.filter(
            organization=self.organization, public_id__in=[UUID(name.removeprefix("hoff_")) for name in closed]
        )
        rows = {handoff.handoff_id: handoff for handoff in found}
        for name, state in closed.items():
            self.compare_handoff(name, rows.get(name), state)
        closed.clear()

    def compare_handoff(self, name: str, row: Handoff | None, state: State | None) -> None:
        if row is None or state is None:
            self.add("handoff_differs", name, f"{'no row' if row is None else row.status}, by the journal {state}")
            return
        said = {"status": str(row.status), "giver": row.giver_id, "addressee": row.addressee_id}
        # What retention kept of older journals has the status alone.
        if said != {**said, **state}:
            self.add("handoff_differs", name, f"{said}, by the journal {state}")

    def checkpoints(self) -> None:
        """The last that was saved is the head; those that ran out are deleted without an event."""
        name_of_event: Any = KeyTextTransform("checkpoint_id", "data")
        if connection.vendor == "postgresql":
            name_of_event = Collate(name_of_event, "C")
        saved = Event.objects.filter(type="checkpoint.saved", organization=self.organization)
        heads = Checkpoint.objects.filter(organization=self.organization)
        streams = (
            _tagged(0, self.past(saved.order_by(name_of_event, "pk")), lambda event: event.data["checkpoint_id"]),
            # Of 32 digits each: their order is that of the names.
            _tagged(1, heads.order_by("public_id").iterator(chunk_size=CHUNK), lambda head: head.checkpoint_id),
        )
        for name, items in groupby(heapq.merge(*streams, key=lambda item: item[:2]), key=lambda item: item[0]):
            self.checkpoint(name, (item for _, _, item in items))

    def checkpoint(self, name: str, items: Iterable[Any]) -> None:
        """One checkpoint: its events, then its head."""
        said: tuple[int, str] | None = None
        last: int | None = 0
        for item in items:
            if isinstance(item, Past):
                last = self.position(name, item, last)
                said = (item.data["version"], item.data["state_hash"])
                continue
            self.count("checkpoints")
            is_said = (item.version, item.state_hash)
            if is_said != said and not (said is None and self.pruned):
                self.add("checkpoint_differs", name, f"version and hash {is_said}, by the journal {said}")

    # --- reading -------------------------------------------------------------------------------------------------

    def count(self, what: str) -> None:
        checked = self.report.checked
        checked[what] += 1
        if what == "events" and checked[what] % 50_000 == 0:
            self.progress(f"{self.organization}: {checked[what]} events, {self.report.found} findings")

    def snapshots(self, kind: str) -> QuerySet[Snapshot]:
        return Snapshot.objects.filter(organization=self.organization, kind=kind)

    def by_name(self, found: QuerySet[Any], *columns: str) -> QuerySet[Any]:
        return found.order_by(*self.ordered(*columns), "pk")

    def ordered(self, *columns: str) -> list[Any]:
        """By code point, as Python compares, whatever the database's locale is; it is so on SQLite anyway."""
        if connection.vendor != "postgresql":
            return list(columns)
        return [Collate(F(column), "C") for column in columns]

    def past(self, events: QuerySet[Event]) -> Iterator[Past]:
        for row in events.values_list(*Past._fields).iterator(chunk_size=CHUNK):
            yield Past(*row)

    def named_from_inside(self, events: QuerySet[Event]) -> Iterator[Past]:
        """The events, while it is seen to that whoever they name is of the organization: no foreign key says so."""
        principals = set(Principal.objects.filter(organization=self.organization).values_list("pk", flat=True))
        keys = set(ApiKey.objects.filter(principal__organization=self.organization).values_list("pk", flat=True))
        for event in self.past(events):
            subject = "/".join(event.subject) if event.resource_type else event.type
            named = (event.actor_id, event.principal_id, event.addressee_id)
            foreign = [principal for principal in named if principal is not None and principal not in principals]
            if foreign:
                self.add("event_from_outside", subject, f"event {event.id} names principals {foreign}")
            if event.key_id is not None and event.key_id not in keys:
                self.add("event_from_outside", subject, f"event {event.id} names key {event.key_id}")
            yield event


def _tagged(tag: int, rows: Iterable[Any], name: Callable[[Any], Named]) -> Iterator[tuple[Named, int, Any]]:
    for row in rows:
        yield name(row), tag, row
