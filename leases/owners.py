"""Leases on what another app owns (a slot of a pool): that app registers what is to happen with them.

``leases`` knows no other app. A lease of a registered type is granted by its owner alone (``services.grant``);
when it ends or moves, whichever way, its owner is told in the same transaction, with its own rows locked before
the resource's row (the order of leasehub.db.locks).
"""

from collections.abc import Iterable
from typing import Any, Protocol

from leases.models import Resource


class Owner(Protocol):
    def lock(self, rows: list[Resource]) -> None:
        """Lock what owns these resources, in the global order, before the resource rows are locked."""

    def event_of(self, event: str) -> str:
        """The type of the one event of an ending, for example pool.released instead of lease.released."""

    def ended(self, row: Resource, event: str, data: dict[str, Any]) -> None:
        """A lease ended. ``row`` is as it was before; it is free now, and everything is locked."""

    def moved(self, before: Resource, after: Resource) -> None:
        """A lease went to another holder: a new acquisition, everything is locked."""


_owners: dict[str, Owner] = {}


def register(resource_type: str, owner: Owner) -> None:
    """Called once, when the owner's app is ready."""
    _owners[resource_type] = owner


def types() -> list[str]:
    return list(_owners)


def of(row: Resource) -> Owner | None:
    return _owners.get(row.resource_type)


def lock(rows: Iterable[Resource]) -> None:
    """Locks the owners of the resources that have one, type by type."""
    by_type: dict[str, list[Resource]] = {}
    for row in rows:
        if row.resource_type in _owners:
            by_type.setdefault(row.resource_type, []).append(row)
    for resource_type in sorted(by_type):
        _owners[resource_type].lock(by_type[resource_type])
