"""A command under a lease: beaten from the background, stopped when the lease is lost, watched to its end."""

import os
import signal
import time

from leasehub.cli.guardian import Guardian
from leasehub.cli.output import say
from leasehub.cli.signals import Signals
from leasehub.cli.timestamps import iso
from leasehub.client import acquiring, credentials
from leasehub.client.clock import boot_clock
from leasehub.client.failures import Failure, Refused, Unreachable
from leasehub.client.heartbeat import LONGEST_WAIT_SECONDS, Deadline, Heartbeats, Kept, usual_interval
from leasehub.client.wire import Connection, Members

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasehub.cli.streams import Stream

# How long the command may take to end: after a signal to leasehub itself, and after the lease was lost, when
# another may hold the resource already.
SIGNALLED_SECONDS = 10.0
LOST_SECONDS = 2.0
# Between the attempts to give the lease back: a server that is started again is mostly back within them.
RELEASE_PAUSES = (1.0, 2.0)


class Hold:
    """The lease that the command runs under. Its time counts from when it was first asked for."""

    def __init__(self, answer: Members, *, sent_at: float, ttl_seconds: float, name: str | None = None) -> None:
        self.lease_id = str(answer["lease_id"])
        #: What people know it by; its release is announced then.
        self.name = name or f"lease {self.lease_id}"
        self.is_announced = name is not None
        self.beat_seconds = usual_interval(ttl_seconds)
        self.fencing_token = int(answer["fencing_token"])
        self.expires_at = str(answer["expires_at"])
        self.ttl_seconds = ttl_seconds
        seconds = min(ttl_seconds, answer["expires_in_ms"] / 1000)
        self.deadline = Deadline(sent_at=sent_at, seconds=seconds)


def release(held: Hold, known: credentials.Credentials, *, pauses: "Sequence[float]" = RELEASE_PAUSES) -> None:
    """Gives the lease back, or says when it will have run out."""
    attempts = len(pauses) + 1

    def failed(attempt: int, lost: Unreachable) -> None:
        say(f"could not release {held.name} (attempt {attempt} of {attempts}): {lost}")

    connection = Connection(known.url, known.token, timeout=3.0)
    released = "is released"
    try:
        acquiring.release(connection, held.lease_id, held.fencing_token, pauses=pauses, failed=failed)
    except Refused:
        # Ended already is as good as released.
        released = "is gone already"
    except Unreachable:
        say(f"warning: nothing confirms that {held.name} was released; {_runs_out(held.deadline)}")
        return
    finally:
        connection.close()
    if held.is_announced:
        say(f"{held.name} {released}")


def _runs_out(deadline: Deadline) -> str:
    seconds = deadline.ends_at - boot_clock()
    if seconds <= 0:
        return "its time is over by now"
    at = iso(int((time.time() + seconds) * 1000))
    return f"it runs out by itself at about {at}, in {seconds:.0f} s"


class Supervision:
    """From the start of the command until nothing of it is left."""

    def __init__(
        self,
        held: Hold,
        known: credentials.Credentials,
        guardian: Guardian,
        signals: Signals,
        streams: "Sequence[Stream]" = (),
    ) -> None:
        self.held = held
        self.guardian = guardian
        self.signals = signals
        self.streams = {stream.descriptor: stream for stream in streams}
        self.forwarded = 0
        self.lost: str | None = None
        self.failed: int | None = None
        self.status: int | None = None
        self.survivors = 0
        self.heartbeats = Heartbeats(Connection(known.url, known.token))
        self.kept = Kept(
            lease_id=held.lease_id,
            fencing_token=held.fencing_token,
            ttl_seconds=held.ttl_seconds,
            beat_seconds=held.beat_seconds,
            deadline=held.deadline,
            on_renewed=self._on_renewed,
            on_lost=self._on_lost,
        )

    def supervise(self) -> None:
        self.heartbeats.keep(self.kept)
        while self.status is None and self.failed is None:
            ready = self.signals.wait(LONGEST_WAIT_SECONDS, self.guardian.channel, *self.streams)
            for descriptor in self.streams.keys() & ready:
                if not self.streams[descriptor].read():
                    del self.streams[descriptor]
            if self.guardian.channel in ready:
                heard = self.guardian.heard()
                if heard is None:
                    self._bury_guardian()
                    return
                for words in heard:
                    self._note(*words)
            self._forward_signals()

    def stop_beating(self) -> None:
        self.heartbeats.drop(self.kept)

    def _on_renewed(self, deadline: Deadline) -> None:
        """Called in the heartbeat's thread."""
        self.held.deadline = deadline
        self.guardian.renew(deadline)

    def _on_lost(self, refused: Refused | None) -> None:
        """Called in the heartbeat's thread."""
        if refused is None:
            # The watcher looks at the same deadline by itself.
            self._note_deadline()
        else:
            ended_by = refused.fields.get("ended_by")
            self.lost = self.lost or f"{refused}" + (f" (ended by: {ended_by})" if ended_by else "")
            self.guardian.stop(signal.SIGTERM, seconds=LOST_SECONDS)
        say(f"{'confirmed ' if refused else ''}{self.held.name} lost, the command is stopped: {self.lost}")

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

    def warn_of_survivors(self) -> None:
        if self.survivors:
            say(f"warning: {self.survivors} processes could not be killed, so the lease is left to run out")
