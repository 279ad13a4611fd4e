from types import SimpleNamespace

from django.contrib import admin
from django.contrib.auth.models import User
from django.http import HttpRequest
from django.test import Client

from leasehub.identity.admin import PrincipalAdmin
from leasehub.identity.models import Organization, Principal, RememberedAnswer
from tests.admin.conftest import act
from tests.conftest import Caster


def test_an_organization_is_made_and_never_renamed_or_deleted(root: Client):
    assert root.post("/admin/identity/organization/add/", {"name": "globex"}).status_code == 302
    made = Organization.objects.get(name="globex")
    assert root.post(f"/admin/identity/organization/{made.pk}/change/", {"name": "initech"}).status_code == 403
    assert root.post(f"/admin/identity/organization/{made.pk}/delete/", {"post": "yes"}).status_code == 403
    assert Organization.objects.filter(name="globex").exists()


def test_a_name_is_taken_once(root: Client, organization: Organization):
    response = root.post("/admin/identity/organization/add/", {"name": organization.name})
    assert "already exists" in response.content.decode()
    assert Organization.objects.filter(name=organization.name).count() == 1


def test_what_only_the_service_refuses_is_a_message(root: Client):
    response = root.post("/admin/identity/organization/add/", {"name": "two\u2028lines"}, follow=True)
    assert "printable" in response.content.decode()


def test_a_principal_is_made_and_keeps_its_handle(root: Client, organization: Organization):
    form = {"organization": organization.pk, "handle": "muse", "kind": "agent", "display_name": ""}
    assert root.post("/admin/identity/principal/add/", form).status_code == 302
    muse = Principal.objects.get(handle="muse")
    user = User.objects.create_user("someone")
    changed = {"handle": "other", "kind": "human", "display_name": "Muse", "user": user.pk}
    assert root.post(f"/admin/identity/principal/{muse.pk}/change/", changed).status_code == 302
    muse.refresh_from_db()
    assert (muse.handle, muse.kind, muse.display_name, muse.user) == ("muse", "agent", "Muse", user)


def test_a_handle_must_be_legal_and_new(root: Client, agent: Caster):
    form = {"organization": agent.principal.organization_id, "kind": "agent", "handle": "no spaces"}
    assert "must match" in root.post("/admin/identity/principal/add/", form).content.decode()
    again = {**form, "handle": agent.principal.handle}
    assert "already exists" in root.post("/admin/identity/principal/add/", again).content.decode()


def test_saving_does_not_bring_a_principal_back_that_was_retired_meanwhile(root: Client, agent: Caster):
    """Between reading the row and writing it: what the form does not show is not written."""
    stale = Principal.objects.get(pk=agent.principal.pk)
    act(root, "identity/principal", "retire", stale.pk)
    stale.display_name = "Renamed"
    page = PrincipalAdmin(Principal, admin.site)
    page.save_model(HttpRequest(), stale, SimpleNamespace(changed_data=["display_name"]), change=True)
    agent.principal.refresh_from_db()
    assert agent.principal.display_name == "Renamed" and agent.principal.retired_at is not None


def test_remembered_answers_are_nobodys_to_see(root: Client):
    root.get("/admin/")
    assert admin.site.is_registered(Organization)
    assert not admin.site.is_registered(RememberedAnswer)
