"""A grant as the command line shows it: as a record, and as lines for a shell."""

from leasehub.client.slots import grant_record, id_text
from leasehub.client.wire import Members


def record(view: Members) -> dict[str, object]:
    """Of one slot its grant; of several, asked for at once, all of them."""
    found = [grant_record(grant) for grant in view["grants"]]
    if view["count"] == 1 and found:
        return found[0]
    return {"ok": True, "state": "ready", "request_id": view["request_id"], "mode": view["mode"], "grants": found}


def shell(granted: Members, prefix: str) -> bytes:
    """The slot's environment, and under the pool's prefix what its other verbs ask for."""
    variables = {
        **granted["env"],
        f"{prefix}_SLOT": id_text(granted["slot_id"]),
        f"{prefix}_TOKEN": str(granted["token"]),
        f"{prefix}_OWNER": str(granted["owner"]),
    }
    lines = "".join(f"export {name}={_quoted(value)}\n" for name, value in variables.items())
    return lines.encode("utf-8", "surrogateescape")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
