from celery import shared_task

from leasehub.identity import idempotency, sign_in


@shared_task(name="leasehub.forget_old_answers")
def forget_old_answers() -> None:
    idempotency.forget_old_answers()


@shared_task(name="leasehub.forget_sign_in_attempts")
def forget_sign_in_attempts() -> None:
    sign_in.forget()
