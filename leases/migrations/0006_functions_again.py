"""On PostgreSQL: the functions of the lease as they are now, over those of an earlier 0002; and lease_grant()."""

from pathlib import Path

from django.db import migrations

FUNCTIONS = Path(__file__).resolve().parent.parent / "sql" / "lease_functions.sql"
DROP = """
DROP FUNCTION IF EXISTS
    lease_grant(bigint, text, text, bigint, text, bigint, jsonb, text, bigint, bigint, jsonb)
"""


def forwards(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        text = FUNCTIONS.read_text().replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")
        schema_editor.execute(text, params=None)


def backwards(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(DROP, params=None)


class Migration(migrations.Migration):
    dependencies = [("leases", "0005_shorter_constraint")]

    operations = [migrations.RunPython(forwards, backwards)]
