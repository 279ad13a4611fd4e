"""Requests made from the OpenAPI document, well-formed and not: never a 5xx, always what the document says."""

import json
import os
from typing import Any
from urllib.parse import quote, urlencode

import pytest
import schemathesis
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from tests import contract, wsgi
from tests.conftest import Caster, cast

EXAMPLES = 400 if os.environ.get("LEASEHUB_TEST_ROUNDS") == "full" else 15
NAMES = sorted(operation["operationId"] for operation in contract.operations().values())


@pytest.fixture(scope="module")
def operations() -> dict[str, Any]:
    schema = schemathesis.openapi.from_dict(contract.document())
    found = (result.ok() for result in schema.get_all_operations())
    return {operation.definition.raw["operationId"]: operation for operation in found}


@pytest.fixture
def boss(organization: Any) -> Caster:
    return cast(organization, "boss", (1, 2, 3))


@pytest.mark.parametrize("name", NAMES)
def test_what_the_document_allows_and_forbids_is_answered_by_the_document(
    name: str, operations: dict[str, Any], boss: Caster
) -> None:
    operation = operations[name]
    held = boss.acquire("fuzz", payload={"a": [1]}).json()["data"]
    known = {"lease_id": held["lease_id"], "key_id": boss.caller.key_id, "handle": "boss"}
    cases = st.one_of(
        operation.as_strategy(generation_mode=GenerationMode.POSITIVE),
        operation.as_strategy(generation_mode=GenerationMode.NEGATIVE),
    )

    # The database is the test's own, and every example is undone.
    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=cases, on_what_exists=st.booleans())
    def examples(case: Any, on_what_exists: bool) -> None:
        with transaction.atomic():
            answered_by_the_document(boss, case, known if on_what_exists else {})
            transaction.set_rollback(True)

    examples()


def answered_by_the_document(boss: Caster, case: Any, known: dict[str, str]) -> None:
    address = case.operation.path
    for parameter, value in {**(case.path_parameters or {}), **known}.items():
        address = address.replace(f"{{{parameter}}}", quote(str(value), safe=""))
    query = urlencode(dict(case.query or {}), doseq=True, errors="surrogatepass")
    headers = {name: str(value) for name, value in dict(case.headers or {}).items()}
    response = wsgi.call(
        case.method,
        f"{address}?{query}" if query else address,
        content_of(case.body),
        {**headers, "Authorization": f"Bearer {boss.secret}"},
    )
    assert response.status_code < 500, response.content
    assert response.headers["X-Request-Id"]
    is_json = response.headers.get("Content-Type") == "application/json"
    contract.check(case.method, address, response.status_code, response.headers, response.json() if is_json else None)


def content_of(body: Any) -> bytes:
    if isinstance(body, bytes):
        return body
    return b"" if "NotSet" in type(body).__name__ else json.dumps(body).encode()
