"""An event as everybody outside is shown it: the feed, webhooks."""

from typing import Any

from leasehub.db import clock
from leasehub.events.models import Event


def event_view(event: Event) -> dict[str, Any]:
    return {
        "event_id": f"evt_{event.event_id.hex}",
        "position": event.position,
        "type": event.type,
        "at": clock.iso(event.at),
        "actor": None
        if event.actor is None
        else {"principal": event.actor.handle, "key_id": None if event.key is None else event.key.key_id},
        "resource_type": event.resource_type or None,
        "resource_id": event.resource_id or None,
        "lease_id": None if event.lease_id is None else f"lease_{event.lease_id.hex}",
        "fencing_token": event.fencing_token,
        "principal": None if event.principal is None else event.principal.handle,
        "holder": event.holder or None,
        "addressee": None if event.addressee is None else event.addressee.handle,
        "data": event.data,
    }
