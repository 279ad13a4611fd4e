"""The OpenAPI document: committed, in step, and about the operations."""

import io
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from django.core.management import call_command

from tests import contract, wsgi
from tests.conftest import Caster

pytestmark = pytest.mark.django_db
COMMITTED = Path(__file__).resolve().parent.parent.parent / "docs" / "openapi.yaml"


def test_the_committed_document_is_in_step() -> None:
    """Write it anew with: python manage.py spectacular --validate --fail-on-warn --file docs/openapi.yaml"""
    generated = io.StringIO()
    call_command("spectacular", "--validate", "--fail-on-warn", stdout=generated)
    assert COMMITTED.read_text() == generated.getvalue()


def test_the_served_document_is_the_same() -> None:
    assert wsgi.call("GET", "/v1/schema?format=json").json() == contract.document()
    yaml = wsgi.call("GET", "/v1/schema")
    assert yaml.headers["Content-Type"].startswith("application/vnd.oai.openapi")
    assert yaml.content.decode().strip() == COMMITTED.read_text().strip()
    assert wsgi.call("GET", "/v1/schema", headers={"Accept": "application/json"}).json()["openapi"] == "3.1.0"


@pytest.mark.parametrize("query", ["format=xml", "lang=de", "version=2", "format=json&format=json"])
def test_the_document_s_own_query_is_strict(query: str) -> None:
    assert wsgi.call("GET", f"/v1/schema?{query}").status_code == 400


def test_every_operation_speaks_of_itself() -> None:
    descriptions = [operation["description"] for operation in contract.operations().values()]
    assert len(set(descriptions)) == len(descriptions)
    for operation in contract.operations().values():
        assert operation["summary"] in operation["description"]
        assert "RING-" in operation["description"] or "Any key" in operation["description"]


def test_every_operation_says_how_it_refuses() -> None:
    for (method, _), operation in contract.operations().items():
        known = set(operation["responses"])
        assert known >= {"400", "401", "403", "503"}
        if "requestBody" in operation:
            assert known >= {"413", "415"}
        header = {parameter["name"] for parameter in operation.get("parameters", []) if parameter["in"] == "header"}
        if header == {"Idempotency-Key"}:
            assert known >= {"409", "422"}
        assert method in ("POST", "PUT") or not header - {"Last-Event-ID"}


def test_every_body_with_a_required_member_has_an_example_that_is_valid() -> None:
    schemas, shown = contract.document()["components"]["schemas"], 0
    for operation in contract.operations().values():
        body = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if body is None:
            continue
        schema = schemas[body["schema"]["$ref"].rpartition("/")[2]]
        examples = [example["value"] for example in body.get("examples", {}).values()]
        assert examples or not schema.get("required"), operation["operationId"]
        for example in examples:
            jsonschema.validate(example, {**body["schema"], "components": contract.document()["components"]})
            shown += 1
    assert shown > 15


def test_the_helper_that_checks_answers_can_fail(agent: Caster) -> None:
    answer = agent.get("whoami")
    good: dict[str, Any] = answer.json()
    contract.check("GET", "/v1/whoami", 200, answer.headers, good)
    with pytest.raises(jsonschema.ValidationError):
        contract.check("GET", "/v1/whoami", 200, answer.headers, {"data": {**good["data"], "extra": 1}})
    with pytest.raises(jsonschema.ValidationError):
        contract.check("GET", "/v1/whoami", 200, answer.headers, {"data": {**good["data"], "rings": "1"}})
    with pytest.raises(KeyError):
        contract.check("GET", "/v1/whoami", 401, answer.headers, good)
    with pytest.raises(AssertionError, match="does not know"):
        contract.check("GET", "/v1/whoami", 204, answer.headers, good)
    with pytest.raises(AssertionError, match="not in the document"):
        contract.check("GET", "/v1/nothing", 200, answer.headers, good)
