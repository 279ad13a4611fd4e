from django.apps import AppConfig


class LeasesConfig(AppConfig):
    name = "leases"

    def ready(self) -> None:
        from leases import owners
        from leases.queues.endings import TaskOwner
        from leases.queues.models import TASK

        owners.register(TASK, TaskOwner())
