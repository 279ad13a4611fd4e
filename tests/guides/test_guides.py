"""The guides for agents: served with this host's name, and in step with the API."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client
from jsonschema import Draft202012Validator

from leasehub.events.types import TYPES
from leasehub.guides.views import GUIDES
from leasehub.management.commands.errors_doc import catalogue
from tests import contract, wsgi

pytestmark = pytest.mark.django_db
ADDRESSES = ("/llms.txt", *(f"/docs/{name}.md" for name in GUIDES))
TOLD = {"leases", "fence", "explain", "queues", "tasks", "pools", "handoffs", "checkpoints"}
# Of the environment and of A2A, not of the API.
OTHER_WORDS = {"LEASEHUB_TOKEN", "SendMessage", "Authorization", "Idempotency-Key", "X-Request-Id"}
MENTION = re.compile(r"\b(GET|POST|PUT|DELETE) (?:https?://[^/\s]+)?(/v1/[^\s`,;:)]*)")


def text_of(address: str) -> str:
    response = Client(headers={"host": "hub.example.org"}).get(address)
    assert response.status_code == 200
    return response.content.decode()


@pytest.fixture
def guides() -> dict[str, str]:
    return {address: text_of(address) for address in ADDRESSES}


def known_words() -> set[str]:
    """Every name that the API has for something."""
    words = {name for error in catalogue() for name in (error.code, *error.members)} | set(TYPES)
    for operation in contract.operations().values():
        words.add(operation["operationId"])
        words |= {parameter["name"] for parameter in operation.get("parameters", [])}
    for schema in names_in(contract.document()["components"]["schemas"]):
        words.add(schema)
    return words


def names_in(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for item in schema:
            yield from names_in(item)
    elif isinstance(schema, dict):
        if isinstance(properties := schema.get("properties"), dict):
            yield from properties
        yield from (value for value in schema.get("enum", []) if isinstance(value, str))
        for value in schema.values():
            yield from names_in(value)


def mentions(text: str) -> set[tuple[str, str]]:
    return {(method, path) for method, path in MENTION.findall(text)}


def test_every_operation_that_is_mentioned_exists(guides: dict[str, str]) -> None:
    for address, text in guides.items():
        assert mentions(text) <= set(contract.operations()), address


def test_every_operation_of_leases_queues_pools_and_handoffs_is_mentioned(guides: dict[str, str]) -> None:
    wanted = {
        operation for operation in contract.operations() if operation[1].removeprefix("/v1/").split("/")[0] in TOLD
    }
    assert len(wanted) > 30
    assert wanted <= {mention for text in guides.values() for mention in mentions(text)}


def test_every_word_in_code_is_one_of_the_api(guides: dict[str, str]) -> None:
    known = known_words() | OTHER_WORDS
    assert not {"nothing_like_that", "NOTHING"} & known
    for address, text in guides.items():
        prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        words = {word for word in re.findall(r"`([^`]+)`", prose) if re.fullmatch(r"[A-Za-z_]+(-[A-Za-z]+)*", word)}
        assert words - known == set(), address


def test_every_example_is_what_its_operation_takes(guides: dict[str, str]) -> None:
    checked = 0
    for address, text in guides.items():
        for block in re.finditer(r"```json\n(.*?)```", text, flags=re.DOTALL):
            operation = MENTION.findall(text[: block.start()])[-1]
            body = contract.operations()[operation]["requestBody"]["content"]["application/json"]["schema"]
            assert list(wrong_in(body, json.loads(block[1]))) == [], (address, block[1])
            assert list(wrong_in(body, {"nothing_like_that": 1})) != []
            checked += 1
    assert checked >= 7


def wrong_in(schema: Any, example: Any) -> Iterator[str]:
    validator = Draft202012Validator({**schema, "components": contract.document()["components"]})
    return (error.message for error in validator.iter_errors(example))


def test_the_glossary_has_every_error_and_no_other(guides: dict[str, str]) -> None:
    rows = re.findall(r"^\| (\d{3}) \| `([A-Z_]+)` \|", guides["/docs/glossary.md"], flags=re.MULTILINE)
    assert {(int(status), code) for status, code in rows} == {(error.status, error.code) for error in catalogue()}
    assert len(rows) == len(set(rows))


def test_every_table_of_refusals_has_codes_of_their_status(guides: dict[str, str]) -> None:
    known = {(error.status, error.code) for error in catalogue()}
    for address, text in guides.items():
        for status, code in re.findall(r"\b([45]\d\d) `([A-Z_]+)`", text):
            assert (int(status), code) in known, (address, status, code)


def test_every_link_leads_somewhere(guides: dict[str, str]) -> None:
    links = {link for text in guides.values() for link in re.findall(r"\]\(([^)]+)\)", text)}
    assert len(links) > 8
    for link in links:
        assert link.startswith("http://hub.example.org/")
        answer = wsgi.call("GET", link.removeprefix("http://hub.example.org"), headers={"Host": "hub.example.org"})
        assert answer.status_code == 200, link


def test_the_overview_has_the_form_of_llms_txt(guides: dict[str, str]) -> None:
    lines = guides["/llms.txt"].splitlines()
    assert lines[0] == "# LeaseHub"
    assert lines[2].startswith("> ")
    assert [line for line in lines if line.startswith("## ")] == ["## Guides", "## Reference", "## Optional"]
    listed = lines[lines.index("## Guides") :]
    assert all(re.match(r"(## .+|- \[.+\]\(.+\)(: .+)?|)$", line) for line in listed)


@pytest.mark.parametrize("address", [*ADDRESSES, "/.well-known/agent-card.json"])
def test_a_page_is_public_and_told_from_a_cached_one(address: str) -> None:
    client = Client()
    first = client.get(address)
    assert first.status_code == 200
    assert first.headers["Cache-Control"].startswith("public, max-age=")
    assert first.headers["Content-Length"] == str(len(first.content))
    assert "Set-Cookie" not in first.headers and "Vary" not in first.headers
    again = client.get(address, headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", first.headers["ETag"])
    head = client.head(address)
    assert (head.status_code, head.content, head.headers["Content-Length"]) == (200, b"", str(len(first.content)))
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        # As from anywhere: without the cookie that Django's pages ask for.
        refused = wsgi.call(method, address, b"{}")
        assert (refused.status_code, refused.headers["Allow"]) == (405, "GET, HEAD"), method
        assert refused.json()["error"]["code"] == "METHOD_NOT_ALLOWED"


def test_the_address_is_the_one_that_was_asked_and_only_if_it_is_allowed(settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["hub.example.org"]
    named = Client(headers={"host": "hub.example.org", "X-Forwarded-Host": "evil.example"}).get("/llms.txt")
    assert b"http://hub.example.org/v1" in named.content
    assert b"evil" not in named.content
    for host in ("evil.example", "hub.example.org@evil.example", "hub.example.org)[x](http://evil.example"):
        refused = Client(headers={"host": host}).get("/llms.txt")
        assert refused.status_code == 400
        assert b"evil" not in refused.content
    settings.ALLOWED_HOSTS = ["*"]
    for host in ("<b>", "a b", "x/../y"):
        assert Client(headers={"host": host}).get("/docs/leases.md").status_code == 400


@pytest.mark.parametrize("name", ["nothing", "README", "..%2f..%2fpyproject", "a2a", "llms"])
def test_there_are_no_other_guides(name: str) -> None:
    assert wsgi.call("GET", f"/docs/{name}.md", headers={"Host": "hub"}).status_code == 404
