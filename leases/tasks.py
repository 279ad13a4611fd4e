from celery import shared_task

from leases import services


@shared_task(name="leases.reap")
def reap() -> None:
    services.reap_due()


@shared_task(name="leases.prune")
def prune() -> None:
    services.prune()
