from leasehub.errors import DomainError, NotFound, ValidationError


class UnknownAddressee(NotFound):
    """Nobody of that handle can be handed work."""

    members = ("did_you_mean",)

    def __init__(self, did_you_mean: list[str]) -> None:
        super().__init__(did_you_mean=did_you_mean)


class NotTheAddressee(ValidationError):
    """Only its addressee can do that with a handoff."""

    def __init__(self) -> None:
        super().__init__(handoff_id="is not addressed to you")


class NotTheGiver(ValidationError):
    """Only its giver can do that with a handoff."""

    def __init__(self) -> None:
        super().__init__(handoff_id="was not given by you")


class VersionConflict(DomainError):
    """The checkpoint has another version: read it, and save again with its version."""

    code = "VERSION_CONFLICT"
    status = 409
    members = ("current_version",)

    def __init__(self, current_version: int) -> None:
        super().__init__(current_version=current_version)
