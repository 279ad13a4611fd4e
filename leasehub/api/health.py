"""/healthz and /readyz, open to everybody."""

from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, HttpResponse

from leasehub.api.rendering import error_response, json_response
from leasehub.errors import Unavailable

_migrated = False


def healthz(request: HttpRequest) -> HttpResponse:
    """This process answers; nothing is said of the database."""
    return json_response({"status": "ok"})


def readyz(request: HttpRequest) -> HttpResponse:
    """The database answers and has every migration."""
    global _migrated
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT leasehub_now()")
        # Once is enough: migrations are not taken back while the server runs.
        _migrated = _migrated or _has_every_migration()
    except DatabaseError:
        return error_response(Unavailable("The database does not answer.", retry_after_ms=2000))
    if not _migrated:
        return error_response(Unavailable("The database lacks migrations.", retry_after_ms=5000))
    return json_response({"status": "ready"})


def _has_every_migration() -> bool:
    executor = MigrationExecutor(connection)
    return not executor.migration_plan(executor.loader.graph.leaf_nodes())
