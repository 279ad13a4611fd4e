from celery import shared_task

from leasehub.mcp import notices


@shared_task(name="leasehub.forget_readers")
def forget_readers() -> None:
    notices.forget_readers()
