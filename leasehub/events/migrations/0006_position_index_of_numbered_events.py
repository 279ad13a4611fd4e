"""An event gets its entry in the index of positions with its position, not before."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("events", "0005_snapshots_and_inspections")]

    operations = [
        migrations.RemoveConstraint(model_name="event", name="event_position_is_unique"),
        migrations.AddConstraint(
            model_name="event",
            constraint=models.UniqueConstraint(
                fields=["organization", "position"],
                name="event_position_is_unique",
                condition=models.Q(position__isnull=False),
            ),
        ),
    ]
