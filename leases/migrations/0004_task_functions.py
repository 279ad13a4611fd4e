"""On PostgreSQL: the functions of the queues, and storage for rows that change at every step."""

from pathlib import Path

from django.db import migrations

FUNCTIONS = Path(__file__).resolve().parent.parent / "sql" / "task_functions.sql"
# A claimed task leaves dead entries at the head of the index that every claim reads: they should go early.
STORAGE = """
ALTER TABLE leases_task SET (
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE leases_lane SET (fillfactor = 20, autovacuum_vacuum_threshold = 100, autovacuum_vacuum_scale_factor = 0);
-- A cached block of numbers would let a later task come before an earlier one.
CREATE SEQUENCE leases_task_place OWNED BY leases_task.place CACHE 1;
"""
DROP = """
DROP FUNCTION task_return(bigint, uuid, bigint);
DROP FUNCTION task_fail(bigint, uuid, bigint, text, bigint, boolean);
DROP FUNCTION task_complete(bigint, uuid, bigint, text);
DROP FUNCTION task_end(
    leases_task, leases_resource, timestamptz, bigint, bigint, text, text, timestamptz, jsonb
);
DROP FUNCTION task_heartbeat(bigint, uuid, bigint, bigint);
DROP FUNCTION task_lock(bigint, uuid, bigint);
DROP FUNCTION task_claim(bigint, text, text, bigint, integer, timestamptz);
DROP FUNCTION queue_look(bigint, timestamptz, timestamptz);
DROP FUNCTION task_grant(bigint, bigint, bigint, bigint, text, text, bigint, uuid[]);
DROP FUNCTION task_reap_due(integer);
DROP FUNCTION task_reap(bigint[]);
DROP FUNCTION lane_take(leases_lane, integer, bigint);
DROP FUNCTION lane_advance(bigint, bigint);
DROP FUNCTION task_has_older_writer(xid8);
DROP FUNCTION task_put(bigint, text, smallint[], bigint[], smallint[], text[], text[]);
DROP FUNCTION task_ring(bigint[]);
DROP FUNCTION task_public_id(uuid);
DROP FUNCTION leasehub_new_id(timestamptz);
DROP SEQUENCE leases_task_place;
"""


def forwards(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(STORAGE, params=None)
        schema_editor.execute(FUNCTIONS.read_text(), params=None)


def backwards(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(DROP, params=None)


class Migration(migrations.Migration):
    dependencies = [("leases", "0003_queues")]

    operations = [migrations.RunPython(forwards, backwards)]
