"""Writing events: in the transition's transaction, by the function that makes it."""

import uuid
from datetime import datetime
from typing import Any

from leasehub.events.models import Event


def record(
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
) -> None:
    """One event row. The caller holds the lock of the row that changed, which is what orders the feed.

    Members of ``data`` that are None are left out.
    """
    Event.objects.bulk_create(
        [
            Event(
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
                data={name: value for name, value in data.items() if value is not None},
            )
        ]
    )
