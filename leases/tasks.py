from celery import shared_task

from leases import services
from leases.queues import services as queues


@shared_task(name="leases.reap")
def reap() -> None:
    services.reap_due()


@shared_task(name="leases.prune")
def prune() -> None:
    services.prune()


@shared_task(name="leases.prune_tasks")
def prune_tasks() -> None:
    queues.prune()
