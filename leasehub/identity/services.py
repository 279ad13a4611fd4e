"""Writes of organizations, principals and keys."""

import re
import secrets
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

import re2
from django.contrib.auth.models import User
from django.db import transaction

from leasehub.db import clock
from leasehub.db.constraints import translated
from leasehub.db.locks import lock_rows
from leasehub.errors import NotFound, ValidationError
from leasehub.identity import secret
from leasehub.identity.authentication import LINEAR, Caller
from leasehub.identity.errors import HandleTaken, MissingRing, NameTaken
from leasehub.identity.models import DEFAULT_HOLDER_PATTERN, ApiKey, Organization, Principal
from leasehub.identity.rings import ACT, OBSERVE, OPERATE

ROTATION_OVERLAP = timedelta(hours=24)
HANDLE = re.compile(DEFAULT_HOLDER_PATTERN, re.ASCII)


@transaction.atomic
def create_organization(*, name: str) -> Organization:
    """Raises NameTaken."""
    if not name.strip() or len(name) > 128 or not name.isprintable():
        raise ValidationError("The name is 1 to 128 printable characters.", name="1 to 128 printable characters")
    with translated(
        {"organization_name_is_unique": NameTaken()},
        columns={"identity_organization.name": "organization_name_is_unique"},
    ):
        return Organization.objects.create(name=name, created_at=clock.now())


@transaction.atomic
def create_principal(
    *, organization: int, handle: str, kind: str = "agent", display_name: str = "", user: User | None = None
) -> Principal:
    """Raises HandleTaken, ValidationError."""
    if not HANDLE.fullmatch(handle):
        raise ValidationError("The handle is not legal.", handle=f"must match {DEFAULT_HOLDER_PATTERN}")
    with translated(
        {"principal_handle_is_unique": HandleTaken()},
        columns={
            "identity_principal.organization_id, identity_principal.handle": "principal_handle_is_unique",
        },
    ):
        return Principal.objects.create(
            organization_id=organization,
            handle=handle,
            kind=kind,
            display_name=display_name,
            user=user,
            created_at=clock.now(),
        )


@transaction.atomic
def retire_principal(*, organization: int, handle: str) -> Principal:
    """From the next call on none of its keys works. Repeatable. Raises NotFound."""
    if not HANDLE.fullmatch(handle):
        raise NotFound
    principal = lock_rows(Principal.objects.filter(organization_id=organization, handle=handle)).first()
    if principal is None:
        raise NotFound
    if principal.retired_at is None:
        principal.retired_at = clock.now()
        principal.save(update_fields=["retired_at"])
    return principal


@transaction.atomic
def create_key(
    *,
    granted_by: Caller,
    handle: str,
    kind: str = "agent",
    label: str = "",
    rings: Sequence[int] = (OBSERVE, ACT),
    holder_pattern: str = DEFAULT_HOLDER_PATTERN,
    expires_at: datetime | None = None,
) -> tuple[ApiKey, str]:
    """A key for a principal, which is made when new; with its secret, which nothing keeps.

    Raises MissingRing when the caller would grant a ring that it lacks, ValidationError, NotFound when the
    principal is retired.
    """
    for ring in sorted(set(rings) - granted_by.rings):
        raise MissingRing(ring)
    principal = Principal.objects.filter(organization_id=granted_by.organization, handle=handle).first()
    if principal is None:
        principal = create_principal(organization=granted_by.organization, handle=handle, kind=kind)
    if principal.retired_at is not None:
        raise NotFound(f"The principal {handle} is retired.")
    return issue_key(
        principal=principal, label=label, rings=rings, holder_pattern=holder_pattern, expires_at=expires_at
    )


def issue_key(
    *,
    principal: Principal,
    label: str = "",
    rings: Sequence[int] = (OBSERVE, ACT),
    holder_pattern: str = DEFAULT_HOLDER_PATTERN,
    expires_at: datetime | None = None,
    rotated_from: ApiKey | None = None,
) -> tuple[ApiKey, str]:
    """A key and its secret. Who may grant what is the caller's business. Raises ValidationError."""
    check_pattern(holder_pattern)
    now = clock.now()
    if expires_at is not None and expires_at <= now:
        raise ValidationError("The key would be expired.", expires_at="must be in the future")
    plain = secret.make()
    key = ApiKey.objects.create(
        principal=principal,
        secret_sha256=secret.sha256(plain),
        prefix=plain[: secret.PREFIX_LENGTH],
        label=label,
        observes=OBSERVE in rings,
        acts=ACT in rings,
        operates=OPERATE in rings,
        holder_pattern=holder_pattern,
        expires_at=expires_at,
        rotated_from=rotated_from,
        created_at=now,
    )
    return key, plain


@transaction.atomic
def revoke_key(*, organization: int, key: ApiKey) -> ApiKey:
    """From the next call on the key is refused. Repeatable: the first time stays. Raises NotFound."""
    locked = lock_rows(ApiKey.objects.filter(pk=key.pk, principal__organization_id=organization)).first()
    if locked is None:
        raise NotFound
    if locked.revoked_at is None:
        locked.revoked_at = clock.now()
        locked.save(update_fields=["revoked_at"])
    return locked


@transaction.atomic
def rotate_key(
    *, organization: int, granting: Collection[int], key: ApiKey, overlap_seconds: int
) -> tuple[ApiKey, str]:
    """A new key with the same rights; the old one works for the overlap, at most 24 hours.

    Raises MissingRing for a ring that whoever rotates may not grant, NotFound when the key works no more.
    """
    overlap = min(timedelta(seconds=overlap_seconds), ROTATION_OVERLAP)
    old = (
        lock_rows(ApiKey.objects.filter(pk=key.pk, principal__organization_id=organization))
        .select_related("principal")
        .first()
    )
    now = clock.now()
    if old is None or old.revoked_at or old.principal.retired_at or (old.expires_at and old.expires_at <= now):
        raise NotFound
    for ring in sorted(set(old.rings) - set(granting)):
        raise MissingRing(ring)
    made = issue_key(
        principal=old.principal,
        label=old.label,
        rings=old.rings,
        holder_pattern=old.holder_pattern,
        expires_at=old.expires_at,
        rotated_from=old,
    )
    end = now + overlap
    ApiKey.objects.filter(pk=old.pk).update(expires_at=min(old.expires_at, end) if old.expires_at else end)
    return made


def check_pattern(pattern: str) -> None:
    """Raises ValidationError: a fence must be anchored at both ends, and a regular expression."""
    wrong = ""
    if not (pattern.startswith("^") and pattern.endswith("$")) or pattern.endswith("\\$"):
        wrong = "must be anchored: ^…$"
    elif not pattern.isprintable():
        wrong = "must be printable"
    elif len(pattern) > 200:
        wrong = "must have at most 200 characters"
    else:
        try:
            # The standard library's is the stricter reader: RE2 takes "^*$", and a count that is too large for letters.
            re.compile(pattern, re.ASCII)
            re2.compile(pattern, LINEAR)
        except (re.error, re2.error, RecursionError, OverflowError):
            wrong = "must be a regular expression of RE2's syntax, which has no look-around and no back-references"
    if wrong:
        raise ValidationError("The holder pattern is not legal.", holder_pattern=wrong)


def new_password() -> str:
    return secrets.token_urlsafe(18)
