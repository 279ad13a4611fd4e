from typing import Any

import pytest
from django.db import connection
from django.test import Client

from leasehub.admin import BoundedPaginator
from leasehub.events import feed, queries
from leasehub.events.models import Event
from leasehub.events.types import COMMON_TYPES, TYPES
from tests.admin.conftest import MANY, plan, plans, reads_everything, scans
from tests.conftest import Caster

EVENTS = "events/event/"


def shown(client: Client, **query: str) -> list[str]:
    response = client.get(f"/admin/{EVENTS}", query)
    return [f"{event.type} {event.resource_id}" for event in response.context["cl"].result_list]


@pytest.fixture
def story(agent: Caster, stranger: Caster) -> dict[str, Any]:
    first = agent.acquire("checkout").json()["data"]
    agent.delete(f"leases/{first['lease_id']}")
    agent.acquire("checkout-two")
    agent.acquire("a/b", resource_type="c")
    stranger.acquire("checkout")
    return first


def test_the_newest_event_comes_first(root: Client, story: Any):
    assert shown(root) == [
        "lease.acquired checkout",
        "lease.acquired a/b",
        "lease.acquired checkout-two",
        "lease.released checkout",
        "lease.acquired checkout",
    ]


def test_filters(root: Client, story: Any, stranger: Caster):
    assert shown(root, type="lease.released") == ["lease.released checkout"]
    assert shown(root, type="lease.force_released") == []
    feed.stamp_all()
    assert shown(root, organization=str(stranger.principal.organization_id)) == ["lease.acquired checkout"]
    assert shown(root, organization="x") == []


def test_search(root: Client, story: Any):
    assert shown(root, q=story["lease_id"]) == ["lease.released checkout", "lease.acquired checkout"]
    assert len(shown(root, q="deploy/checkout")) == 3
    assert len(shown(root, q="deploy/checkout*")) == 4
    assert shown(root, q="c/a/b") == ["lease.acquired a/b"]
    assert shown(root, q="c/a*") == ["lease.acquired a/b"]
    assert shown(root, q="no such thing") == []


def test_the_successor_of_a_lease_belongs_to_its_story(root: Client, agent: Caster):
    first = agent.acquire().json()["data"]
    agent.acquire()
    assert len(shown(root, q=first["lease_id"])) == 2


def test_time(root: Client, agent: Caster, clock: Any):
    agent.acquire("old")
    clock.move(hours=2)
    agent.acquire("new")
    assert shown(root, since="hour") == ["lease.acquired new"]
    assert shown(root, since="day") == ["lease.acquired new", "lease.acquired old"]


def test_time_is_found_by_halving(root: Client, agent: Caster, clock: Any):
    times = []
    for turn in range(9):
        agent.acquire(f"r{turn}")
        times.append(Event.objects.latest("pk"))
        clock.move(minutes=1)
    for event in times:
        assert Event.objects.filter(pk__gte=queries.first_since(event.at)).earliest("pk") == event
    assert queries.first_since(clock.now()) == times[-1].pk + 1


def test_an_event_shows_everything_and_is_read_only(root: Client, story: Any):
    event = Event.objects.earliest("pk")
    page = root.get(f"/admin/{EVENTS}{event.pk}/change/").content.decode()
    assert f"evt_{event.event_id.hex}" in page and story["lease_id"] in page and "ttl_seconds" in page
    assert root.get(f"/admin/{EVENTS}add/").status_code == 403
    assert root.post(f"/admin/{EVENTS}{event.pk}/change/", {"type": "x"}).status_code == 403
    assert root.post(f"/admin/{EVENTS}{event.pk}/delete/", {"post": "yes"}).status_code == 403


def test_nothing_is_counted_beyond_the_pages(root: Client, story: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(BoundedPaginator, "MOST", 3)
    response = root.get(f"/admin/{EVENTS}")
    assert response.context["cl"].result_count == 3
    assert "the first 3 events; there are more" in " ".join(response.content.decode().split())


# Pages that walk back from the newest event and stop when they are full, and pages that go straight to what they show.
WALKS = ("", "?p=3", "?type=lease.acquired", "?since=hour&type=lease.released")
FINDS = ("?type=lease.force_released", "?q=lease_00000000000000000000000000000007", "?q=t/service-7", "?q=t/none*")


def test_the_pages_follow_indexes(root: Client, many: None, agent: Caster, monkeypatch: pytest.MonkeyPatch):
    # In proportion to the number of rows here, so that planners choose as they do for millions.
    monkeypatch.setattr(BoundedPaginator, "MOST", MANY // 100)
    organization = f"organization={agent.principal.organization_id}"
    for query in (*WALKS, f"?{organization}", f"?{organization}&type=lease.acquired"):
        for found in plans(root, EVENTS + query):
            assert not reads_everything(found), f"{query}\n{found}"
    for query in (*FINDS, f"?{organization}&type=lease.force_released"):
        for found in plans(root, EVENTS + query):
            assert not scans(found), f"{query}\n{found}"


def test_a_scan_would_be_noticed(many: None):
    assert scans(plan("SELECT * FROM events_event WHERE holder = 'nobody'"))
    assert reads_everything(plan("SELECT * FROM events_event ORDER BY holder LIMIT 50"))


def test_a_rare_type_has_an_index(many: None):
    rare = next(type for type in TYPES if type not in COMMON_TYPES)
    found = Event.objects.filter(queries.of_type(rare)).order_by("-pk")[:50]
    with connection.cursor() as cursor:
        sql, parameters = found.query.sql_with_params()
        cursor.execute(f"EXPLAIN {'' if connection.vendor == 'postgresql' else 'QUERY PLAN '}{sql}", parameters)
        assert "event_by_rare_type" in str(cursor.fetchall())
