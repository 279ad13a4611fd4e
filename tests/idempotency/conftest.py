from typing import Any

import pytest

from tests.conftest import Caster


@pytest.fixture
def key() -> dict[str, str]:
    """The header of one Idempotency-Key."""
    return {"Idempotency-Key": "7f1c-once"}


def acquire(caster: Caster, headers: dict[str, str], **members: Any) -> Any:
    body = {"resource_type": "deploy", "resource_id": "checkout", "ttl_seconds": 60, **members}
    return caster.post("leases", body, **headers)
