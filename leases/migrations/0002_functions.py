"""On PostgreSQL: the functions of the hot path, and storage that keeps heartbeats HOT."""

from pathlib import Path

from django.db import migrations

FUNCTIONS = Path(__file__).resolve().parent.parent / "sql" / "lease_functions.sql"
# A fifth of each page stays free, so that a heartbeat's new row version fits beside the old one; and dead
# versions go early, because they are made all the time.
STORAGE = """
ALTER TABLE leases_resource SET (
    fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0
)
"""
DROP = """
DROP FUNCTION lease_reap_due(integer, text[]);
DROP FUNCTION lease_release(bigint, uuid, bigint, text[]);
DROP FUNCTION lease_heartbeats(bigint, uuid[], bigint[]);
DROP FUNCTION lease_heartbeat(bigint, uuid, bigint, bigint);
DROP FUNCTION lease_acquire(bigint, text, text, text, bigint, boolean, text, jsonb, bigint);
DROP FUNCTION lease_previous(leases_resource);
DROP FUNCTION lease_unseen(bigint);
DROP FUNCTION leasehub_key_owner(bigint);
DROP FUNCTION leasehub_iso(timestamptz);
"""


def forwards(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(STORAGE)
        schema_editor.execute(FUNCTIONS.read_text(), params=None)


def backwards(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(DROP, params=None)


class Migration(migrations.Migration):
    dependencies = [
        ("leases", "0001_initial"),
        ("events", "0002_identity_order"),
        ("identity", "0002_clock"),
    ]

    operations = [migrations.RunPython(forwards, backwards)]
