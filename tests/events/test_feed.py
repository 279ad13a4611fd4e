"""GET /v1/events: cursors, filters, and what is no cursor any more."""

from typing import Any

import pytest

from leasehub.events.models import Event, Feed
from tests.conftest import Caster, error_of
from tests.events.conftest import page, tail, types


def test_the_tail_is_where_only_what_comes_is_still_to_be_read(agent: Caster) -> None:
    agent.acquire("old")
    begun = page(agent, "after=tail")
    assert begun == {"events": [], "next": None, "cursor": "1"}
    agent.acquire("new")
    (event,) = page(agent, f"after={begun['cursor']}")["events"]
    assert (event["position"], event["resource_id"]) == (2, "new")


def test_the_tail_of_an_organization_without_events_is_zero(agent: Caster) -> None:
    assert page(agent, "after=tail")["cursor"] == "0"


def test_pages_hold_every_position_once(agent: Caster) -> None:
    for number in range(7):
        agent.acquire(str(number))
    seen, cursor = [], "0"
    while True:
        found = page(agent, f"limit=3&after={cursor}")
        seen += [event["position"] for event in found["events"]]
        cursor = found["cursor"]
        if found["next"] is None:
            break
        assert found["next"] == cursor
    assert seen == list(range(1, 8))
    assert cursor == "7"


def test_events_about_a_holder_are_found(agent: Caster, teammate: Caster) -> None:
    agent.acquire("a", holder="muse-01")
    teammate.acquire("b", holder="muse-01")
    lease = agent.acquire("c", holder="muse-02").json()["data"]
    agent.delete(f"leases/{lease['lease_id']}")
    assert [event["resource_id"] for event in page(agent, "holder=muse-01")["events"]] == ["a", "b"]
    assert types(agent, "holder=muse-02&types=lease.released") == ["lease.released"]
    assert page(agent, "holder=nobody") == {"events": [], "next": None, "cursor": "4"}


def test_filters_are_taken_together(agent: Caster) -> None:
    for holder in ("muse-01", "muse-02"):
        for name in ("a", "b"):
            agent.acquire(name, resource_type=holder, holder=holder)
    found = page(agent, "holder=muse-02&resource=muse-02/b&types=lease.acquired,lease.reaped")["events"]
    assert [(event["holder"], event["resource_id"]) for event in found] == [("muse-02", "b")]


@pytest.mark.parametrize("query", ["", "&wait_seconds=20"])
def test_a_cursor_beyond_the_tail_is_refused_and_the_tail_named(agent: Caster, query: str) -> None:
    agent.acquire()
    assert page(agent, "after=1")["events"] == []
    refused = error_of(agent.get(f"events?after=2{query}"))
    assert (refused["status"], refused["code"], refused["tail"]) == (409, "CONFLICT", 1)


def moved_out(caster: Caster, through: int) -> None:
    """As retention leaves it."""
    organization = caster.principal.organization_id
    Event.objects.filter(organization=organization, position__lte=through).delete()
    Feed.objects.filter(pk=organization).update(pruned_through=through)


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_cursor_older_than_retention_is_refused_and_the_oldest_named(agent: Caster, after: int) -> None:
    for number in range(5):
        agent.acquire(str(number))
    tail(agent)
    moved_out(agent, 3)
    refused = error_of(agent.get(f"events?after={after}"))
    assert (refused["status"], refused["code"]) == (410, "CURSOR_EXPIRED")
    assert (refused["oldest"], refused["tail"]) == (4, 5)
    assert [event["position"] for event in page(agent, f"after={refused['oldest'] - 1}")["events"]] == [4, 5]


def test_without_a_cursor_the_feed_begins_at_the_oldest_event_on_file(agent: Caster) -> None:
    for number in range(5):
        agent.acquire(str(number))
    tail(agent)
    moved_out(agent, 3)
    assert [event["position"] for event in page(agent)["events"]] == [4, 5]
    moved_out(agent, 5)
    assert page(agent) == {"events": [], "next": None, "cursor": "5"}


def test_what_is_moved_out_while_a_page_is_read_is_told(agent: Caster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cursor was fine when it was looked at, the events were gone when they were."""
    from leasehub.events import queries

    for number in range(5):
        agent.acquire(str(number))
    tail(agent)
    extent = queries.extent

    def looked_at_and_then_moved(*, organization: int) -> Any:
        known = extent(organization=organization)
        moved_out(agent, 3)
        return known

    monkeypatch.setattr(queries, "extent", looked_at_and_then_moved)
    assert error_of(agent.get("events?after=1"))["code"] == "CURSOR_EXPIRED"


def test_an_outsiders_cursor_says_nothing_of_other_feeds(agent: Caster, stranger: Caster) -> None:
    for number in range(5):
        agent.acquire(str(number))
    assert tail(agent) == 5
    assert error_of(stranger.get("events?after=5"))["tail"] == 0


@pytest.mark.parametrize("wait", ["-1", "26", "1.5", "x", ""])
def test_a_wait_out_of_bounds_is_refused(agent: Caster, wait: str) -> None:
    assert "wait_seconds" in error_of(agent.get(f"events?wait_seconds={wait}"))["fields"]


@pytest.mark.parametrize("holder", ["x" * 129, "a%00b", "%FF"])
def test_what_can_be_no_holder_is_refused(agent: Caster, holder: str) -> None:
    assert "holder" in error_of(agent.get(f"events?holder={holder}"))["fields"]


def test_a_resource_whose_type_holds_a_slash_is_found(agent: Caster) -> None:
    agent.acquire("web", resource_type="team/deploy")
    agent.acquire("deploy/web", resource_type="team")
    agent.acquire("web", resource_type="deploy")
    found = page(agent, "resource=team/deploy/web")["events"]
    meant = [("team/deploy", "web"), ("team", "deploy/web")]
    assert [(event["resource_type"], event["resource_id"]) for event in found] == meant
    assert page(agent, f"resource=a{'/' * 399}a")["events"] == []
