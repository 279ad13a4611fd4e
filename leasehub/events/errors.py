from leasehub.errors import DomainError


class CursorAhead(DomainError):
    """The feed has not come that far: this cursor is of another server, or of a state before a backup was restored."""

    code = "CONFLICT"
    status = 409
    members = ("tail",)

    def __init__(self, tail: int) -> None:
        super().__init__(f"The feed ends at position {tail}: this cursor is not one of it.", tail=tail)


class CursorExpired(DomainError):
    """Events after this cursor have been moved out: look at the state itself, then go on from the oldest."""

    code = "CURSOR_EXPIRED"
    status = 410
    members = ("oldest", "tail")

    def __init__(self, oldest: int, tail: int) -> None:
        super().__init__(
            f"Events after this cursor have been moved out. The oldest on file is at {oldest}: go on with"
            f" after={oldest - 1}, or with after=tail.",
            oldest=oldest,
            tail=tail,
        )
