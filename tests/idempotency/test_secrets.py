"""An answer that shows a secret is encrypted in its row and erased after ten minutes."""

from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.db import connection

from leasehub.identity import idempotency
from leasehub.identity.models import ApiKey, RememberedAnswer
from tests.conftest import Caster, error_of
from tests.idempotency.conftest import acquire


def make(operator: Caster, key: dict[str, str]) -> Any:
    return operator.post("keys", {"principal": "muse"}, **key)


def rotate(operator: Caster, key: dict[str, str]) -> Any:
    return operator.post(f"keys/{operator.caller.key_id}/rotate", {}, **key)


@pytest.mark.parametrize("call", [make, rotate])
def test_a_secret_is_replayed_while_it_is_kept(operator: Caster, key: dict[str, str], call: Any, clock: Any) -> None:
    first = call(operator, key)
    clock.move(seconds=599)
    assert call(operator, key).content == first.content
    assert b"lh_" in first.content
    assert ApiKey.objects.filter(operates=False).count() + ApiKey.objects.exclude(rotated_from=None).count() == 1


@pytest.mark.parametrize("call", [make, rotate])
def test_the_row_does_not_show_it(operator: Caster, key: dict[str, str], call: Any) -> None:
    plain = call(operator, key).json()["data"]["api_key"]
    row = RememberedAnswer.objects.get()
    assert row.is_secret
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM identity_rememberedanswer")
        stored = b"".join(bytes(v) if isinstance(v, bytes | memoryview) else str(v).encode() for v in cursor.fetchone())
    assert plain.encode() not in stored
    assert plain[:11].encode() not in stored
    assert b"7f1c-once" not in stored


def test_an_answer_without_a_secret_is_not_encrypted(agent: Caster, key: dict[str, str]) -> None:
    lease_id = acquire(agent, key).json()["data"]["lease_id"]
    row = RememberedAnswer.objects.get()
    assert not row.is_secret
    assert lease_id.encode() in bytes(row.body or b"")


@pytest.mark.parametrize("swept", [False, True])
def test_after_ten_minutes_the_secret_is_gone_and_the_effect_is_not_repeated(
    operator: Caster, key: dict[str, str], clock: Any, swept: bool
) -> None:
    make(operator, key)
    clock.move(seconds=601)
    if swept:
        assert idempotency.forget_old_answers() == 0
        assert RememberedAnswer.objects.get().body is None
    refused = error_of(make(operator, key))
    assert (refused["status"], refused["code"]) == (422, "IDEMPOTENCY_MISMATCH")
    assert "10 minutes" in refused["message"]
    assert ApiKey.objects.filter(principal__handle="muse").count() == 1


def test_the_sweep_erases_secrets_alone_and_in_time_alone(
    operator: Caster, agent: Caster, key: dict[str, str], clock: Any
) -> None:
    acquire(agent, key)
    make(operator, key)
    clock.move(seconds=599)
    idempotency.forget_old_answers()
    assert not RememberedAnswer.objects.filter(body=None).exists()
    clock.move(seconds=2)
    idempotency.forget_old_answers()
    assert list(RememberedAnswer.objects.filter(body=None).values_list("is_secret", flat=True)) == [True]
    assert acquire(agent, key).status_code == 201


def test_whole_rows_are_forgotten_after_their_hours(agent: Caster, key: dict[str, str], clock: Any) -> None:
    first = acquire(agent, key).json()["data"]
    clock.move(seconds=timedelta(hours=settings.LEASEHUB_IDEMPOTENCY_HOURS).total_seconds() - 1)
    assert idempotency.forget_old_answers() == 0
    clock.move(seconds=2)
    assert idempotency.forget_old_answers() == 1
    assert not RememberedAnswer.objects.exists()
    # The key may be used anew, and then it has an effect.
    assert acquire(agent, key).json()["data"]["lease_id"] != first["lease_id"]
