from dataclasses import dataclass

from leasehub.errors import DomainError


@dataclass(frozen=True, slots=True)
class Extent:
    """From where to where the feed of an organization goes."""

    #: The highest position that was moved out: the lowest cursor that loses nothing.
    start: int
    #: The highest position.
    tail: int

    @property
    def oldest(self) -> int:
        """The position of the oldest event on file, or of the next one when there is none."""
        return self.start + 1


class CursorAhead(DomainError):
    """The feed has not come that far: this cursor is of another server, or of a state before a backup was restored."""

    code = "CONFLICT"
    status = 409
    members = ("tail",)

    def __init__(self, known: Extent) -> None:
        super().__init__(f"The feed ends at position {known.tail}: this cursor is not one of it.", tail=known.tail)


class CursorExpired(DomainError):
    """Events after this cursor have been moved out: look at the state itself, then go on from the oldest."""

    code = "CURSOR_EXPIRED"
    status = 410
    members = ("oldest", "tail")

    def __init__(self, known: Extent) -> None:
        super().__init__(
            f"Events after this cursor have been moved out. The oldest on file is at {known.oldest}: go on with"
            f" after={known.start}, or with after=tail.",
            oldest=known.oldest,
            tail=known.tail,
        )
        self.known = known
