"""On PostgreSQL: a slot granted at once in one call."""

from pathlib import Path

from django.db import migrations

FUNCTIONS = Path(__file__).resolve().parent.parent / "sql" / "pool_functions.sql"
DROP = """
DROP FUNCTION pool_grant_at_once(
    bigint, bigint, text, jsonb, uuid, bigint, bigint, text, text, text, boolean, bigint, jsonb, text, text[], text[]
)
"""


def forwards(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(FUNCTIONS.read_text(), params=None)


def backwards(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(DROP, params=None)


class Migration(migrations.Migration):
    dependencies = [("pools", "0001_initial"), ("leases", "0006_functions_again")]

    operations = [migrations.RunPython(forwards, backwards)]
