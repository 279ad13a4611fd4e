"""The admin's page: a superuser runs the check by a POST and finds the last report."""

from collections.abc import Callable

import pytest
from django.test import Client

from leasehub.events import feed
from leasehub.events.models import Inspection
from leasehub.management import inspections
from leases.models import Resource
from tests.admin.conftest import root, staff, told
from tests.conftest import Caster

__all__ = ["root", "staff"]
PAGE = "/admin/invariants/"


def test_opening_the_page_runs_nothing(root: Client, agent: Caster) -> None:
    page = root.get(PAGE)
    assert page.status_code == 200 and b"not asked for yet" in page.content
    assert not Inspection.objects.exists()
    assert PAGE.encode() in root.get("/admin/").content


def test_a_post_does_and_the_report_stays(root: Client, agent: Caster) -> None:
    agent.acquire("<b>held</b>")
    first = root.post(PAGE, follow=True)
    assert told(first) and told(first)[0].startswith("0 findings")
    assert b"Nothing was found" in first.content and b"asked for by root" in first.content
    Resource.objects.update(last_token=5)
    second = root.post(PAGE, follow=True)
    assert b"token_differs" in second.content and b"deploy/&lt;b&gt;held&lt;/b&gt;" in second.content
    assert root.get(PAGE).content.count(b"token_differs") == 1


def test_old_reports_go(root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspections, "KEPT", 2)
    for _ in range(4):
        root.post(PAGE)
    assert Inspection.objects.count() == 2


def test_too_much_is_left_to_the_command(root: Client, agent: Caster, monkeypatch: pytest.MonkeyPatch) -> None:
    agent.acquire()
    feed.stamp_all()
    monkeypatch.setattr(inspections, "MOST_EVENTS", 0)
    assert "manage.py check_invariants" in told(root.post(PAGE, follow=True))[0]
    assert not Inspection.objects.exists()


def test_one_runs_at_a_time(root: Client) -> None:
    with inspections._running:
        assert "runs already" in told(root.post(PAGE, follow=True))[0]


def test_it_is_for_superusers(staff: Callable[..., Client], agent: Caster) -> None:
    client = staff("leases.view_lease")
    assert client.get(PAGE).status_code == client.post(PAGE).status_code == 403
    assert b"invariants" not in client.get("/admin/").content
    assert Client().post(PAGE).status_code == 302
    assert not Inspection.objects.exists()
