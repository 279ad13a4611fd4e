from django.apps import AppConfig


class LeaseHubConfig(AppConfig):
    name = "leasehub"

    def ready(self) -> None:
        # The command line imports this package and must not pay for Celery, hence not in __init__.
        from leasehub import celery
        from leasehub.db import checks

        celery.app.set_default()
        checks.register()
