"""Why a command ends without having done what was asked, and with which exit status."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class Failure(Exception):
    """Ends the command: ``code`` and the message go to stdout as JSON, the message to stderr as text."""

    code = "internal"
    exit_status = 3

    def __init__(self, message: str, fields: "Mapping[str, object] | None" = None) -> None:
        super().__init__(message)
        #: What the server said besides.
        self.fields = fields or {}


class Usage(Failure):
    """The command line, the environment or a value is wrong."""

    code = "usage"
    exit_status = 2


class Unreachable(Failure):
    """No answer of a LeaseHub server could be had.

    ``sent`` says whether the request may have reached the server: if so, its effect is unknown.
    """

    code = "unreachable"

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class Internal(Failure):
    """Something that should not happen, here or on the server."""


class Refused(Failure):
    """The server understood and said no: ``reason`` is its code, such as CONFLICT."""

    exit_status = 1

    def __init__(self, reason: str, message: str, fields: dict[str, object]) -> None:
        super().__init__(message, fields)
        self.reason = reason
        self.code = reason.lower()
