from leasehub.errors import DomainError


class Saturated(DomainError):
    """No slot is free."""

    code = "SATURATED"
    status = 409


class Unsatisfiable(DomainError):
    """This pool has never as many such slots."""

    code = "UNSATISFIABLE"
    status = 422


class Busy(DomainError):
    """The slot is in use, or a command runs on it."""

    code = "CONFLICT"
    status = 409
