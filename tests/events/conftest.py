"""What the tests of the feed share."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from leasehub.api.streams import watch
from tests.conftest import Caster


def page(caster: Caster, query: str = "") -> dict[str, Any]:
    response = caster.get(f"events?{query}")
    assert response.status_code == 200, response.content
    found: dict[str, Any] = response.json()["data"]
    return found


def types(caster: Caster, query: str = "") -> list[str]:
    return [event["type"] for event in page(caster, query)["events"]]


def tail(caster: Caster) -> int:
    return int(page(caster, "after=tail")["cursor"])


def followers() -> int:
    return sum(len(channel.followers) for channel in watch._channels.values())


def until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)


@pytest.fixture
def thread_that_goes_when_nobody_follows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Its connection must not keep the test database."""
    monkeypatch.setattr("leasehub.events.following.LINGER_SECONDS", 0)
    yield
    until(lambda: watch._thread is None)
    for thread in threading.enumerate():
        if thread.name == "feed-watch":
            thread.join(10)
