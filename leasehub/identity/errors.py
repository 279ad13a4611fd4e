from leasehub.errors import DomainError, Forbidden
from leasehub.identity.rings import NAMES


class MissingRing(Forbidden):
    """This key lacks the ring."""

    members = ("missing_ring",)

    def __init__(self, ring: int) -> None:
        super().__init__(f"This key lacks {NAMES[ring]}.", missing_ring=ring)


class OutsideFence(Forbidden):
    """The holder is outside this key's fence."""

    members = ("holder", "holder_pattern")

    def __init__(self, holder: str, pattern: str) -> None:
        super().__init__(f"The holder is outside this key's fence, {pattern}.", holder=holder, holder_pattern=pattern)


class HandleTaken(DomainError):
    """A principal of that handle exists already."""

    code = "CONFLICT"
    status = 409


class NameTaken(DomainError):
    """An organization of that name exists already."""

    code = "CONFLICT"
    status = 409
