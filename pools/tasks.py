from celery import shared_task

from pools import runs, services
from pools import worker as worker  # connects the command worker to Celery's signals


@shared_task(name="pools.sweep")
def sweep() -> None:
    runs.give_up_overdue()
    services.sweep_pools()


@shared_task(name="pools.forget")
def forget() -> None:
    runs.forget()
