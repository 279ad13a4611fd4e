"""What a slot of a pool is called where its id stands in a text: a pool file may write one number in several ways."""


def id_text(slot_id: object) -> str:
    """The id as the server writes it: 1.0 and 1 are one slot, "01" is another."""
    if isinstance(slot_id, float):
        return str(int(slot_id)) if slot_id.is_integer() and abs(slot_id) < 1e21 else repr(slot_id)
    return str(slot_id)


def resource_id(pool: str, slot_id: object) -> str:
    """What a lease on the slot is on."""
    return f"{pool}/{id_text(slot_id)}"
