from leasehub.errors import DomainError


class Saturated(DomainError):
    """No slot is free."""

    code = "SATURATED"
    status = 409
    members = ("position", "eta_ms", "eta_better_ms", "moving_avg_ms", "retry_after_ms")

    def __init__(self, *, position: int, eta_ms: int, eta_better_ms: int, moving_avg_ms: int) -> None:
        super().__init__(
            position=position,
            eta_ms=eta_ms,
            eta_better_ms=eta_better_ms,
            moving_avg_ms=moving_avg_ms,
            # The Retry-After header too; never so soon that asking again is all that a client does.
            retry_after_ms=max(1000, eta_better_ms),
        )


class Unsatisfiable(DomainError):
    """This pool has never as many such slots."""

    code = "UNSATISFIABLE"
    status = 422
    members = ("found", "count", "request_id", "state")


class Busy(DomainError):
    """The slot is in use, or a command runs on it."""

    code = "CONFLICT"
    status = 409
    members = ("expires_at", "retry_after_ms")
