"""Encryption at rest for what must be read back, under a key derived from LEASEHUB_SECRET_KEY."""

import base64
import hmac
from typing import TYPE_CHECKING

from django.conf import settings

if TYPE_CHECKING:
    from cryptography.fernet import Fernet


def seal(plain: bytes) -> bytes:
    return _fernet().encrypt(plain)


def unseal(sealed: bytes) -> bytes:
    return _fernet().decrypt(sealed)


def _fernet() -> "Fernet":
    # Imported late: most processes never seal anything, and the library is large.
    from cryptography.fernet import Fernet

    derived = hmac.digest(settings.SECRET_KEY.encode(), b"leasehub.sealing", "sha256")
    return Fernet(base64.urlsafe_b64encode(derived))
