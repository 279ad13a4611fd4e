from celery import shared_task

from leasehub.management import retention


@shared_task(name="leasehub.prune_events")
def prune_events() -> None:
    retention.prune_events()
