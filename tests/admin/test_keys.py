import re
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.sessions.models import Session
from django.test import Client

from leasehub.identity.authentication import authenticate
from leasehub.identity.models import ApiKey
from tests.admin.conftest import act, told
from tests.conftest import Caster

SECRET = re.compile(r"lh_[0-9A-Za-z]{8}_[0-9A-Za-z]{49}")
KEYS = "identity/apikey"


def make(client: Client, agent: Caster, **changed: Any) -> Any:
    form = {
        "principal": agent.principal.pk,
        "label": "made here",
        "observes": "on",
        "acts": "on",
        "holder_pattern": "^muse-.*$",
        **changed,
    }
    return client.post(f"/admin/{KEYS}/add/", {name: value for name, value in form.items() if value is not None})


def test_the_secret_is_in_the_answer_and_nowhere_else(root: Client, agent: Caster):
    response = make(root, agent)
    (secret,) = SECRET.findall(response.content.decode())
    assert response.status_code == 200
    assert "no-store" in response.headers["Cache-Control"]
    key = ApiKey.objects.get(label="made here")
    for page in (f"{KEYS}/", f"{KEYS}/{key.pk}/change/", f"{KEYS}/{key.pk}/history/", ""):
        assert secret not in root.get(f"/admin/{page}").content.decode()
    assert not any(secret in str(session.get_decoded()) for session in Session.objects.all())
    assert secret not in str(root.cookies)
    assert not any(secret in f"{entry.object_repr}{entry.change_message}" for entry in LogEntry.objects.all())


def test_the_key_works_and_carries_what_was_chosen(root: Client, agent: Caster):
    (secret,) = SECRET.findall(make(root, agent, acts=None, operates="on").content.decode())
    caller = authenticate(f"Bearer {secret}")
    assert (caller.principal, caller.rings, caller.holder_pattern) == (agent.principal.pk, {1, 3}, "^muse-.*$")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"holder_pattern": "muse.*"}, "must be anchored"),
        ({"holder_pattern": "^(muse$"}, "must be a regular expression"),
        ({"observes": None, "acts": None}, "at least one ring"),
        ({"principal": "999999"}, "valid choice"),
        ({"expires_at_0": "2020-01-01", "expires_at_1": "00:00:00"}, "expired"),
    ],
)
def test_a_key_that_could_not_work_is_refused_on_the_form(root: Client, agent: Caster, wrong: Any, says: str):
    response = make(root, agent, **wrong)
    text = response.content.decode()
    if response.status_code == 302:
        text = root.get(response.url).content.decode()
    assert says in text
    assert not ApiKey.objects.filter(label="made here").exists()


def test_a_retired_principal_gets_no_key(root: Client, agent: Caster):
    act(root, "identity/principal", "retire", agent.principal.pk)
    assert "retired" in make(root, agent).content.decode()
    assert agent.get("whoami").status_code == 401


def test_what_a_key_may_do_cannot_be_edited(root: Client, agent: Caster):
    key = agent.principal.keys.get()
    response = root.post(f"/admin/{KEYS}/{key.pk}/change/", {"operates": "on", "holder_pattern": "^.*$"})
    assert response.status_code == 403
    assert root.post(f"/admin/{KEYS}/{key.pk}/delete/", {"post": "yes"}).status_code == 403
    key.refresh_from_db()
    assert not key.operates


def test_revoking_holds_at_the_next_call(root: Client, agent: Caster):
    assert agent.acquire().status_code == 201
    act(root, KEYS, "revoke", agent.principal.keys.get().pk)
    assert agent.acquire("another").status_code == 401


def test_rotating_asks_for_the_overlap_and_shows_the_new_secret_once(root: Client, agent: Caster):
    old = agent.principal.keys.get()
    asked = act(root, KEYS, "rotate", old.pk)
    assert "works for" in asked.content.decode() and not SECRET.search(asked.content.decode())
    response = act(root, KEYS, "rotate", old.pk, confirmed="yes", overlap_seconds="0")
    (secret,) = SECRET.findall(response.content.decode())
    assert agent.get("whoami").status_code == 401
    assert authenticate(f"Bearer {secret}").principal == agent.principal.pk
    assert ApiKey.objects.get(rotated_from=old).rings == old.rings


def test_a_key_that_works_no_more_is_not_rotated(root: Client, agent: Caster):
    key = agent.principal.keys.get()
    act(root, KEYS, "revoke", key.pk)
    response = act(root, KEYS, "rotate", key.pk, confirmed="yes", overlap_seconds="0")
    assert "works no more" in told(response)[0]


def test_staff_may_only_what_they_were_given(staff: Any, agent: Caster):
    client = staff("identity.view_apikey")
    assert client.get(f"/admin/{KEYS}/").status_code == 200
    assert client.get(f"/admin/{KEYS}/add/").status_code == 403
    for action in ("revoke", "rotate"):
        act(client, KEYS, action, agent.principal.keys.get().pk, confirmed="yes", overlap_seconds="0")
    assert agent.get("whoami").status_code == 200
    assert ApiKey.objects.filter(rotated_from__isnull=False).count() == 0
