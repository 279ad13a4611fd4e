"""From the journal to the state: what the events alone say about who holds what."""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from leasehub.events.models import Event
from leases.models import Resource

STARTS = {"lease.acquired", "lease.taken_over", "lease.transferred"}
ENDS = {"lease.released", "lease.reaped", "lease.force_released"}

Name = tuple[int, str, str]


@dataclass(frozen=True)
class Holding:
    lease_id: uuid.UUID | None
    fencing_token: int | None
    principal: int | None
    holder: str


@dataclass
class State:
    """Who holds what, and the highest token of every resource that ever had one."""

    held: dict[Name, Holding]
    tokens: dict[Name, int]


def replayed(events: Iterable[Event]) -> State:
    """The state after these events, in the order of their ids. Fails on a transition that cannot be."""
    state = State({}, {})
    for event in events:
        assert event.type in STARTS | ENDS, event.type
        if event.type in STARTS:
            _start(state, event)
        else:
            _end(state, event)
    return state


def _start(state: State, event: Event) -> None:
    name = (event.organization_id, event.resource_type, event.resource_id)
    before = state.held.get(name)
    assert (before.lease_id if before else None) == event.previous_lease_id, f"{event} over {before}"
    if event.type == "lease.acquired" and before is not None:
        assert (before.principal, before.holder) == (event.principal_id, event.holder), f"{event} over {before}"
    if event.type == "lease.taken_over":
        assert before is not None
        assert event.data["previous"]["expires_at"] <= _iso(event), f"{event} over a live lease"
    assert event.fencing_token is not None
    assert event.fencing_token > state.tokens.get(name, 0), f"{event}: the token did not grow"
    state.tokens[name] = event.fencing_token
    state.held[name] = Holding(event.lease_id, event.fencing_token, event.principal_id, event.holder)


def _end(state: State, event: Event) -> None:
    name = (event.organization_id, event.resource_type, event.resource_id)
    before = state.held.pop(name, None)
    assert before == Holding(event.lease_id, event.fencing_token, event.principal_id, event.holder), (
        f"{event} of {before}"
    )


def _iso(event: Event) -> str:
    return event.at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{event.at.microsecond // 1000:03d}Z"


def assert_the_journal_gives_the_state(
    events: Iterable[Event] | None = None, resources: Iterable[Resource] | None = None
) -> None:
    """Replaying every event gives exactly what the rows say; a pruned row has had a token and is free."""
    state = replayed(Event.objects.order_by("pk") if events is None else events)
    resources = Resource.objects.all() if resources is None else resources
    rows = {(row.organization_id, row.resource_type, row.resource_id): row for row in resources}
    held = {
        name: Holding(row.lease_id, row.last_token, row.principal_id, row.holder or "")
        for name, row in rows.items()
        if row.lease_id is not None
    }
    assert state.held == held
    for name, row in rows.items():
        assert state.tokens.get(name, 0) == row.last_token, f"{row}: its token is not that of its last event"
