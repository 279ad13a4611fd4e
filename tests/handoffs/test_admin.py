from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from handoffs.models import Checkpoint, Handoff
from tests.conftest import Caster
from tests.handoffs.conftest import events_of, sent, show

LISTS = ("/admin/handoffs/handoff/", "/admin/handoffs/checkpoint/")
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def admin(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


def test_handoffs_and_checkpoints_are_shown_and_cannot_be_edited(
    admin: Client, agent: Caster, teammate: Caster, lease: Any
) -> None:
    agent.put("checkpoints/deploy-41/k", {"state": {"text": HOSTILE}})
    handoff_id = sent(agent, teammate, message=HOSTILE, lease_ids=[lease["lease_id"]])
    pages = {
        LISTS[0]: Handoff.objects.get().pk,
        LISTS[1]: Checkpoint.objects.get().pk,
    }
    for listing, pk in pages.items():
        assert b"deploy-41" in admin.get(listing).content
        page = admin.get(f"{listing}{pk}/change/").content
        assert HOSTILE.encode() not in page
        assert b"&lt;script&gt;" in page
        assert b'name="_save"' not in page
        assert admin.post(f"{listing}{pk}/change/", {"subject_id": "x"}).status_code == 403
        assert admin.post(f"{listing}{pk}/delete/").status_code == 403
        assert admin.get(f"{listing}add/").status_code == 403
    assert handoff_id.encode() in admin.get(f"{LISTS[0]}{pages[LISTS[0]]}/change/").content
    assert b"deploy-41" in admin.get(f"{LISTS[0]}?q={handoff_id}").content
    assert b"deploy-41" in admin.get(f"{LISTS[0]}?q=teammate").content
    assert b"deploy-41" not in admin.get(f"{LISTS[0]}?q=nobody").content


def test_withdrawing_wants_a_reason_and_is_recorded(admin: Client, agent: Caster, teammate: Caster) -> None:
    handoff_id = sent(agent, teammate)
    chosen = {"action": "withdraw", "_selected_action": [Handoff.objects.get().pk]}
    asked = admin.post(LISTS[0], chosen)
    assert b"deploy-41" in asked.content
    assert show(agent, handoff_id)["status"] == "pending"
    admin.post(LISTS[0], chosen | {"confirmed": "yes", "reason": ""})
    assert show(agent, handoff_id)["status"] == "pending"
    admin.post(LISTS[0], chosen | {"confirmed": "yes", "reason": "stuck"})
    shown = show(agent, handoff_id)
    assert (shown["status"], shown["reason"]) == ("withdrawn", "stuck (admin user root)")
    assert len(events_of(agent, "handoff.withdrawn")) == 1


def test_withdrawing_is_for_whoever_was_given_it(agent: Caster, teammate: Caster) -> None:
    user = User.objects.create_user("viewer", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_handoff"))
    viewer = Client()
    viewer.force_login(user)
    handoff_id = sent(agent, teammate)
    chosen = {"action": "withdraw", "_selected_action": [Handoff.objects.get().pk]}
    assert viewer.get(LISTS[0]).status_code == 200
    viewer.post(LISTS[0], chosen | {"confirmed": "yes", "reason": "x"})
    assert show(agent, handoff_id)["status"] == "pending"
    assert viewer.get(LISTS[1]).status_code == 403
