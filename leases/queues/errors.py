from leasehub.errors import DomainError


class TaskIsNotDead(DomainError):
    """Only a dead task can be retried."""

    code = "CONFLICT"
    status = 409
