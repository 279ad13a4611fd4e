"""On PostgreSQL: ids in the order of allocation, whatever connection asks; names in the order of their characters."""

from django.db import migrations

# A cached block of ids would give a later event the lower id, and the feed orders by id.
NO_CACHE = "ALTER TABLE events_event ALTER COLUMN id SET CACHE 1"
# The journal is appended to and stamped once: dead entries should not wait for a fifth of the table.
VACUUM = """
ALTER TABLE events_event SET (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0
)
"""
# As SQLite does: in a locale's order a range is not what begins with a prefix, and comparing costs more.
BY_CODE_POINT = """
ALTER TABLE events_event
    ALTER COLUMN resource_type TYPE varchar(200) COLLATE "C", ALTER COLUMN resource_id TYPE varchar(200) COLLATE "C"
"""


def forwards(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(NO_CACHE)
        schema_editor.execute(VACUUM)
        schema_editor.execute(BY_CODE_POINT)


class Migration(migrations.Migration):
    dependencies = [("events", "0001_initial")]

    operations = [migrations.RunPython(forwards, migrations.RunPython.noop)]
