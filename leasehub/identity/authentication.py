"""From the Authorization header to a Caller, cheap enough for the hot path.

A key's principal, rings and fence never change, so a process remembers them by the secret's hash. Whether the
key still works is asked of the database at every call: by ``authenticate``, or, on the hot path, by the
database function that does the work (it takes ``Caller.key``).
"""

import re
import time
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import re2
from django.db import OperationalError
from django.db.models import Q, QuerySet
from psycopg.types.numeric import Int8

from leasehub.db import clock, functions
from leasehub.errors import Unauthenticated
from leasehub.identity import secret
from leasehub.identity.errors import MissingRing, OutsideFence
from leasehub.identity.models import DEFAULT_HOLDER_PATTERN, ApiKey
from leasehub.identity.rings import ACT, OBSERVE, OPERATE

REMEMBERED_KEYS = 10_000
LAST_USED_SECONDS = 60
# By hand: what Django makes of the same takes longer to put together than to answer, and nearly every call asks it.
WORKS = """key.revoked_at IS NULL AND principal.retired_at IS NULL
    AND (key.expires_at IS NULL OR key.expires_at > leasehub_now())
"""
LOOK_UP = f"""SELECT key.id, key.public_id, principal.id, principal.handle, principal.kind, organization.id,
    organization.name, key.holder_pattern, key.observes, key.acts, key.operates
FROM "identity_apikey" AS key
JOIN identity_principal AS principal ON principal.id = key.principal_id
JOIN identity_organization AS organization ON organization.id = principal.organization_id
WHERE key.secret_sha256 = %s AND {WORKS}"""
CHECK = f"""SELECT 1
FROM "identity_apikey" AS key
JOIN identity_principal AS principal ON principal.id = key.principal_id
WHERE key.id = %s AND {WORKS}"""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, as far as it never changes."""

    key: int
    key_id: str
    principal: int
    handle: str
    kind: str
    organization: int
    organization_name: str
    rings: frozenset[int]
    holder_pattern: str

    @property
    def observes(self) -> bool:
        return OBSERVE in self.rings

    @property
    def acts(self) -> bool:
        return ACT in self.rings

    @property
    def operates(self) -> bool:
        return OPERATE in self.rings

    def require(self, ring: int) -> None:
        """Raises MissingRing."""
        if ring not in self.rings:
            raise MissingRing(ring)

    def fenced(self, holder: str | None) -> str:
        """The holder to act as: the given one, or the handle. Raises OutsideFence."""
        holder = self.handle if holder is None else holder
        if not self.may_hold_as(holder):
            raise OutsideFence(holder, self.holder_pattern)
        return holder

    def may_hold_as(self, holder: str) -> bool:
        return compiled(self.holder_pattern).fullmatch(holder) is not None

    @property
    def has_default_fence(self) -> bool:
        return self.holder_pattern == DEFAULT_HOLDER_PATTERN


LINEAR = re2.Options()
LINEAR.log_errors = False
# Of what a pattern of 200 characters may become.
LINEAR.max_mem = 2**20
NOBODY = re.compile(r"(?!)")


@lru_cache(maxsize=1000)
def compiled(pattern: str) -> Any:
    """Full-match semantics: an alternation cannot slip past the anchors. What RE2 does not take matches nobody."""
    if pattern == DEFAULT_HOLDER_PATTERN:
        # Nothing in it backtracks, and the standard library's is faster on a short text.
        return re.compile(pattern, re.ASCII)
    try:
        return re2.compile(pattern, LINEAR)
    except re2.error:
        return NOBODY


_remembered: dict[str, Caller] = {}
_last_used: dict[int, float] = {}


def authenticate(authorization: str | None) -> Caller:
    """The caller, with the key checked now by one indexed query. Raises Unauthenticated."""
    return _look_up(hash_of(authorization))


def recognize(authorization: str | None) -> Caller:
    """The caller as remembered: the service must still have the database check the key."""
    sha256 = hash_of(authorization)
    caller = _remembered.get(sha256)
    if caller is None:
        return _look_up(sha256)
    _note_use(caller.key)
    return caller


def check_key(caller: Caller) -> None:
    """Raises Unauthenticated when the key of a remembered caller works no more."""
    if not functions.read(CHECK, [Int8(caller.key)]):
        raise Unauthenticated


def working_keys(keys: set[int]) -> set[int]:
    """Those of the keys that still work."""
    return set(ApiKey.objects.filter(_works(clock.now()), pk__in=keys).values_list("pk", flat=True)) if keys else set()


def hash_of(authorization: str | None) -> str:
    scheme, _, given = (authorization or "").partition(" ")
    given = given.strip()
    if scheme.lower() != "bearer" or not secret.FORM.fullmatch(given):
        raise Unauthenticated
    return secret.sha256(given)


def _look_up(sha256: str) -> Caller:
    found = functions.read(LOOK_UP, [sha256])
    if not found:
        _remembered.pop(sha256, None)
        raise Unauthenticated
    key, public_id, principal, handle, kind, organization, organization_name, holder_pattern, *carries = found[0]
    caller = Caller(
        key=key,
        # A UUID, or on SQLite its hexadecimal digits.
        key_id=f"key_{uuid.UUID(str(public_id)).hex}",
        principal=principal,
        handle=handle,
        kind=kind,
        organization=organization,
        organization_name=organization_name,
        rings=frozenset(ring for ring, carried in zip((OBSERVE, ACT, OPERATE), carries, strict=True) if carried),
        holder_pattern=holder_pattern,
    )
    if len(_remembered) >= REMEMBERED_KEYS:
        _remembered.clear()
    _remembered[sha256] = caller
    _note_use(caller.key)
    return caller


def _note_use(key: int) -> None:
    """Writes last_used_at at most once a minute and process, in a statement of its own."""
    seen = time.monotonic()
    if seen - _last_used.get(key, -LAST_USED_SECONDS) < LAST_USED_SECONDS:
        return
    if len(_last_used) >= REMEMBERED_KEYS:
        _last_used.clear()
    _last_used[key] = seen
    now = clock.now()
    # Not of a key that works no more: a refused call is no use.
    stale = _working(key, now).filter(
        Q(last_used_at=None) | Q(last_used_at__lt=now - timedelta(seconds=LAST_USED_SECONDS))
    )
    try:
        stale.update(last_used_at=now)
    except OperationalError:
        # Nobody is refused for want of a lock on what is only a note: the next call takes it.
        _last_used.pop(key, None)


def _working(key: int, at: datetime) -> QuerySet[ApiKey]:
    return ApiKey.objects.filter(_works(at), pk=key)


def _works(at: datetime) -> Q:
    return Q(revoked_at=None, principal__retired_at=None) & (Q(expires_at=None) | Q(expires_at__gt=at))
