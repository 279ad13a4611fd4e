"""GET /v1/events/stream: what is written to one that follows, in this process."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, connections
from django.test import Client

from leasehub import detached
from leasehub.api import streams
from leasehub.api.streams import Stream, watch
from leasehub.api.waiting import Places
from leasehub.db import clock
from leasehub.events import queries
from leasehub.events.following import Follower, Watch
from leasehub.events.queries import View
from leasehub.identity.models import ApiKey
from tests.conftest import Caster, cast, error_of
from tests.events.conftest import followers, tail, until
from tests.events.streaming import Told, parsed
from tests.events.test_feed import moved_out

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("thread_that_goes_when_nobody_follows"),
]


class Parts:
    """The parts of a stream, taken one after the other in a thread of its own, as the web server takes them."""

    def __init__(self, threads: ThreadPoolExecutor, stream: Stream) -> None:
        self.stream = stream
        self._threads = threads
        self._blocks: list[str] = []

    def next(self) -> Told:
        """The next one that is no comment."""
        while True:
            while not self._blocks:
                self._blocks = self.part().split("\n\n")[:-1]
            told = parsed(self._blocks.pop(0))
            if told.type != "comment":
                return told

    def positions(self, count: int) -> list[int | None]:
        return [self.next().id for _ in range(count)]

    def part(self) -> str:
        return self._threads.submit(next, self.stream).result(timeout=20).decode()  # type: ignore[arg-type]

    def end(self) -> None:
        """Takes the rest."""
        for _ in range(100):
            try:
                self.part()
            except StopIteration:
                return
        raise AssertionError("the stream does not end")


Open = Callable[..., Parts]


@pytest.fixture
def opened() -> Iterator[Open]:
    made: list[Stream] = []
    with ThreadPoolExecutor(16) as threads:

        def begin(caster: Caster, after: int | None = None, **asked_for: Any) -> Parts:
            caller = caster.caller
            known = queries.extent(organization=caller.organization)
            stream = Stream(
                View.of(caller, **asked_for), key=caller.key, after=known.tail if after is None else after, resync=None
            )
            made.append(stream)
            parts = Parts(threads, stream)
            assert parts.next() == Told("retry", stream._follower.position, 3000)
            return parts

        yield begin
        for stream in made:
            stream.close()
            stream._follower.end()


def test_what_comes_is_written_with_its_position_and_type(agent: Caster, opened: Open) -> None:
    agent.acquire("old")
    stream = opened(agent)
    agent.acquire("new")
    told = stream.next()
    assert (told.id, told.type, told.data["resource_id"]) == (2, "lease.acquired", "new")
    (listed,) = agent.get("events?after=1").json()["data"]["events"]
    assert told.data == listed


def test_the_past_is_written_first_and_then_what_comes(
    agent: Caster, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "PAGE", 2)
    for number in range(5):
        agent.acquire(str(number))
    stream = opened(agent, after=1)
    assert stream.positions(2) == [2, 3]
    agent.acquire("new")
    assert stream.positions(3) == [4, 5, 6]


def test_followers_at_different_places_each_see_everything_once(
    agent: Caster, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasehub.events.following.CHUNK", 3)
    for number in range(4):
        agent.acquire(str(number))
    opened_at = [opened(agent, after=after) for after in (0, 2, 4)]
    for number in range(4, 12):
        agent.acquire(str(number))
    for after, stream in zip((0, 2, 4), opened_at, strict=True):
        assert stream.positions(12 - after) == list(range(after + 1, 13))


def test_a_stream_writes_what_its_view_shows(agent: Caster, organization: Any, opened: Open) -> None:
    blind = cast(organization, "blind", (2,))
    of_type = opened(agent, types=("lease.released",))
    of_resource = opened(agent, resources=(("deploy", "b"),))
    own = opened(blind)
    lease = agent.acquire("a").json()["data"]
    agent.delete(f"leases/{lease['lease_id']}")
    blind.acquire("b")
    assert of_type.next().type == "lease.released"
    assert of_resource.next().data["resource_id"] == "b"
    assert own.next().data["principal"] == "blind"


def test_the_reader_goes_on_after_a_failure_that_nobody_thought_of(
    agent: Caster, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasehub.events.following.FAILED_SECONDS", 0.01)
    render, failed = watch._render, threading.Event()

    def fails_once(event: Any) -> bytes:
        if not failed.is_set():
            failed.set()
            raise KeyError("nobody thought of it")
        return render(event)

    monkeypatch.setattr(watch, "_render", fails_once)
    with ThreadPoolExecutor(1) as thread:
        told = thread.submit(opened(agent).positions, 1)
        # Followed before it happens, so that it is the reader who renders it.
        until(lambda: followers() == 1 and all(channel.position is not None for channel in watch._channels.values()))
        agent.acquire()
        assert told.result(timeout=20) == [1] and failed.is_set()


def test_a_text_that_is_older_than_what_is_kept_is_read_again(
    agent: Caster, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasehub.events.following.KEPT_BYTES", 1)
    stream = opened(agent)
    agent.acquire("0")
    assert stream.positions(1) == [1]
    for number in range(1, 6):
        agent.acquire(str(number))
        until(lambda number=number: position() == number + 1)  # type: ignore[misc]
    assert stream.positions(5) == [2, 3, 4, 5, 6]


def position() -> int | None:
    (channel,) = watch._channels.values()
    return channel.position


def test_what_everybody_has_written_is_forgotten(agent: Caster, opened: Open) -> None:
    stream = opened(agent)
    other = opened(agent, types=("handoff.created",))
    other.part()
    until(lambda: position() is not None)
    agent.acquire("0")
    assert stream.positions(1) == [1]
    until(lambda: position() == 1)
    agent.acquire("1")
    assert stream.positions(1) == [2]
    (channel,) = watch._channels.values()
    channel.forget_written()
    assert list(channel.chunks) == []
    assert other.stream._follower.position == 2


def test_when_nothing_comes_a_comment_does(agent: Caster, monkeypatch: pytest.MonkeyPatch) -> None:
    assert streams.HEARTBEAT_SECONDS == 15
    monkeypatch.setattr(streams, "HEARTBEAT_SECONDS", 0.01)
    caller = agent.caller
    stream = Stream(View.of(caller), key=caller.key, after=0, resync=None)
    with ThreadPoolExecutor(1) as threads:
        parts = threads.submit(lambda: [next(stream) for _ in range(4)]).result(timeout=20)
        threads.submit(connection.close)
    stream.close()
    assert parts == [b"retry: 3000\nid: 0\n\n", *[b":\nid: 0\n\n"] * 3]


def test_a_stream_says_from_the_first_how_far_it_has_read(
    agent: Caster, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is cut off before the first event of its view loses none, and need not look at its past again."""
    monkeypatch.setattr(streams, "HEARTBEAT_SECONDS", 0.05)
    agent.acquire("old")
    # It asserts the id of the beginning.
    stream = opened(agent, types=("handoff.created",))
    agent.acquire("passed over")
    told = Told("comment", 1, None)
    while told == Told("comment", 1, None):
        told = parsed(stream.part().removesuffix("\n\n"))
    assert told == Told("comment", 2, None)


