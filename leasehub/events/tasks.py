from celery import shared_task

from leasehub.events import feed
from leasehub.events.webhooks import courier as courier  # connects the courier to Celery's signals
from leasehub.events.webhooks import services as webhooks


@shared_task(name="leasehub.stamp_feed")
def stamp_feed() -> None:
    feed.stamp_all()


@shared_task(name="leasehub.forget_deliveries")
def forget_deliveries() -> None:
    webhooks.forget()
