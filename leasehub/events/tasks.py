from celery import shared_task

from leasehub.events import feed


@shared_task(name="leasehub.stamp_feed")
def stamp_feed() -> None:
    feed.stamp_all()
