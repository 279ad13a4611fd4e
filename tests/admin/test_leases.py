from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from leasehub.admin import BoundedPaginator
from leasehub.events.models import Event
from leasehub.identity.models import Principal
from leases.models import Resource
from tests.admin.conftest import MANY, act, plans, reads_everything, scans, told
from tests.conftest import Caster, error_of

LEASES = "leases/lease"


@pytest.fixture
def lease(agent: Caster) -> Resource:
    agent.acquire(holder="muse-04", purpose="roll out", payload={"build": 7})
    return Resource.objects.get(lease_id__isnull=False)


def named(lease: Resource) -> str:
    assert lease.lease_id is not None
    return f"{lease.organization_id}:{lease.lease_id.hex}:{lease.last_token}"


def force(client: Client, *leases: Resource, **form: Any) -> Any:
    confirmed = {"confirmed": "yes", "lease": [named(lease) for lease in leases], "reason": "it hangs", **form}
    return act(client, LEASES, "force_release", *(lease.pk for lease in leases), **confirmed)


def test_a_live_lease_is_listed_with_its_time_left(root: Client, lease: Resource):
    text = root.get(f"/admin/{LEASES}/").content.decode()
    assert "deploy/checkout" in text and "muse-04" in text and str(lease.last_token) in text
    detail = root.get(f"/admin/{LEASES}/{lease.pk}/change/").content.decode()
    assert "held" in detail and "&quot;build&quot;: 7" in detail and "Force-release…" in detail


def test_one_that_ran_out_is_unknown_until_it_is_reaped(root: Client, lease: Resource, clock: Any):
    clock.move(minutes=2)
    assert "ran out" in root.get(f"/admin/{LEASES}/?state=unknown").content.decode()
    assert "checkout" not in root.get(f"/admin/{LEASES}/?state=held").content.decode()
    act(root, LEASES, "reap", lease.pk)
    assert "checkout" not in root.get(f"/admin/{LEASES}/").content.decode()
    assert Event.objects.get(type="lease.reaped").actor is None


def test_a_live_lease_is_not_reaped(root: Client, lease: Resource):
    assert told(act(root, LEASES, "reap", lease.pk)) == ["0 reaped.", "1 not: they live, or ended already."]
    assert not Event.objects.filter(type="lease.reaped").exists()


def test_force_release_asks_for_a_reason_first(root: Client, lease: Resource, agent: Caster):
    asked = act(root, LEASES, "force_release", lease.pk).content.decode()
    assert "Reason" in asked and named(lease) in asked
    assert "This field is required" in force(root, lease, reason="").content.decode()
    assert not Event.objects.filter(type="lease.force_released").exists()
    assert told(force(root, lease)) == ["1 force-released."]
    heartbeat = agent.post(f"leases/lease_{lease.lease_id.hex}/heartbeat", {"fencing_token": lease.last_token})
    assert error_of(heartbeat)["ended_by"] == "force_released"


def test_the_reason_names_the_user_when_no_principal_stands_for_it(root: Client, lease: Resource):
    force(root, lease)
    event = Event.objects.get(type="lease.force_released")
    assert (event.actor, event.data["reason"]) == (None, "it hangs (admin user root)")


def test_the_principal_linked_to_the_user_is_the_actor_in_its_own_organization(
    root: Client, lease: Resource, agent: Caster, stranger: Caster
):
    user = User.objects.get(username="root")
    Principal.objects.filter(pk=stranger.principal.pk).update(user=user)
    force(root, lease)
    # Another organization's principal is not for this one to see.
    assert Event.objects.get(type="lease.force_released").actor is None
    Principal.objects.filter(pk=stranger.principal.pk).update(user=None)
    Principal.objects.filter(pk=agent.principal.pk).update(user=user)
    agent.acquire()
    lease.refresh_from_db()
    force(root, lease)
    event = Event.objects.filter(type="lease.force_released").latest("pk")
    assert (event.actor, event.data["reason"]) == (agent.principal, "it hangs")


def test_only_the_acquisition_that_the_page_showed_is_ended(root: Client, lease: Resource, agent: Caster):
    """The resource changed hands while the operator was writing the reason."""
    shown = named(lease)
    agent.acquire(holder="muse-04")
    assert told(force(root, lease, lease=shown)) == ["1 had ended already."]
    lease.refresh_from_db()
    assert lease.lease_id is not None


@pytest.mark.parametrize("forged", ["", "x", "1:2:3", "9" * 19 + ":" + "a" * 32 + ":1"])
def test_a_forged_form_ends_nothing(root: Client, lease: Resource, forged: str):
    assert force(root, lease, lease=forged).status_code == 200
    assert not Event.objects.filter(type="lease.force_released").exists()


def test_leases_and_resources_are_read_only(root: Client, lease: Resource):
    for page in ("lease", "resource"):
        assert root.get(f"/admin/leases/{page}/add/").status_code == 403
        assert root.post(f"/admin/leases/{page}/{lease.pk}/change/", {"holder": "me"}).status_code == 403
        assert root.post(f"/admin/leases/{page}/{lease.pk}/delete/", {"post": "yes"}).status_code == 403


@pytest.mark.parametrize("given", [(), ("leases.reap_lease",), ("leases.force_release_lease",)])
def test_staff_may_only_what_they_were_given(staff: Any, lease: Resource, clock: Any, given: tuple[str, ...]):
    client = staff("leases.view_lease", *given)
    force(client, lease)
    assert Event.objects.filter(type="lease.force_released").exists() is ("leases.force_release_lease" in given)
    clock.move(minutes=2)
    act(client, LEASES, "reap", lease.pk)
    assert Event.objects.filter(type="lease.reaped").exists() is ("leases.reap_lease" in given)


def test_staff_without_permission_see_nothing(staff: Any, lease: Resource):
    client = staff()
    for page in ("leases/lease", "leases/resource", "events/event", "identity/apikey", "identity/principal"):
        assert client.get(f"/admin/{page}/").status_code == 403


@pytest.mark.parametrize("search", ["lease_{id}", "deploy/checkout", "muse-04"])
def test_a_lease_is_found_by_its_id_its_resource_or_its_holder(
    root: Client, lease: Resource, search: str, agent: Caster
):
    agent.acquire("other", holder="else")
    term = search.format(id=lease.lease_id.hex)
    text = root.get(f"/admin/{LEASES}/", {"q": term}).content.decode()
    assert "deploy/checkout" in text and "deploy/other" not in text


def test_lease_resource_and_events_lead_to_each_other(root: Client, lease: Resource):
    page = root.get(f"/admin/{LEASES}/{lease.pk}/change/").content.decode()
    assert f"/admin/leases/resource/{lease.pk}/change/" in page
    assert f"/admin/events/event/?q=lease_{lease.lease_id.hex}" in page
    page = root.get(f"/admin/leases/resource/{lease.pk}/change/").content.decode()
    assert f"/admin/leases/lease/{lease.pk}/change/" in page
    assert "/admin/events/event/?q=deploy%2Fcheckout" in page


def test_the_lists_follow_indexes(root: Client, agent: Caster, many: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(BoundedPaginator, "MOST", MANY // 100)
    lease = Resource.objects.filter(lease_id__isnull=False).first()
    for query in ("", "?p=2"):
        for found in plans(root, f"{LEASES}/{query}"):
            assert not reads_everything(found), f"{query}\n{found}"
    for query in ("?state=unknown", f"?q=lease_{lease.lease_id.hex}", "?q=t/service-7"):
        for found in plans(root, f"{LEASES}/{query}"):
            assert not scans(found), f"{query}\n{found}"
