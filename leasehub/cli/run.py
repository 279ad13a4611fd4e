"""leasehub run: a command that runs while a lease is held, and not a moment longer."""

import os

from leasehub.cli import flags
from leasehub.cli.guardian import Guardian
from leasehub.cli.lease import Place, look_at, outside_fence
from leasehub.cli.output import emit, say
from leasehub.cli.signals import Signals, Watchful, interrupted
from leasehub.cli.supervision import RELEASE_PAUSES, Hold, Supervision, release
from leasehub.client import credentials
from leasehub.client.acquiring import Once, acquire
from leasehub.client.failures import Conflict, Refused, Unreachable, Usage
from leasehub.client.holder import own_holder
from leasehub.client.wire import Connection, Members

LEASE_LOST_STATUS = 75
DEFAULT_TTL_SECONDS = 120


def run(arguments: list[str]) -> int:
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    command = arguments[len(own) + 1 :]
    if any(argument.partition("=")[0] == "--pool" for argument in own):
        from leasehub.cli.poolrun import run_pool

        return run_pool(own, command)
    given = flags.read("run", own, values=("resource", "ttl-seconds", "holder", "purpose", "wait-seconds"))
    if not given.get("resource"):
        raise Usage("run needs --resource or --pool")
    checked(command)
    resource_type, _, resource_id = given["resource"].partition("/")
    if not resource_type or not resource_id:
        raise Usage(f"--resource must look like TYPE/ID, not {given['resource']!r}")
    ttl_seconds = flags.whole("ttl-seconds", given.get("ttl-seconds", str(DEFAULT_TTL_SECONDS)), least=1)
    wait_seconds = flags.number("--wait-seconds", given.get("wait-seconds", "0"))
    if not 0 <= wait_seconds < float("inf"):
        raise Usage(f"--wait-seconds must be 0 or more, not {given['wait-seconds']!r}")
    known = credentials.find()
    connection = Connection(known.url, known.token)
    body: dict[str, object] = {
        "resource_type": resource_type,
        "resource_id": resource_id,
        "ttl_seconds": ttl_seconds,
        "holder": given.get("holder") or own_holder(known, connection),
        "reacquire": False,
    }
    if "purpose" in given:
        body["purpose"] = given["purpose"]
    signals = Signals()
    try:
        held = _acquire(connection, body, ttl_seconds, wait_seconds, signals)
    except Refused as refused:
        if refused.reason != "CONFLICT":
            raise outside_fence(refused) from None
        refusal = _refusal(given["resource"], refused, wait_seconds)
        return emit({**refusal, "holder": _holder_of(connection, given["resource"])})
    finally:
        connection.close()
    if held is None:
        return interrupted(signals, "before the command was started")
    return run_holding(held, known, command, _environment(held, known, body), signals)


def checked(command: list[str]) -> None:
    if not command or not command[0]:
        raise Usage("run needs a command, after --")


def _acquire(
    connection: Connection,
    body: dict[str, object],
    ttl_seconds: int,
    wait_seconds: float,
    signals: Signals,
) -> Hold | None:
    """None when a signal came first. A refusal or an unreachable server is raised once the wait is over."""
    once = Once(connection, "/v1/leases")
    try:
        answer = acquire(once, body, Watchful(wait_seconds, signals))
    except (Conflict, Unreachable):
        if signals.received:
            return None
        raise
    if answer.get("took_over_expired"):
        _say_taken_over(body, answer["previous"])
    return Hold(answer, sent_at=once.since, ttl_seconds=ttl_seconds)


def _say_taken_over(body: dict[str, object], previous: Members) -> None:
    # Loud: half the work may have been done by one who died.
    say(
        f"took {body['resource_type']}/{body['resource_id']} over: the lease of {previous['holder']}"
        f" ran out at {previous['expires_at']} and was never given back"
    )


def _holder_of(connection: Connection, resource: str) -> object:
    """Who holds it, as far as this key may see."""
    resource_type, _, resource_id = resource.partition("/")
    try:
        view = look_at(connection, Place(resource, resource_type=resource_type, resource_id=resource_id))
    except (Refused, Unreachable):
        return None
    return view["holder"] if view["state"] == "held" else None


def _refusal(resource: str, refused: Refused, wait_seconds: float) -> dict[str, object]:
    result: dict[str, object] = {
        "ok": False,
        "code": "timeout" if wait_seconds else "held",
        "resource": resource,
        "heldBySelf": bool(refused.fields.get("held_by_self")),
        "expiresAt": refused.fields.get("expires_at"),
        "expiresInMs": refused.fields.get("retry_after_ms"),
    }
    if wait_seconds:
        result["waitedMs"] = round(wait_seconds * 1000)
    say(f"{resource} is held until {result['expiresAt']}")
    return result


def run_holding(
    held: Hold,
    known: credentials.Credentials,
    command: list[str],
    environment: dict[str, str],
    signals: Signals,
) -> int:
    """Runs the command, gives the lease back; the exit status of the whole."""
    if signals.received:
        release(held, known)
        return interrupted(signals, "before the command was started")
    try:
        guardian = Guardian(command, environment, held.deadline)
    except BaseException:
        release(held, known)
        raise
    supervision = Supervision(held, known, guardian, signals)
    try:
        supervision.supervise()
    finally:
        guardian.take_terminal()
        supervision.stop_beating()
        # Whatever went wrong here: nothing of the command may be left when the lease is given back.
        guardian.dismiss()
        if not supervision.survivors:
            # A lost lease is ended already, or its server has been away for all of its time.
            release(held, known, pauses=RELEASE_PAUSES if supervision.lost is None else ())
    return _outcome(supervision, command)


def _environment(held: Hold, known: credentials.Credentials, body: dict[str, object]) -> dict[str, str]:
    return {
        **os.environ,
        "LEASEHUB_FENCING_TOKEN": str(held.fencing_token),
        "LEASEHUB_LEASE_ID": held.lease_id,
        "LEASEHUB_RESOURCE_TYPE": str(body["resource_type"]),
        "LEASEHUB_RESOURCE_ID": str(body["resource_id"]),
        "LEASEHUB_HOLDER": str(body["holder"]),
        "LEASEHUB_EXPIRES_AT": held.expires_at,
        "LEASEHUB_URL": known.url,
    }


def _outcome(supervision: Supervision, command: list[str]) -> int:
    supervision.warn_of_survivors()
    if supervision.lost is not None:
        emit({"ok": False, "code": "lease_lost", "message": supervision.lost})
        return LEASE_LOST_STATUS
    if supervision.failed is not None:
        message = f"{command[0]}: {os.strerror(supervision.failed)}"
        say(message)
        emit({"ok": False, "code": "usage", "message": message})
        return 127 if supervision.failed in (2, 20) else 126
    if supervision.signals.received:
        return 128 + supervision.signals.received[0]
    status = os.waitstatus_to_exitcode(supervision.status or 0)
    return status if status >= 0 else 128 - status
