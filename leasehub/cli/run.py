"""leasehub run: a command that runs while a lease is held, and not a moment longer."""

import contextlib
import os
import signal
import time

from leasehub.cli import credentials, flags
from leasehub.cli.failures import Failure, Refused, Unreachable, Usage
from leasehub.cli.guardian import Guardian
from leasehub.cli.heartbeat import LONGEST_WAIT_SECONDS, Deadline, Heartbeat, boot_clock
from leasehub.cli.lease import outside_fence
from leasehub.cli.output import emit, say
from leasehub.cli.signals import Signals
from leasehub.cli.wire import Connection, Members, fresh_key

LEASE_LOST_STATUS = 75
DEFAULT_TTL_SECONDS = 120
MAX_HOLDER = 128
HOLDER_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:@-")
POLL_SECONDS = 0.5
RELEASE_ATTEMPTS = 3
# How long the command may take to end: after a signal to `leasehub run`, and after the lease was lost, when
# another may hold the resource already.
SIGNALLED_SECONDS = 10.0
LOST_SECONDS = 2.0


class Held:
    """The lease that the command runs under."""

    def __init__(self, answer: Members, body: dict[str, object], *, sent_at: float, ttl_seconds: int) -> None:
        self.lease_id = str(answer["lease_id"])
        self.fencing_token = int(answer["fencing_token"])
        self.expires_at = str(answer["expires_at"])
        self.body = body
        self.ttl_seconds = ttl_seconds
        seconds = min(ttl_seconds, answer["expires_in_ms"] / 1000)
        self.deadline = Deadline(sent_at=sent_at, seconds=seconds)

    def environment(self, known: credentials.Credentials) -> dict[str, str]:
        return {
            **os.environ,
            "LEASEHUB_FENCING_TOKEN": str(self.fencing_token),
            "LEASEHUB_LEASE_ID": self.lease_id,
            "LEASEHUB_RESOURCE_TYPE": str(self.body["resource_type"]),
            "LEASEHUB_RESOURCE_ID": str(self.body["resource_id"]),
            "LEASEHUB_HOLDER": str(self.body["holder"]),
            "LEASEHUB_EXPIRES_AT": self.expires_at,
            "LEASEHUB_URL": known.url,
        }


def run(arguments: list[str]) -> int:
    given, command = _read(arguments)
    resource_type, _, resource_id = given["resource"].partition("/")
    if not resource_type or not resource_id:
        raise Usage(f"--resource must look like TYPE/ID, not {given['resource']!r}")
    ttl_seconds = flags.whole("ttl-seconds", given.get("ttl-seconds", str(DEFAULT_TTL_SECONDS)), least=1)
    wait_seconds = flags.number("wait-seconds", given.get("wait-seconds", "0"))
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
        return emit(_refusal(given["resource"], refused, wait_seconds))
    finally:
        connection.close()
    if held is None:
        return _interrupted(signals)
    return _run_holding(held, known, command, signals)


def _read(arguments: list[str]) -> tuple[flags.Flags, list[str]]:
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    given = flags.read("run", own, values=("resource", "ttl-seconds", "holder", "purpose", "wait-seconds"))
    given.required("resource")
    command = arguments[len(own) + 1 :]
    if not command or not command[0]:
        raise Usage("run needs a command, after --")
    return given, command


def own_holder(known: credentials.Credentials, connection: Connection) -> str:
    """A holder of this process alone: two terminals on one key must not pass for each other."""
    handle = known.principal or str(connection.call("GET", "/v1/whoami")["principal"])
    host = "".join(c if c in HOLDER_CHARACTERS else "-" for c in os.uname().nodename)
    process = f":{os.getpid()}"
    return f"{handle}:{host}"[: MAX_HOLDER - len(process)] + process


def _acquire(
    connection: Connection,
    body: dict[str, object],
    ttl_seconds: int,
    wait_seconds: float,
    signals: Signals,
) -> Held | None:
    """None when a signal came first. A refusal or an unreachable server is raised once the wait is over."""
    give_up = boot_clock() + wait_seconds
    # One key for the whole wait: an acquisition whose answer was lost is found again, not refused by itself.
    key = fresh_key()
    lost_at: float | None = None
    while True:
        sent_at = boot_clock()
        try:
            answer = connection.call("POST", "/v1/leases", body, key=key)
            return Held(answer, body, sent_at=sent_at if lost_at is None else lost_at, ttl_seconds=ttl_seconds)
        except (Refused, Unreachable) as reason:
            if isinstance(reason, Refused) and reason.reason != "CONFLICT":
                raise
            if isinstance(reason, Unreachable) and reason.sent and lost_at is None:
                lost_at = sent_at
            left = give_up - boot_clock()
            if left <= 0:
                raise
        if not signals.received:
            signals.wait(min(POLL_SECONDS, max(0.05, left)))
        if signals.received:
            return None


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


def _interrupted(signals: Signals) -> int:
    number = signals.received[0]
    message = f"ended by {signal.Signals(number).name} before the command was started"
    emit({"ok": False, "code": "interrupted", "message": message})
    return 128 + number


