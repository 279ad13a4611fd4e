"""Writing events: in the transition's transaction, by the function that makes it."""

import uuid
from collections.abc import Callable
from datetime import datetime
from typing import Any, ParamSpec

from leasehub.db.rows import insert
from leasehub.events.models import Event

Members = ParamSpec("Members")


def event(
    type: str,
    *,
    at: datetime,
    organization: int,
    data: dict[str, Any],
    actor: int | None = None,
    key: int | None = None,
    resource_type: str = "",
    resource_id: str = "",
    lease_id: uuid.UUID | None = None,
    previous_lease_id: uuid.UUID | None = None,
    fencing_token: int | None = None,
    principal: int | None = None,
    holder: str = "",
    addressee: int | None = None,
) -> Event:
    """An event to record. Members of ``data`` that are None are left out."""
    return Event(
        event_id=uuid.uuid4(),
        organization_id=organization,
        type=type,
        at=at,
        actor_id=actor,
        key_id=key,
        resource_type=resource_type,
        resource_id=resource_id,
        lease_id=lease_id,
        previous_lease_id=previous_lease_id,
        fencing_token=fencing_token,
        principal_id=principal,
        holder=holder,
        addressee_id=addressee,
        data={name: value for name, value in data.items() if value is not None},
    )


def record_all(events: list[Event]) -> None:
    """Their rows, in one statement and in the order given.

    The caller holds the locks of the rows that changed, which is what orders the feed.
    """
    _insert(events)


def _insert(events: list[Event]) -> None:
    if len(events) == 1:
        insert(events[0])
    else:
        Event.objects.bulk_create(events)


def _recorded(make: Callable[Members, Event]) -> Callable[Members, None]:
    def record(*args: Members.args, **members: Members.kwargs) -> None:
        record_all([make(*args, **members)])

    return record


#: Makes an event and records it.
record = _recorded(event)
