"""How often a password was tried lately, by account and address."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('identity', '0002_clock'),
    ]

    operations = [
        migrations.CreateModel(
            name='SignInAttempts',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('subject_sha256', models.CharField(max_length=64)),
                ('attempts', models.PositiveIntegerField(default=0)),
                ('tried_at', models.DateTimeField()),
            ],
            options={
                'default_permissions': (),
                'indexes': [models.Index(fields=['tried_at'], name='sign_in_by_age')],
                'constraints': [models.UniqueConstraint(fields=('subject_sha256',), name='sign_in_attempts_are_counted_once')],
            },
        ),
    ]
