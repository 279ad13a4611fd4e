from celery import shared_task

from leasehub.identity import idempotency


@shared_task(name="leasehub.forget_old_answers")
def forget_old_answers() -> None:
    idempotency.forget_old_answers()
