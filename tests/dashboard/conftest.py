"""A person who is signed in, and what a page costs."""

import re

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from leasehub.identity import services as identity
from leasehub.identity.models import Organization
from tests.pools.conftest import declare

__all__ = ["declare"]
HOSTILE = "<b onclick=x>'\"&"
ESCAPED = "&lt;b onclick=x&gt;&#x27;&quot;&amp;"
MOST_QUERIES = 11


def person_of(organization: Organization, handle: str = "mara") -> Client:
    user = User.objects.create_user(f"{organization.name}-{handle}")
    identity.create_principal(organization=organization.pk, handle=handle, kind="human", user=user)
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def mara(organization: Organization) -> Client:
    return person_of(organization)


def page(client: Client, address: str, *, partial: bool = False) -> str:
    """The page, which took fewer queries than it may, and nothing inline."""
    with CaptureQueriesContext(connection) as captured:
        response = client.get(address, headers={"HX-Request": "true"} if partial else {})
    assert response.status_code == 200, address
    assert len(captured) <= MOST_QUERIES, [query["sql"] for query in captured]
    content = response.content.decode()
    assert ("<html" in content) is not partial
    for inline in (" style=", "<style", " onclick=x>", "javascript:"):
        assert inline not in content.replace(ESCAPED, "")
    return content


def without_tokens(content: bytes) -> bytes:
    """A page without the token of its forms, which is another one each time."""
    return re.sub(rb'name="csrfmiddlewaretoken" value="\w+"', b"", content)
