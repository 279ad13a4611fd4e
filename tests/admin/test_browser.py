"""Every screen of the admin in a browser: nothing that the policy refuses, nothing wider than a phone."""

from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User

from leasehub.identity import services as identity
from tests.browser import SIZES, keep, no_wider_than_the_screen, open_page
from tests.conftest import Caster, cast

PASSWORD = "correct-horse-battery"

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def root(transactional_db: None) -> User:
    """An operator, and something to be seen at every screen."""
    organization = identity.create_organization(name="acme")
    agent, operator = cast(organization, "agent"), cast(organization, "operator", (1, 2, 3))
    lease = agent.acquire("feature/a-branch-with-a-long-name").json()["data"]
    sent = {"to_principal": "operator", "subject_id": "release-41", "lease_ids": [lease["lease_id"]]}
    assert agent.post("handoffs", sent).status_code == 201
    agent.put("checkpoints/release-41/task_state", {"state": {"hosts": ["web-07"]}})
    fill_pools_and_queues(agent, operator)
    return User.objects.create_superuser("root", password=PASSWORD)


def fill_pools_and_queues(agent: Caster, operator: Caster) -> None:
    operator.put("pools/e2e", {"slots": [{"id": number} for number in range(1, 4)], "provision": "true"})
    for _ in range(4):
        agent.post("pools/e2e/requests", {"mode": "async"})
    agent.post("queues/thumbnails/tasks", {"tasks": [{"payload": number} for number in range(3)]})
    agent.post("leases/hot-claim", {"queue": "thumbnails"})


def test_every_screen_of_the_admin_is_in_order_and_kept_as_a_picture(
    root: User, live_server: Any, browser: Any
) -> None:
    page, complaints = open_page(browser, live_server.url)
    page.goto("/admin/")
    page.get_by_label("Username").fill("root")
    page.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    page.get_by_text("Operate the server").wait_for()
    look_at(page, "index")
    shown = 0
    for model in admin.site._registry:
        address = f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
        page.goto(address)
        look_at(page, f"{model._meta.model_name}-list")
        first = page.locator("#result_list tbody th a")
        if first.count():
            page.goto(first.first.get_attribute("href"))
            look_at(page, f"{model._meta.model_name}-one")
            shown += 1
    assert shown >= 13
    assert complaints == []


def look_at(page: Any, name: str) -> None:
    for size, viewport in SIZES.items():
        page.set_viewport_size(viewport)
        assert no_wider_than_the_screen(page), (name, size)
        keep(page, f"admin-{name}", size)
