"""The sent box of A2A, what was updated last first."""

import django.db.models.functions.comparison
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('handoffs', '0002_pending_handoffs'),
        ('identity', '0003_sign_in_attempts'),
    ]

    operations = [
        migrations.AddIndex(
            model_name='handoff',
            index=models.Index(models.F('giver'), models.OrderBy(django.db.models.functions.comparison.Coalesce('completed_at', 'resolved_at', 'created_at'), descending=True), models.OrderBy(models.F('id'), descending=True), name='handoff_by_update'),
        ),
    ]
