"""The same Idempotency-Key, the same answer, one effect.

The key's row is written in the effect's transaction, and only when it succeeds. The second of two equal
requests waits at the unique constraint for the first, and then replays.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.conf import settings
from django.db import IntegrityError, OperationalError, transaction

from leasehub.db import clock, failures
from leasehub.db.constraints import violated
from leasehub.errors import IdempotencyMismatch, InProgress, ValidationError
from leasehub.identity import sealing, secret
from leasehub.identity.authentication import Caller
from leasehub.identity.models import RememberedAnswer

SECRET_MINUTES = 10
SWEEP_BATCH = 1000
COLUMNS = {
    "identity_rememberedanswer.principal_id, identity_rememberedanswer.key_sha256": "idempotency_key_is_used_once"
}


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


def once(
    *, caller: Caller, key: str, request_sha256: str, is_secret: bool, effect: Callable[[], Answer]
) -> tuple[Answer, bool]:
    """The effect's answer, and whether it is a replay of an earlier one.

    Raises IdempotencyMismatch for a key that was used for another request, InProgress while an equal request
    takes longer than the lock timeout, and whatever the effect raises: then nothing is remembered.
    """
    if not (0 < len(key) <= 200 and key.isascii() and key.isprintable()):
        raise ValidationError("The Idempotency-Key is not legal.", idempotency_key="1 to 200 ASCII characters")
    key_sha256 = secret.sha256(key)
    if (answer := _recall(caller, key_sha256, request_sha256)) is not None:
        return answer, True
    entered = False
    try:
        with transaction.atomic():
            row = RememberedAnswer.objects.create(
                principal_id=caller.principal,
                key_sha256=key_sha256,
                request_sha256=request_sha256,
                is_secret=is_secret,
                created_at=clock.now(),
            )
            entered = True
            answer = effect()
            RememberedAnswer.objects.filter(pk=row.pk).update(
                status=answer.status,
                headers=answer.headers,
                body=sealing.seal(answer.body) if is_secret else answer.body,
            )
        return answer, False
    except IntegrityError as error:
        if violated(error, COLUMNS) != "idempotency_key_is_used_once":
            raise
    except OperationalError as error:
        # On SQLite any writer may be in the way, so nothing is known of an equal request.
        if entered or not failures.is_lock_timeout(error):
            raise
    if (answer := _recall(caller, key_sha256, request_sha256)) is not None:
        return answer, True
    raise InProgress(retry_after_ms=1000)


def _recall(caller: Caller, key_sha256: str, request_sha256: str) -> Answer | None:
    row = RememberedAnswer.objects.filter(principal_id=caller.principal, key_sha256=key_sha256).first()
    if row is None:
        return None
    if row.request_sha256 != request_sha256:
        raise IdempotencyMismatch
    if row.is_secret and (row.body is None or row.created_at < clock.now() - timedelta(minutes=SECRET_MINUTES)):
        raise IdempotencyMismatch(
            f"This request was answered more than {SECRET_MINUTES} minutes ago, and its secret is not kept."
        )
    body = bytes(row.body or b"")
    return Answer(row.status or 200, row.headers, sealing.unseal(body) if row.is_secret else body)


def forget_old_answers(*, batches: int = 100) -> int:
    """Erases secrets after ten minutes and whole rows after LEASEHUB_IDEMPOTENCY_HOURS; how many rows went."""
    now = clock.now()
    RememberedAnswer.objects.filter(
        is_secret=True, body__isnull=False, created_at__lt=now - timedelta(minutes=SECRET_MINUTES)
    ).update(body=None)
    old = now - timedelta(hours=settings.LEASEHUB_IDEMPOTENCY_HOURS)
    total = 0
    for _ in range(batches):
        forgotten = _forget_before(old)
        total += forgotten
        if forgotten < SWEEP_BATCH:
            break
    return total


def _forget_before(at: datetime) -> int:
    rows = RememberedAnswer.objects.filter(created_at__lt=at).order_by("created_at").values_list("pk", flat=True)
    forgotten, _ = RememberedAnswer.objects.filter(pk__in=list(rows[:SWEEP_BATCH])).delete()
    return forgotten
