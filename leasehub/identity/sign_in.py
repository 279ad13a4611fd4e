"""Signing in with a password, at the pages and at the admin alike: who tries too often has to wait.

Counted are the attempts for one account from one address, and those from one address for whichever account; never
those for an account from everywhere, since then a stranger could keep its owner out. An attempt is counted before the
password is looked at: many at once get no more tries than one after another.
"""

import hashlib
import logging
import unicodedata
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Any

from django.conf import settings
from django.contrib.admin.forms import AdminAuthenticationForm
from django.contrib.auth.forms import AuthenticationForm
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest

from leasehub.db import clock
from leasehub.db.locks import lock_rows
from leasehub.identity.models import SignInAttempts
from leasehub.templatetags.times import span

logger = logging.getLogger(__name__)

ACCOUNT_TRIES = 5
ADDRESS_TRIES = 30
FIRST_LOCK = timedelta(seconds=30)
LONGEST_LOCK = timedelta(minutes=15)
#: After so long without an attempt the count starts anew.
FORGOTTEN_AFTER = timedelta(hours=1)
SWEEP_BATCH = 1000
#: What one subscriber has of IPv6: single addresses of it are free.
PREFIX = 64


class Locked(Exception):
    def __init__(self, wait: timedelta) -> None:
        super().__init__("too many attempts")
        self.wait = wait


@dataclass(frozen=True, slots=True)
class Attempt:
    account: str
    address: str
    at: datetime
    #: The attempt from this address before it.
    before: datetime


def begin(*, name: str, address: str) -> Attempt:
    """Counts an attempt, before the password is looked at. Raises Locked: then it must not be looked at."""
    account, origin = _hash("account", _folded(name), address), _hash("address", address)
    with transaction.atomic():
        _make(account, origin)
        rows = _locked(account, origin)
        at = clock.now()
        tries = ((rows[account], ACCOUNT_TRIES), (rows[origin], ADDRESS_TRIES))
        wait = max(_wait(row, allowed, at) for row, allowed in tries)
        if wait > timedelta():
            raise Locked(wait)
        before = rows[origin].tried_at
        for row, allowed in tries:
            row.attempts = row.attempts + 1 if row.tried_at > at - FORGOTTEN_AFTER else 1
            row.tried_at = at
            row.save(update_fields=["attempts", "tried_at"])
            if row.attempts == allowed:
                logger.warning("%s attempts to sign in from %s: the next ones have to wait", allowed, address)
    return Attempt(account, origin, at, before)


def succeed(attempt: Attempt) -> None:
    """The password was right: its account starts anew from there, and the address is not charged for it."""
    with transaction.atomic():
        rows = _locked(attempt.account, attempt.address)
        account, address = rows[attempt.account], rows[attempt.address]
        account.attempts = 0
        address.attempts = max(0, address.attempts - 1)
        if address.tried_at == attempt.at:
            address.tried_at = attempt.before
        for row in (account, address):
            row.save(update_fields=["attempts", "tried_at"])


def _make(*subjects: str) -> None:
    """The rows that are lacking. Those that are there are locked by it: the sweep takes none of them away now."""
    at = clock.now()
    # In one order: no two attempts wait for each other's new rows crosswise.
    SignInAttempts.objects.bulk_create(
        [SignInAttempts(subject_sha256=subject, tried_at=at) for subject in sorted(subjects)],
        update_conflicts=True,
        unique_fields=["subject_sha256"],
        update_fields=["subject_sha256"],
    )


def _locked(*subjects: str) -> dict[str, SignInAttempts]:
    rows = lock_rows(SignInAttempts.objects.filter(subject_sha256__in=subjects))
    return {row.subject_sha256: row for row in rows}


def _wait(row: SignInAttempts, allowed: int, at: datetime) -> timedelta:
    """Each attempt beyond the allowed ones makes the next one wait twice as long."""
    beyond = row.attempts - allowed
    if beyond < 0 or row.tried_at <= at - FORGOTTEN_AFTER:
        return timedelta()
    lock: timedelta = min(LONGEST_LOCK, FIRST_LOCK * 2 ** min(beyond, 10))
    # A clock that was put back keeps nobody out for longer.
    return min(lock, row.tried_at + lock - at)


def forget(*, batches: int = 20) -> int:
    """Deletes what is too old to count; how many rows."""
    total = 0
    for _ in range(batches):
        before = clock.now() - FORGOTTEN_AFTER
        old = SignInAttempts.objects.filter(tried_at__lt=before).order_by("tried_at")
        batch = list(old.values_list("pk", flat=True)[:SWEEP_BATCH])
        # Those that were used meanwhile stay.
        forgotten, _ = SignInAttempts.objects.filter(pk__in=batch, tried_at__lt=before).delete()
        total += forgotten
        if len(batch) < SWEEP_BATCH:
            break
    return total


def address_of(request: HttpRequest) -> str:
    """Whom an attempt comes from: the network of an IPv6 address.

    X-Forwarded-For is believed as far as our own proxies wrote it, each its last entry.
    """
    remote = str(request.META.get("REMOTE_ADDR", ""))
    proxies = settings.LEASEHUB_PROXIES
    if proxies:
        entries = [entry.strip() for entry in request.META.get("HTTP_X_FORWARDED_FOR", "").split(",")]
        remote = entries[-proxies] if len(entries) >= proxies and entries[-proxies] else remote
    try:
        address = ip_address(remote)
    except ValueError:
        return remote[:64]
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(IPv6Network((address, PREFIX), strict=False))
    return str(address)


def _folded(name: str) -> str:
    """One account however its name is written."""
    return unicodedata.normalize("NFKC", name).casefold()


def _hash(*names: str) -> str:
    return hashlib.sha256("\n".join(names).encode("utf-8", "surrogatepass")).hexdigest()


class Limited(AuthenticationForm):
    """A form that signs in: too many attempts are told when to come back, whatever the password was."""

    #: How long one has to wait; None: the attempt was looked at.
    wait: timedelta | None = None

    def clean(self) -> dict[str, Any]:
        name, password = self.cleaned_data.get("username"), self.cleaned_data.get("password")
        if not name or not password or self.request is None:
            return super().clean()
        try:
            attempt = begin(name=name, address=address_of(self.request))
        except Locked as locked:
            self.wait = locked.wait
            come_back = f"Too many wrong passwords. Come back in {span(max(1, locked.wait.total_seconds()))}."
            raise ValidationError(come_back, code="locked") from None
        cleaned = super().clean()
        succeed(attempt)
        return cleaned


class SignInForm(Limited):
    error_messages = {**AuthenticationForm.error_messages, "invalid_login": "This name and password do not fit."}


class AdminSignInForm(Limited, AdminAuthenticationForm):
    pass
