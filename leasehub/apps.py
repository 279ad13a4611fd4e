from typing import Any

from django.apps import AppConfig, apps
from django.db.models.signals import post_migrate


class LeaseHubConfig(AppConfig):
    name = "leasehub"

    def ready(self) -> None:
        # The command line imports this package and must not pay for Celery, hence not in __init__.
        from leasehub import celery
        from leasehub.db import checks

        celery.app.set_default()
        checks.register()
        # Sent for apps with models alone, so not for this one.
        post_migrate.connect(install_schedule, sender=apps.get_app_config("django_celery_beat"))


def install_schedule(**kwargs: Any) -> None:
    from leasehub import schedule

    schedule.install()
