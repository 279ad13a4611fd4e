"""The first start: an organization, an admin, a key; later starts find them."""

import json
import os
from pathlib import Path
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from leasehub.identity import services
from leasehub.identity.models import Organization
from leasehub.identity.rings import ACT, OBSERVE, OPERATE

FIRST_ORGANIZATION = "main"
ADMIN = "admin"


def first_run(*, url: str, credentials: Path) -> dict[str, Any]:
    """Makes what the first start needs and writes it to ``credentials`` (mode 0600)."""
    keep_aside(credentials)
    with transaction.atomic():
        user, password = admin()
        made = organization_with_key(name=FIRST_ORGANIZATION, handle=ADMIN, url=url, user=user)
        document = {**made, "admin_user": ADMIN, "admin_password": password}
        # Inside the transaction: a database without its credentials could not be entered.
        write_private(credentials, document)
    return document


def admin() -> tuple[User, str | None]:
    """The admin and its password, unless somebody made the user before."""
    known = User.objects.filter(username=ADMIN).first()
    if known is not None:
        return known, None
    password = services.new_password()
    return User.objects.create_superuser(ADMIN, password=password), password


def organization_with_key(*, name: str, handle: str, url: str, user: User | None = None) -> dict[str, Any]:
    """An organization with a human principal and a key that carries all rings. Raises NameTaken."""
    organization = services.create_organization(name=name)
    principal = services.create_principal(organization=organization.pk, handle=handle, kind="human", user=user)
    _, plain = services.issue_key(principal=principal, label="first key", rings=(OBSERVE, ACT, OPERATE))
    return {"url": url, "organization": name, "principal": handle, "token": plain}


def is_new() -> bool:
    return not Organization.objects.exists()


def keep_aside(file: Path) -> None:
    """A folder that served another database before keeps that one's credentials."""
    if file.exists():
        file.rename(file.with_name(f"{file.stem}.{int(file.stat().st_mtime)}{file.suffix}"))


def write_private(file: Path, document: dict[str, Any]) -> None:
    """Replaces the file whole, readable by its owner alone from the first byte on."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        json.dump(document, stream, indent=2)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())
    aside.replace(file)
