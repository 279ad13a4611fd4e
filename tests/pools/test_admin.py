"""The operator's screens of pools."""

import io
import json
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from pools.models import CommandRun, Pool, Request, Slot
from tests.conftest import Caster
from tests.pools.conftest import Declare, ask, fails, look, slots


@pytest.fixture
def admin_client(operator: Caster) -> Client:
    user = User.objects.create_superuser("root", password="not-a-real-password")
    operator.principal.user = user
    operator.principal.save()
    client = Client()
    client.force_login(user)
    return client


def act(client: Client, model: str, action: str, *rows: Any, **fields: Any) -> Any:
    chosen = [str(row.pk) for row in rows]
    return client.post(f"/admin/pools/{model}/", {"action": action, "_selected_action": chosen, **fields}, follow=True)


def test_one_screen_shows_slots_queue_and_runs(agent: Caster, declare: Declare, admin_client: Client) -> None:
    pool = declare(slots=slots(1, region="eu"), provision="make-clean <b>")
    ask(agent)
    ask(agent, session="s", selector={"region": "eu"})
    fails(error="reset failed <script>")
    page = admin_client.get(f"/admin/pools/pool/{pool.pk}/change/").content.decode()
    assert "being prepared" in page
    assert "region=&quot;eu&quot;" in page
    assert "<script>alert" not in page and "reset failed &lt;script&gt;" in page
    for address in ("pool", "slot", "request", "commandrun"):
        assert admin_client.get(f"/admin/pools/{address}/").status_code == 200
    for row in (Slot.objects.get(), Request.objects.first(), CommandRun.objects.first()):
        assert row is not None
        name = row._meta.model_name
        assert admin_client.get(f"/admin/pools/{name}/{row.pk}/change/").status_code == 200


def test_a_run_shows_its_output_escaped(declare: Declare, agent: Caster, admin_client: Client) -> None:
    declare(slots=slots(1), provision="x")
    ask(agent)
    run = CommandRun.objects.get()
    results = [{"action": "provision", "exit_status": 0, "took_ms": 5, "output": "<b>bold</b>", "ended": "exited"}]
    CommandRun.objects.update(results=results)
    page = admin_client.get(f"/admin/pools/commandrun/{run.pk}/change/").content.decode()
    assert "&lt;b&gt;bold&lt;/b&gt;" in page and "<b>bold" not in page


def test_the_actions_call_the_services(declare: Declare, agent: Caster, admin_client: Client) -> None:
    pool = declare(slots=slots(1))
    slot = Slot.objects.get()
    answer = act(admin_client, "slot", "drain", slot, pool=pool.pk)
    assert answer.request["PATH_INFO"] == f"/admin/pools/pool/{pool.pk}/change/"
    waiter = ask(agent)
    assert waiter["state"] == "queued"
    act(admin_client, "slot", "undrain", slot)
    assert look(agent, waiter)["state"] == "ready"
    Slot.objects.update(is_broken=True)
    act(admin_client, "slot", "repair", slot)
    assert not Slot.objects.get().is_broken
    refused = act(admin_client, "request", "drop", Request.objects.get())
    assert "force-release their leases" in refused.content.decode()
    second = ask(agent)
    act(admin_client, "request", "drop", Request.objects.get(state="queued"))
    dropped = look(agent, second)
    assert (dropped["state"], dropped["reason"]) == ("dropped", "operator")
    assert look(agent, waiter)["state"] == "ready"


def test_reprovisioning_and_health_run_commands(declare: Declare, admin_client: Client) -> None:
    declare(slots=slots(2), reset="again", health="ask")
    one, two = Slot.objects.order_by("pk")
    act(admin_client, "slot", "reprovision", one)
    act(admin_client, "slot", "check_health", two)
    assert list(CommandRun.objects.order_by("pk").values_list("purpose", flat=True)) == ["reprovision", "health"]


def test_a_pool_file_is_uploaded(declare: Declare, operator: Caster, admin_client: Client) -> None:
    file = io.BytesIO(json.dumps({"name": "uploaded", "slots": slots(3)}).encode())
    file.name = "pool.json"
    fields = {"organization": operator.principal.organization_id, "name": "", "text": "", "file": file}
    assert admin_client.post("/admin/pools/pool/add/", fields).status_code == 302
    assert Pool.objects.get().slots.count() == 3


def test_what_is_wrong_with_a_pool_file_is_shown(operator: Caster, admin_client: Client) -> None:
    for text, shown in (("{", "not valid JSON"), ('{"slots": []}', "non-empty"), ("[]", "JSON object")):
        fields = {"organization": operator.principal.organization_id, "name": "", "text": text}
        assert shown in admin_client.post("/admin/pools/pool/add/", fields).content.decode()
    assert not Pool.objects.exists()


def test_who_may_only_look_changes_nothing(declare: Declare, db: None) -> None:
    pool = declare(slots=slots(1))
    user = User.objects.create_user("looker", password="not-a-real-password", is_staff=True)
    user.user_permissions.add(*Permission.objects.filter(codename__in=["view_pool", "view_slot", "view_request"]))
    client = Client()
    client.force_login(user)
    page = client.get(f"/admin/pools/pool/{pool.pk}/change/")
    assert page.status_code == 200
    assert "Drain" not in page.content.decode()
    act(client, "slot", "drain", Slot.objects.get())
    assert not Slot.objects.get().is_draining
    assert client.get("/admin/pools/pool/add/").status_code == 403
    assert client.post(f"/admin/pools/pool/{pool.pk}/delete/", {"post": "yes"}).status_code == 403
