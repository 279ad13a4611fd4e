"""leasehub run --pool: a command that runs while a slot of a pool is held."""

import os

from leasehub.cli import flags
from leasehub.cli.lease import COMMON, outside_fence, owner_of, owner_pattern
from leasehub.cli.output import emit, say
from leasehub.cli.pool import asked_of
from leasehub.cli.run import checked, run_holding
from leasehub.cli.signals import Signals, interrupted
from leasehub.cli.slots import pool_of
from leasehub.cli.supervision import Hold
from leasehub.cli.ticket import Ended, Interrupted, Ticket, eta, patience_of, saturated
from leasehub.client import credentials
from leasehub.client.failures import Refused, Usage
from leasehub.client.holder import own_holder
from leasehub.client.slots import id_text, resource_id
from leasehub.client.wire import Connection, Members

VALUES = ("pool", "owner", "session", "ttl", "heartbeat-secs", "wait-ms", "poll-ms", "selector", *COMMON)
# However seldom a beat is wanted, the lease must live.
SLOWEST_BEATS_PER_TTL = 3
OF_A_SLOT = ("POOL_SLOT_", "POOL_RUN_")


def run_pool(own: list[str], command: list[str]) -> int:
    given = flags.read("run", own, values=VALUES, switches=("no-wait",))
    checked(command)
    pool, patience, pattern = pool_of(given), patience_of(given), owner_pattern(given)
    body = {**asked_of(given), "mode": "blocking", "no_wait": "no-wait" in given}
    beat_seconds = flags.number("--heartbeat-secs", given["heartbeat-secs"]) if "heartbeat-secs" in given else None
    if beat_seconds is not None and not 0 < beat_seconds < float("inf"):
        raise Usage(f"--heartbeat-secs must be above 0, not {given['heartbeat-secs']!r}")
    known = credentials.find()
    connection = Connection(known.url, known.token)
    if not given.get("owner") and not os.environ.get("LEASE_OWNER"):
        given["owner"] = own_holder(known, connection)
    body["holder"] = owner_of(given, pattern, known, connection)
    signals = Signals()
    ticket = Ticket(connection, pool, body)
    try:
        view = ticket.granted(patience, signals)
    except Interrupted:
        return interrupted(signals, "before a slot was granted")
    except Ended as end:
        return _not_granted(pool, end.result)
    except Refused as refused:
        if refused.reason != "SATURATED":
            raise outside_fence(refused) from None
        return _not_granted(pool, saturated(refused))
    finally:
        connection.close()
    [grant] = view["grants"]
    held = _hold(grant, ticket.asked_at, beat_seconds)
    say(f"{held.name} of pool {pool} is granted")
    return run_holding(held, known, command, _environment(pool, grant, known), signals)


def _not_granted(pool: str, result: dict[str, object]) -> int:
    word = result.get("code") or result["state"]
    why = "no slot of it is free" if word == "saturated" else f"{result.get('error') or result.get('note') or word}"
    position, eta_ms = result.get("position"), result.get("etaMs")
    if isinstance(position, int) and isinstance(eta_ms, int | float):
        why += f": queue position {position}, eta {eta(eta_ms)}"
    say(f"pool {pool} granted nothing, the command is not run: {why}")
    return emit(result)


def _hold(grant: Members, sent_at: float, beat_seconds: float | None) -> Hold:
    ttl_seconds = grant["ttl_minutes"] * 60
    held = Hold(grant, sent_at=sent_at, ttl_seconds=ttl_seconds, name=f"slot {id_text(grant['slot_id'])}")
    if beat_seconds is not None:
        held.beat_seconds = min(beat_seconds, ttl_seconds / SLOWEST_BEATS_PER_TTL)
    return held


def _environment(pool: str, grant: Members, known: credentials.Credentials) -> dict[str, str]:
    """The grant's own variables, and none of a slot that this process itself may have been given."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(OF_A_SLOT)}
    return {
        **inherited,
        **grant["env"],
        "POOL_RUN_SLOT": id_text(grant["slot_id"]),
        "POOL_RUN_TOKEN": str(grant["fencing_token"]),
        "POOL_RUN_OWNER": str(grant["holder"]),
        "LEASEHUB_FENCING_TOKEN": str(grant["fencing_token"]),
        "LEASEHUB_LEASE_ID": str(grant["lease_id"]),
        "LEASEHUB_RESOURCE_TYPE": "slot",
        "LEASEHUB_RESOURCE_ID": resource_id(pool, grant["slot_id"]),
        "LEASEHUB_HOLDER": str(grant["holder"]),
        "LEASEHUB_EXPIRES_AT": str(grant["expires_at"]),
        "LEASEHUB_URL": known.url,
    }