def _run_holding(held: Held, known: credentials.Credentials, command: list[str], signals: Signals) -> int:
    if signals.received:
        _release(held, known)
        return _interrupted(signals)
    try:
        guardian = Guardian(command, held.environment(known), held.deadline)
    except BaseException:
        _release(held, known)
        raise
    supervision = _Supervision(held, known, guardian, signals)
    try:
        supervision.supervise()
    finally:
        guardian.take_terminal()
        supervision.heartbeat.stop()
        # Whatever went wrong here: nothing of the command may be left when the lease is given back.
        guardian.dismiss()
        if not supervision.survivors:
            # A lost lease is ended already, or its server has been away for all of its time.
            _release(held, known, attempts=RELEASE_ATTEMPTS if supervision.lost is None else 1)
    return supervision.outcome(command)


class _Supervision:
    """From the start of the command until nothing of it is left."""

    def __init__(self, held: Held, known: credentials.Credentials, guardian: Guardian, signals: Signals) -> None:
        self.held = held
        self.guardian = guardian
        self.signals = signals
        self.forwarded = 0
        self.lost: str | None = None
        self.failed: int | None = None
        self.status: int | None = None
        self.survivors = 0
        self.heartbeat = Heartbeat(
            connection=Connection(known.url, known.token),
            lease_id=held.lease_id,
            fencing_token=held.fencing_token,
            ttl_seconds=held.ttl_seconds,
            deadline=held.deadline,
            on_renewed=guardian.renew,
            on_lost=self._on_lost,
        )

    def supervise(self) -> None:
        self.heartbeat.start()
        while self.status is None and self.failed is None:
            if self.signals.wait(LONGEST_WAIT_SECONDS, self.guardian.channel):
                heard = self.guardian.heard()
                if heard is None:
                    self._bury_guardian()
                    return
                for words in heard:
                    self._note(*words)
            self._forward_signals()

    def _on_lost(self, refused: Refused | None) -> None:
        """Called in the heartbeat's thread."""
        if refused is None:
            # The watcher looks at the same deadline by itself.
            self._note_deadline()
        else:
            ended_by = refused.fields.get("ended_by")
            self.lost = self.lost or f"{refused}" + (f" (ended by: {ended_by})" if ended_by else "")
            self.guardian.stop(signal.SIGTERM, seconds=LOST_SECONDS)
        say(f"lease {self.held.lease_id} is lost, the command is stopped: {self.lost}")

    def _note_deadline(self) -> None:
        self.lost = self.lost or "no heartbeat got through until the lease's own deadline"

    def _note(self, word: str, *more: str) -> None:
        if word == "deadline":
            self._note_deadline()
        elif word == "failed":
            self.failed = int(more[0])
        elif word == "ended":
            self.status, self.survivors = int(more[0]), int(more[1])
        elif word == "stopped" and self.guardian.terminal:
            self._stop_too(int(more[0]))

    def _stop_too(self, group: int) -> None:
        """Ctrl-Z in the command: the shell that waits for `leasehub run` must see that it has stopped."""
        self.guardian.take_terminal()
        os.kill(os.getpid(), signal.SIGSTOP)
        self.guardian.go_on(group)

    def _forward_signals(self) -> None:
        while self.forwarded < len(self.signals.received):
            # A second one will not wait.
            seconds = 0.0 if self.forwarded else SIGNALLED_SECONDS
            self.guardian.stop(self.signals.received[self.forwarded], seconds=seconds)
            self.forwarded += 1

    def _bury_guardian(self) -> None:
        """The kernel has killed the command with it; what the command started is now ours to end."""
        from leasehub.cli import descendants

        self.survivors = len(descendants.kill_all(group=None))
        raise Failure("the process that watches the command was killed; the command was stopped")

    def outcome(self, command: list[str]) -> int:
        if self.survivors:
            say(f"warning: {self.survivors} processes could not be killed, so the lease is left to run out")
        if self.lost is not None:
            emit({"ok": False, "code": "lease_lost", "message": self.lost})
            return LEASE_LOST_STATUS
        if self.failed is not None:
            message = f"{command[0]}: {os.strerror(self.failed)}"
            say(message)
            emit({"ok": False, "code": "usage", "message": message})
            return 127 if self.failed in (2, 20) else 126
        if self.signals.received:
            return 128 + self.signals.received[0]
        status = os.waitstatus_to_exitcode(self.status or 0)
        return status if status >= 0 else 128 - status


def _release(held: Held, known: credentials.Credentials, *, attempts: int = RELEASE_ATTEMPTS) -> None:
    """Gives the lease back, or says that it is left to run out."""
    connection = Connection(known.url, known.token, timeout=3.0)
    path = f"/v1/leases/{held.lease_id}?fencing_token={held.fencing_token}"
    for attempt in range(1, attempts + 1):
        # Ended already is as good as released.
        with contextlib.suppress(Refused):
            try:
                connection.call("DELETE", path, attempts=1)
            except Unreachable as reason:
                say(f"could not release lease {held.lease_id} (attempt {attempt} of {attempts}): {reason}")
                time.sleep(0.3 * (attempts - attempt))
                continue
        break
    connection.close()
