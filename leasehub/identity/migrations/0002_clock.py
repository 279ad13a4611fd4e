"""The database's clock, in the API's resolution: a function, so that tests can move it."""

from django.db import migrations

CREATE = """
CREATE FUNCTION leasehub_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
    SELECT date_trunc('milliseconds', clock_timestamp())
$$
"""


def on_postgresql(sql):
    def run(apps, schema_editor):
        # SQLite has a function of this name registered on every connection (leasehub.db.sqlite).
        if schema_editor.connection.vendor == "postgresql":
            schema_editor.execute(sql)

    return run


class Migration(migrations.Migration):
    dependencies = [("identity", "0001_initial")]

    operations = [
        migrations.RunPython(on_postgresql(CREATE), on_postgresql("DROP FUNCTION leasehub_now()")),
    ]
