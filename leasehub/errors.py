"""The errors that a caller can be told: a closed list. Imports nothing."""

from collections.abc import Mapping

Field = str | int | bool | None | list[str] | Mapping[str, object]


class DomainError(Exception):
    """Something the caller can be told.

    The docstring of each subclass is its default message. ``fields`` are the members beside ``code`` and
    ``message`` in the answer; ``retry_after_ms`` also becomes the Retry-After header.
    """

    code = "INTERNAL"
    status = 500
    #: The names that ``fields`` may have: docs/errors.md lists them.
    members: tuple[str, ...] = ()

    def __init__(self, message: str = "", /, **fields: Field) -> None:
        self.message = message or self.default_message()
        self.fields = fields
        super().__init__(self.message)

    @classmethod
    def default_message(cls) -> str:
        return " ".join((cls.__doc__ or "").split("\n\n")[0].split())


class ValidationError(DomainError):
    """The request is malformed: see fields."""

    code = "VALIDATION_ERROR"
    status = 400
    members = ("fields",)

    def __init__(self, message: str = "", /, **wrong: str) -> None:
        super().__init__(message, fields=wrong)


class Unauthenticated(DomainError):
    """A valid API key is required."""

    code = "UNAUTHENTICATED"
    status = 401


class Forbidden(DomainError):
    """This key may not do that."""

    code = "FORBIDDEN"
    status = 403


class NotFound(DomainError):
    """There is nothing here by that name."""

    code = "NOT_FOUND"
    status = 404


class MethodNotAllowed(DomainError):
    """This address does not take that method."""

    code = "METHOD_NOT_ALLOWED"
    status = 405
    members = ("allow",)


class InProgress(DomainError):
    """The same request is being carried out at this moment: repeat it to get its answer."""

    code = "IN_PROGRESS"
    status = 409
    members = ("retry_after_ms",)


class PayloadTooLarge(DomainError):
    """The request is larger than this server takes."""

    code = "PAYLOAD_TOO_LARGE"
    status = 413


class UnsupportedMediaType(DomainError):
    """Send JSON, as application/json."""

    code = "UNSUPPORTED_MEDIA_TYPE"
    status = 415


class IdempotencyMismatch(DomainError):
    """This Idempotency-Key was used for another request."""

    code = "IDEMPOTENCY_MISMATCH"
    status = 422


class QuotaExceeded(DomainError):
    """There are too many of these already."""

    code = "QUOTA_EXCEEDED"
    status = 429


class Unavailable(DomainError):
    """The server cannot answer just now: try again soon."""

    code = "UNAVAILABLE"
    status = 503
    members = ("retry_after_ms",)

    def __init__(self, message: str = "", /, *, retry_after_ms: int = 1000) -> None:
        super().__init__(message, retry_after_ms=retry_after_ms)
