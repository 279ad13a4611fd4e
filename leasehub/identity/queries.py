"""Reads of principals and keys, through the caller's eyes."""

import uuid

from django.db.models import QuerySet

from leasehub.errors import NotFound
from leasehub.identity.models import ApiKey, Principal


def principals(*, organization: int) -> QuerySet[Principal]:
    return Principal.objects.filter(organization_id=organization)


def keys(*, organization: int) -> QuerySet[ApiKey]:
    return ApiKey.objects.filter(principal__organization_id=organization).select_related("principal")


def key(*, organization: int, key_id: str) -> ApiKey:
    """Raises NotFound, the same for a key of another organization and for none."""
    found = keys(organization=organization).filter(public_id=public_id(key_id)).first()
    if found is None:
        raise NotFound
    return found


def public_id(key_id: str) -> uuid.UUID:
    prefix, _, digits = key_id.partition("_")
    if prefix != "key" or len(digits) != 32:
        raise NotFound
    try:
        return uuid.UUID(hex=digits)
    except ValueError:
        raise NotFound from None
