from celery import shared_task

from handoffs import checkpoints, services


@shared_task(name="handoffs.expire")
def expire() -> None:
    services.expire_due()


@shared_task(name="handoffs.prune_checkpoints")
def prune_checkpoints() -> None:
    checkpoints.prune()
