"""The same rule in a shorter text, which PostgreSQL reads again at every write."""

from django.db import migrations, models

import leasehub.db.constraints


class Migration(migrations.Migration):
    dependencies = [("leases", "0004_task_functions")]

    operations = [
        migrations.RemoveConstraint(model_name="resource", name="resource_is_held_or_free"),
        migrations.AddConstraint(
            model_name="resource",
            constraint=models.CheckConstraint(
                condition=leasehub.db.constraints.AllOrNone(
                    "lease_id", "principal", "holder", "acquired_at", "heartbeat_at", "expires_at", "check_at", "ttl_ms"
                ),
                name="resource_is_held_or_free",
            ),
        ),
    ]
