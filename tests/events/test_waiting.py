"""Reads of the feed that wait: woken, bounded, and holding nothing meanwhile."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, connections

from leasehub.api import waiting as places
from leasehub.api.streams import watch
from leasehub.db import clock
from leasehub.identity.models import ApiKey
from tests.conftest import Caster, cast, error_of
from tests.events.conftest import followers, tail, until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("thread_that_goes_when_nobody_follows"),
]

Waiting = Callable[..., "Future[Any]"]


@pytest.fixture
def waiting(agent: Caster) -> Iterator[Waiting]:
    """Sends a read that waits from a thread of its own, and comes back when it waits."""
    agent.caller  # noqa: B018, remembered: the first use of a key writes
    with ThreadPoolExecutor(16) as pool:

        def send(caster: Caster = agent, query: str = "after=tail", wait: int = 20) -> "Future[Any]":
            before = followers()
            sent = pool.submit(ask, caster, f"{query}&wait_seconds={wait}")
            until(lambda: sent.done() or followers() > before)
            return sent

        yield send


def ask(caster: Caster, query: str) -> Any:
    try:
        return caster.get(f"events?{query}")
    finally:
        connection.close()


def has_looked() -> bool:
    with watch._lock:
        return all(channel.position is not None for channel in watch._channels.values())


def answered(sent: "Future[Any]") -> list[str]:
    """The resources of the events that it was answered with."""
    response = sent.result(timeout=20)
    assert response.status_code == 200, response.content
    return [event["resource_id"] for event in response.json()["data"]["events"]]


def test_an_event_wakes_who_waits(agent: Caster, waiting: Waiting) -> None:
    agent.acquire("old")
    sent = waiting()
    time.sleep(0.3)
    assert not sent.done()
    agent.acquire("new")
    assert answered(sent) == ["new"]


def test_the_first_event_of_an_organization_wakes_who_waits(agent: Caster, waiting: Waiting) -> None:
    sent = waiting()
    agent.acquire("first")
    assert answered(sent) == ["first"]


def test_what_is_there_is_answered_at_once(agent: Caster) -> None:
    agent.acquire("there")
    assert [event["resource_id"] for event in ask(agent, "wait_seconds=20").json()["data"]["events"]] == ["there"]


def test_events_of_others_and_of_other_things_wake_nobody(
    agent: Caster, stranger: Caster, organization: Any, waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "_places", places.Places(8))
    blind = cast(organization, "blind", (2,))
    sent = [
        waiting(query="after=tail&resource=deploy/wanted"),
        waiting(query="after=tail&types=lease.released"),
        waiting(query="after=tail&holder=muse-01"),
        waiting(blind),
    ]
    followed = [follower for channel in watch._channels.values() for follower in channel.followers]
    until(has_looked)
    until(lambda: not any(follower.bell.is_set() for follower in followed))
    rung = []
    for follower in followed:
        follower.bell.set = lambda view=follower.view: rung.append(view)  # type: ignore[method-assign,misc]
    stranger.acquire("wanted", holder="muse-01")
    agent.acquire("unwanted")
    position = tail(agent)
    until(lambda: all(channel.position == position for channel in watch._channels.values()))
    assert rung == []
    for follower in followed:
        del follower.bell.set
    lease = blind.acquire("wanted", holder="muse-01").json()["data"]
    blind.delete(f"leases/{lease['lease_id']}")
    assert {answered(each)[0] for each in sent} == {"wanted"}


def test_the_wait_has_an_end_and_a_cursor_that_goes_on(agent: Caster, teammate: Caster, waiting: Waiting) -> None:
    started = time.monotonic()
    sent = waiting(query="after=tail&holder=nobody", wait=1)
    teammate.acquire()
    answer = sent.result(timeout=20).json()["data"]
    assert time.monotonic() - started >= 1
    assert answer == {"events": [], "next": None, "cursor": "1"}


def test_more_than_may_wait_are_answered_at_once_and_told_when_to_come_back(agent: Caster, waiting: Waiting) -> None:
    sent = [waiting() for _ in range(places.PLACES)]
    crowded = ask(agent, "after=tail&wait_seconds=20")
    assert (crowded.status_code, crowded.headers["Retry-After"]) == (200, "1")
    assert crowded.json()["data"] == {"events": [], "next": None, "cursor": "0"}
    agent.acquire("new")
    assert [answered(each) for each in sent] == [["new"]] * len(sent)
    assert followers() == 0
    with places.place(agent.principal.organization_id) as is_free:
        assert is_free


def test_an_organization_leaves_a_place_to_the_others(agent: Caster, stranger: Caster, waiting: Waiting) -> None:
    sent = [waiting() for _ in range(places.PLACES - 1)]
    crowded = ask(agent, "after=tail&wait_seconds=20")
    assert (crowded.status_code, crowded.headers["Retry-After"]) == (200, "1")
    sent.append(waiting(stranger))
    assert not sent[-1].done()
    for caster in (agent, stranger):
        caster.acquire("new")
    assert [answered(each) for each in sent] == [["new"]] * len(sent)


def test_whoever_waits_holds_no_connection(agent: Caster, waiting: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    held: dict[int, bool] = {}
    wait = threading.Event.wait

    def looking_wait(event: threading.Event, timeout: float | None = None) -> bool:
        if any(event is follower.bell for channel in watch._channels.values() for follower in channel.followers):
            held[threading.get_ident()] = connections["default"].connection is not None
        return wait(event, timeout)

    monkeypatch.setattr(threading.Event, "wait", looking_wait)
    sent = waiting()
    until(lambda: len(held) == 1)
    assert set(held.values()) == {False}
    agent.acquire("new")
    assert answered(sent) == ["new"]


def test_a_key_that_is_revoked_meanwhile_is_told_nothing(agent: Caster, teammate: Caster, waiting: Waiting) -> None:
    sent = waiting()
    ApiKey.objects.filter(principal=agent.principal).update(revoked_at=clock.now())
    teammate.acquire("new")
    assert error_of(sent.result(timeout=20))["status"] == 401