def test_whoever_joins_while_the_reader_reads_is_rung(agent: Caster, opened: Open) -> None:
    agent.acquire("old")
    view = View.of(agent.caller)
    read = Watch(render=lambda event: b"text")
    # It has no thread: the test looks.
    read._thread = threading.current_thread()
    first, joins = Follower(view, key=1), Follower(view, key=1)
    read.add(first)
    (channel,) = read._channels.values()
    channel.position = 0
    name = read._name

    def named(events: list[Any]) -> None:
        read.add(joins)
        assert read.is_level(joins)
        name(events)

    read._name = named  # type: ignore[method-assign]
    read._look_at(view.organization, channel, tail(agent))
    assert (first.bell.is_set(), joins.bell.is_set()) == (True, True)


def test_whoever_streams_holds_no_connection(agent: Caster, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[bool] = []
    wait = threading.Event.wait
    agent.acquire("old")
    stream = opened(agent, after=0)

    def looking_wait(event: threading.Event, timeout: float | None = None) -> bool:
        if event is stream.stream._follower.bell:
            held.append(connections["default"].connection is not None)
        return wait(event, timeout)

    monkeypatch.setattr(threading.Event, "wait", looking_wait)
    assert stream.positions(1) == [1]
    agent.acquire("new")
    assert stream.positions(1) == [2]
    assert held and not any(held)


def test_a_stream_that_fell_behind_retention_is_told_once_and_goes_on(agent: Caster, opened: Open) -> None:
    for number in range(4):
        agent.acquire(str(number))
    tail(agent)
    moved_out(agent, 3)
    stream = opened(agent, after=1)
    assert stream.next() == Told("resync", 4, {"oldest": 4, "tail": 4})
    agent.acquire("new")
    assert stream.positions(1) == [5]


@pytest.mark.parametrize("by", ["revoked", "expired", "retired"])
def test_a_key_that_works_no_more_ends_its_stream_and_no_other(
    agent: Caster, teammate: Caster, opened: Open, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasehub.events.following.KEY_SECONDS", 0)
    stream, other = opened(agent), opened(teammate)
    teammate.acquire("0")
    assert stream.positions(1) == other.positions(1) == [1]
    keys, now = ApiKey.objects.filter(principal=agent.principal), clock.now()
    if by == "retired":
        agent.principal.retired_at = now
        agent.principal.save(update_fields=["retired_at"])
    else:
        keys.update(**{f"{by}_at" if by == "revoked" else "expires_at": now})
    stream.end()
    teammate.acquire("1")
    assert other.positions(1) == [2]


def test_more_streams_than_may_be_are_told_when_to_come_back(
    agent: Caster, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_places", Places(1))
    first = opened(agent)
    refused = agent.get("events/stream")
    assert error_of(refused)["code"] == "UNAVAILABLE"
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "2")
    first.stream.close()
    assert agent.get("events/stream").status_code == 200
    # Whoever asked and went away holds no place.
    assert agent.get("events/stream").status_code == 200
    assert followers() == 0


def test_an_organization_leaves_places_to_the_others(
    agent: Caster, stranger: Caster, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_places", Places(5))
    mine = [opened(agent) for _ in range(4)]
    refused = agent.get("events/stream")
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "2")
    theirs = opened(stranger)
    assert stranger.get("events/stream").status_code == 503
    theirs.stream.close()
    assert stranger.get("events/stream").status_code == 200
    mine[0].stream.close()
    assert agent.get("events/stream").status_code == 200


def test_a_stream_for_which_there_is_no_thread_gives_its_place_back(
    agent: Caster, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Protocol:
        def response_iter(self, *given: Any) -> None: ...

    # Where the web server has it.
    proto = Protocol()
    caller = agent.caller
    stream = Stream(View.of(caller), key=caller.key, after=0, resync=None)

    def none_left(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched, pytest.raises(RuntimeError):
        patched.setattr(threading.Thread, "start", none_left)
        detached.send(stream, status=200, headers=[])
    assert proto and stream._is_closed


def test_a_reader_that_went_away_is_found_when_a_place_is_wanted(
    agent: Caster, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_places", Places(1))
    gone = opened(agent)
    assert gone.part() == ":\nid: 0\n\n"
    # The first look rings too.
    until(lambda: position() is not None)
    gone.stream._follower.bell.clear()
    assert agent.get("events/stream").status_code == 503
    assert gone.stream._follower.bell.is_set()


def test_a_server_that_is_about_to_stop_ends_its_streams_and_begins_none(
    agent: Caster, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "is_closed", False)
    stream = opened(agent)
    agent.acquire("0")
    assert stream.positions(1) == [1]
    watch.close()
    stream.end()
    assert agent.get("events/stream").status_code == 503


def begun(caster: Caster, query: str = "", **headers: str) -> tuple[int, str]:
    """What a stream begins with, and the position that it goes on from."""
    made: list[int] = []

    class Noted(Stream):
        def __init__(self, view: View, *, after: int, **members: Any) -> None:
            super().__init__(view, after=after, **members)
            made.append(after)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("leasehub.api.events.Stream", Noted)
        response = caster.get(f"events/stream?{query}", **headers)
    assert response.status_code == 200, response.content
    return made[0], response.content.decode()


def test_a_stream_goes_on_from_the_last_event_id_from_after_or_from_the_tail(agent: Caster) -> None:
    for number in range(3):
        agent.acquire(str(number))
    assert begun(agent) == begun(agent, "after=tail") == (3, "retry: 3000\nid: 3\n\n")
    assert begun(agent, "after=1")[0] == 1
    assert begun(agent, "after=1", **{"Last-Event-ID": "2"})[0] == 2
    assert begun(agent, "after=0")[0] == 0


def test_a_cursor_that_is_gone_gets_one_resync_and_then_what_comes(agent: Caster) -> None:
    for number in range(3):
        agent.acquire(str(number))
    tail(agent)
    moved_out(agent, 2)
    position, text = begun(agent, **{"Last-Event-ID": "1"})
    assert position == 3
    assert text == 'retry: 3000\nid: 3\n\nid: 3\nevent: resync\ndata: {"oldest":3,"tail":3}\n\n'
    assert begun(agent, "after=2") == (2, "retry: 3000\nid: 2\n\n")


@pytest.mark.parametrize("how", ["after", "header"])
def test_a_cursor_above_the_tail_is_refused(agent: Caster, how: str) -> None:
    agent.acquire()
    headers = {"Last-Event-ID": "2"} if how == "header" else {}
    refused = error_of(agent.get("events/stream?after=2" if how == "after" else "events/stream", **headers))
    assert (refused["status"], refused["code"], refused["tail"]) == (409, "CONFLICT", 1)


@pytest.mark.parametrize(
    "query", ["after=x", "types=nonsense", "resource=x", "limit=1", "wait_seconds=1", "holder=%FF"]
)
def test_a_wrong_query_is_refused(agent: Caster, query: str) -> None:
    assert agent.get(f"events/stream?{query}").status_code == 400


def test_a_wrong_last_event_id_is_refused(agent: Caster) -> None:
    assert agent.get("events/stream", **{"Last-Event-ID": "x"}).status_code == 400


def test_proxies_pass_it_on_at_once(agent: Caster) -> None:
    response = agent.get("events/stream")
    assert response.headers["Content-Type"] == "text/event-stream"
    assert response.headers["Cache-Control"] == "no-cache"
    assert response.headers["X-Accel-Buffering"] == "no"
    assert response.headers["X-Request-Id"]


def test_without_a_key_there_is_no_stream(db: None) -> None:
    refused = Client().get("/v1/events/stream")
    assert (refused.status_code, json.loads(refused.content)["error"]["code"]) == (401, "UNAUTHENTICATED")
