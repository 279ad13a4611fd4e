"""What is measured on: a fresh database, an organization with a key, rows on file."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

POSTGRESQL = os.environ.get("LEASEHUB_BENCH_POSTGRESQL", "postgres://postgres@127.0.0.1:5432/postgres")
SETTINGS = "bench.conventional.settings"


@dataclass(frozen=True, slots=True)
class Ground:
    url: str
    #: LeaseHub's: who holds all that is on file, and with what key.
    organization: int
    principal: int
    key: int
    secret: str
    #: The conventional application's.
    user: int
    token: str

    @property
    def environment(self) -> dict[str, str]:
        return {
            "DATABASE_URL": self.url,
            "LEASEHUB_SECRET_KEY": os.environ["LEASEHUB_SECRET_KEY"],
            "DJANGO_SETTINGS_MODULE": "leasehub.settings",
        }

    def connect(self) -> "psycopg.Connection[tuple[object, ...]]":
        return psycopg.connect(self.url, autocommit=True)

    def execute(self, *statements: str, **parameters: object) -> None:
        """Each in a transaction of its own."""
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement, parameters or None)


@contextmanager
def prepared() -> Iterator[Ground]:
    """A migrated database with nothing on file. Django is set up on it in this process."""
    with database() as url:
        os.environ["DATABASE_URL"] = url
        os.environ["LEASEHUB_SECRET_KEY"] = secrets.token_urlsafe(32)
        os.environ["DJANGO_SETTINGS_MODULE"] = SETTINGS
        yield _migrated(url)


def _migrated(url: str) -> Ground:
    import django

    django.setup()
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from rest_framework.authtoken.models import Token

    from leasehub.identity import services

    call_command("migrate", verbosity=0)
    organization = services.create_organization(name="bench")
    principal = services.create_principal(organization=organization.pk, handle="bench")
    key, secret = services.issue_key(principal=principal, rings=(1, 2, 3))
    user = User.objects.create_user("bench")
    token = Token.objects.create(user=user)
    return Ground(url, organization.pk, principal.pk, key.pk, secret, user.pk, token.key)


@contextmanager
def copied(base: Ground) -> Iterator[Ground]:
    """The same with another database: nobody may be connected to the first one."""
    from django.db import connections

    connections.close_all()
    with database(template=urlsplit(base.url).path.lstrip("/")) as url:
        yield replace(base, url=url)


@contextmanager
def database(template: str | None = None) -> Iterator[str]:
    """A database that is dropped at the end; its address."""
    name = f"leasehub_bench_{secrets.token_hex(4)}"
    like = sql.SQL(" TEMPLATE {}").format(sql.Identifier(template)) if template else sql.SQL("")
    with psycopg.connect(POSTGRESQL, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)) + like)
    try:
        yield urlsplit(POSTGRESQL)._replace(path=f"/{name}").geturl()
    finally:
        with psycopg.connect(POSTGRESQL, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


LEASES = """
INSERT INTO leases_resource (
    organization_id, resource_type, resource_id, last_token, lease_id, principal_id, holder,
    acquired_at, heartbeat_at, expires_at, check_at, ttl_ms
)
SELECT %(organization)s, 'bench', %(prefix)s || n, n, lpad(to_hex(n), 32, '0')::uuid, %(principal)s, 'bench',
    now(), now(), now() + interval '1 day', now() + interval '1 day', 86400000
FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n
"""
LOCKS = """
INSERT INTO conventional_lock (
    resource_type, resource_id, lease_id, fencing_token, owner_id, holder, ttl_seconds, expires_at
)
SELECT 'bench', 'kept.' || n, lpad(to_hex(n), 32, '0')::uuid, n, %(user)s, 'bench', 600, now() + interval '1 day'
FROM generate_series(1, %(last)s::bigint) AS n
"""
# A past like that of the product: an acquisition and its release in turn, all of them numbered.
EVENTS = """
INSERT INTO events_event (
    event_id, organization_id, position, type, at, actor_id, key_id, resource_type, resource_id, lease_id,
    fencing_token, principal_id, holder, data
)
SELECT gen_random_uuid(), %(organization)s, n, CASE n %% 2 WHEN 1 THEN 'lease.acquired' ELSE 'lease.released' END,
    now() - interval '2 days' + n * interval '1 millisecond', %(principal)s, %(key)s,
    'bench', 'past.' || (n / 2) %% 50000, lpad(to_hex((n + 1) / 2), 32, 'f')::uuid, n, %(principal)s, 'bench',
    '{"ttl_seconds": 600, "expires_at": "2026-01-01T00:00:00.000Z"}'
FROM generate_series(1, %(last)s::bigint) AS n
"""
FEED = """
INSERT INTO events_feed (organization_id, last_position, low_water, candidate, candidate_xid, pruned_through)
VALUES (%(organization)s, %(last)s, %(last)s, 0, 0, 0)
"""


def hold_leases(ground: Ground, last: int, *, first: int = 1, prefix: str = "kept.") -> None:
    """Live leases with the ids and the tokens ``first`` to ``last``."""
    ground.execute(
        LEASES, organization=ground.organization, principal=ground.principal, prefix=prefix, first=first, last=last
    )
    ground.execute("VACUUM ANALYZE leases_resource")


def hold_locks(ground: Ground, last: int) -> None:
    """The same for the conventional application."""
    ground.execute(LOCKS, user=ground.user, last=last)
    ground.execute("VACUUM ANALYZE conventional_lock")


def journal(ground: Ground, last: int) -> None:
    """``last`` events, numbered in the feed."""
    ground.execute(
        EVENTS, FEED, organization=ground.organization, principal=ground.principal, key=ground.key, last=last
    )
    ground.execute("VACUUM ANALYZE events_event", "VACUUM ANALYZE leases_resource", "CHECKPOINT")


def forget_all(ground: Ground) -> None:
    """Empties the database of leases and events."""
    ground.execute("TRUNCATE leases_resource, events_event, events_feed RESTART IDENTITY")
