"""Why something was not done; the exit status is that of a command which ends by it."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class Failure(Exception):
    """All of them. ``code`` is for programs, the message for people."""

    code = "internal"
    exit_status = 3

    def __init__(self, message: str, fields: "Mapping[str, object] | None" = None) -> None:
        super().__init__(message)
        #: What the server said besides.
        self.fields = fields or {}


class Usage(Failure):
    """What was asked for, or the environment, is wrong: asking again is of no use."""

    code = "usage"
    exit_status = 2


class Unreachable(Failure):
    """No answer of a LeaseHub server could be had.

    ``sent`` says whether the request may have reached the server: if so, its effect is unknown. ``passes`` says
    whether it may be otherwise in a moment.
    """

    code = "unreachable"

    def __init__(self, message: str, *, sent: bool = True, passes: bool = True) -> None:
        super().__init__(message)
        self.sent = sent
        self.passes = passes


class Internal(Failure):
    """Something that should not happen, here or on the server."""


class Refused(Failure):
    """The server understood and said no: ``reason`` is its code, such as CONFLICT."""

    exit_status = 1

    def __init__(self, reason: str, message: str, fields: dict[str, object]) -> None:
        super().__init__(message, fields)
        self.reason = reason
        self.code = reason.lower()

    @property
    def retry_after_ms(self) -> int | None:
        """When it may be worth asking again, where the server said so."""
        value = self.fields.get("retry_after_ms")
        return value if isinstance(value, int) else None


class Unauthenticated(Refused):
    """The key is not known, or not any more."""


class Forbidden(Refused):
    """The key lacks a ring, or the holder is outside its fence."""


class NotFound(Refused):
    """There is none, or none that this key may know of."""


class Conflict(Refused):
    """It is held: ``expires_at``, ``retry_after_ms``."""

    @property
    def expires_at(self) -> str | None:
        value = self.fields.get("expires_at")
        return value if isinstance(value, str) else None

    @property
    def held_by_self(self) -> bool:
        """It is held by this very holder: by another thread, say."""
        return bool(self.fields.get("held_by_self"))


class StaleToken(Refused):
    """A newer fencing token has been given out: stop writing."""


class Saturated(Refused):
    """No slot is free: ``position`` and ``eta_ms`` in the queue."""

    @property
    def position(self) -> int | None:
        value = self.fields.get("position")
        return value if isinstance(value, int) else None

    @property
    def eta_ms(self) -> int | None:
        value = self.fields.get("eta_ms")
        return value if isinstance(value, int) else None


class VersionConflict(Refused):
    """Another version is there than the one expected."""


class InProgress(Refused):
    """The same request is being carried out just now."""


class LeaseLost(Refused):
    """The lease has ended, or may have by now: stop working on what it was for."""

    @property
    def ended_by(self) -> str | None:
        """How, where the server said so; None when no heartbeat got through until the lease's own deadline."""
        value = self.fields.get("ended_by")
        return value if isinstance(value, str) else None


class CursorExpired(Refused):
    """The events from there on are not kept any more."""


class IdempotencyMismatch(Refused):
    """The key was used for another request before."""


class QuotaExceeded(Refused):
    """Too many, or too much, for now."""


class Empty(Failure):
    """Nothing to claim came within the wait."""

    code = "empty"
    exit_status = 1


class GrantFailed(Failure):
    """The request for a slot came to another end than a grant: its state, slot and error are in ``fields``."""

    code = "grant_failed"
    exit_status = 1


CATALOGUE: "dict[str, type[Refused]]" = {
    "UNAUTHENTICATED": Unauthenticated,
    "FORBIDDEN": Forbidden,
    "NOT_FOUND": NotFound,
    "CONFLICT": Conflict,
    "STALE_TOKEN": StaleToken,
    "SATURATED": Saturated,
    "VERSION_CONFLICT": VersionConflict,
    "IN_PROGRESS": InProgress,
    "LEASE_LOST": LeaseLost,
    "CURSOR_EXPIRED": CursorExpired,
    "IDEMPOTENCY_MISMATCH": IdempotencyMismatch,
    "QUOTA_EXCEEDED": QuotaExceeded,
}


def refusal(error: "Mapping[str, object]") -> Refused:
    """What the server's error stands for."""
    reason, message = str(error["code"]), str(error.get("message", ""))
    fields = {name: value for name, value in error.items() if name not in ("code", "message")}
    return CATALOGUE.get(reason, Refused)(reason, message, fields)
