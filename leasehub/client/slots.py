"""What a slot of a pool is called where its id stands in a text: a pool file may write one number in several ways."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def id_text(slot_id: object) -> str:
    """The id as the server writes it: 1.0 and 1 are one slot, "01" is another."""
    if isinstance(slot_id, float):
        return str(int(slot_id)) if slot_id.is_integer() and abs(slot_id) < 1e21 else repr(slot_id)
    return str(slot_id)


def resource_id(pool: str, slot_id: object) -> str:
    """What a lease on the slot is on."""
    return f"{pool}/{id_text(slot_id)}"


def grant_record(grant: "dict[str, Any]") -> dict[str, object]:
    """A grant as the command line prints it and a nudge carries it, in that order."""
    return {
        "ok": True,
        "state": "ready",
        "request_id": grant["request_id"],
        "mode": grant["mode"],
        "slot_id": grant["slot_id"],
        "kind": grant["kind"],
        "owner": grant["holder"],
        "token": grant["fencing_token"],
        "ttlMinutes": grant["ttl_minutes"],
        "attrs": grant["attrs"],
        **grant["grant_fields"],
        "env": grant["env"],
        "grantedAt": grant["granted_at"],
    }
