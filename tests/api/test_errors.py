"""The catalogue of errors: a closed list, and docs/errors.md is it."""

import io
from pathlib import Path

import pytest
from django.core.management import call_command

from leasehub.management.commands.errors_doc import catalogue
from leases.errors import Conflict
from tests import contract, wsgi

COMMITTED = Path(__file__).resolve().parent.parent.parent / "docs" / "errors.md"
# The table of codes of the API's contract; METHOD_NOT_ALLOWED and INTERNAL are HTTP's own.
CODES = {
    400: {"VALIDATION_ERROR"},
    401: {"UNAUTHENTICATED"},
    403: {"FORBIDDEN"},
    404: {"NOT_FOUND"},
    405: {"METHOD_NOT_ALLOWED"},
    409: {"CONFLICT", "STALE_TOKEN", "SATURATED", "VERSION_CONFLICT", "IN_PROGRESS"},
    410: {"LEASE_LOST", "CURSOR_EXPIRED"},
    413: {"PAYLOAD_TOO_LARGE"},
    415: {"UNSUPPORTED_MEDIA_TYPE"},
    422: {"UNSATISFIABLE", "IDEMPOTENCY_MISMATCH"},
    429: {"QUOTA_EXCEEDED"},
    500: {"INTERNAL"},
    503: {"UNAVAILABLE"},
}


def test_the_committed_catalogue_is_in_step() -> None:
    """Write it anew with: python manage.py errors_doc --file docs/errors.md"""
    printed = io.StringIO()
    call_command("errors_doc", stdout=printed)
    assert COMMITTED.read_text() == printed.getvalue()


def test_the_list_is_closed() -> None:
    for error in catalogue():
        assert error.code in CODES[error.status], error


def test_every_error_has_a_sentence_for_people() -> None:
    for error in catalogue():
        assert error.default_message().endswith("."), error
        assert "\n" not in error.default_message()


def test_the_document_names_no_code_that_is_not_in_the_catalogue() -> None:
    known = {(str(error.status), error.code) for error in catalogue()}
    for operation in contract.operations().values():
        for status, response in operation["responses"].items():
            if int(status) >= 400:
                assert {(status, code) for code in response["description"].split(", ")} <= known


def test_the_check_of_members_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"error": {"code": "NOT_FOUND", "message": "x", "holder": "somebody"}}
    with pytest.raises(AssertionError, match="does not know"):
        contract.check("GET", "/v1/leases/x", 404, {}, body)
    with pytest.raises(AssertionError, match="not in the catalogue"):
        contract.check("GET", "/v1/leases/x", 404, {}, {"error": {"code": "GONE", "message": "x"}})


def test_an_error_says_the_first_paragraph_of_its_docstring_unless_told_otherwise() -> None:
    assert "outsider" in (Conflict.__doc__ or "")
    assert Conflict().message == "The resource is taken."
    assert Conflict("Else.").message == "Else."


@pytest.mark.parametrize("address", ["/v1", "/v1/", "/v1/nothing", "/v1?x=1"])
@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.django_db
def test_who_asks_for_no_address_of_the_api_is_told_where_they_all_stand(method: str, address: str) -> None:
    answer = wsgi.call(method, address)
    assert (answer.status_code, answer.headers["Content-Type"]) == (404, "application/json")
    message = answer.json()["error"]["message"]
    assert answer.json() == {"error": {"code": "NOT_FOUND", "message": message}}
    assert "/v1/schema" in message
