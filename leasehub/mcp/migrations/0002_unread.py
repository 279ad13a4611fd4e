"""On PostgreSQL: the look for notices as a function, so that its plan is kept."""

import re
from pathlib import Path

from django.db import migrations

QUERY = Path(__file__).resolve().parent.parent / "sql" / "unread.sql"
FUNCTION = """
CREATE OR REPLACE FUNCTION mcp_unread(its_key bigint, its_holder text, its_organization bigint, its_principal bigint)
RETURNS TABLE (its_floor bigint, its_seen text, news_kind text, news_id bigint, feed_low_water bigint)
LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan AS $function$
BEGIN
    RETURN QUERY
    {query};
END
$function$
"""
DROP = "DROP FUNCTION mcp_unread(bigint, text, bigint, bigint)"


def forwards(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        query = re.sub(r"(?<!:):(\w+)", r"its_\1", QUERY.read_text())
        schema_editor.execute(FUNCTION.format(query=query), params=None)


def backwards(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(DROP, params=None)


class Migration(migrations.Migration):
    dependencies = [("mcp", "0001_notices_read"), ("events", "0001_initial"), ("pools", "0001_initial")]
    operations = [migrations.RunPython(forwards, backwards)]
