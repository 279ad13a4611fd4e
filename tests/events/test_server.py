"""Streams of a real web server: in threads of their own, and gone when it stops."""

import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from leasehub import unread
from leasehub.db import clock
from leasehub.events import journal
from leasehub.identity.models import ApiKey
from tests.conftest import Caster, cast
from tests.events.streaming import Reader
from tests.servers import Api, Server, started

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.processes]

#: More than the server has threads.
READERS = 12


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with started(tmp_path / "server.log", LEASEHUB_STREAMS=str(READERS)) as running:
        yield running


@pytest.fixture
def read(server: Server) -> Iterator[Callable[..., Reader]]:
    begun: list[Reader] = []

    def begin(caster: Caster, **headers: str) -> Reader:
        begun.append(Reader(server.port, caster.secret, **headers))
        return begun[-1]

    yield begin
    for reader in begun:
        reader.close()


def test_streams_leave_the_threads_to_short_calls_and_end_with_their_key_or_the_server(
    agent: Caster, organization: Any, server: Server, read: Callable[..., Reader]
) -> None:
    passing = cast(organization, "passing")
    readers = [read(agent) for _ in range(READERS - 1)]
    leaving = read(passing)
    assert {reader.response.status for reader in [*readers, leaving]} == {200}
    assert read(agent).response.status == 503

    # Though every thread of the web server would be taken by now.
    api = Api(server.port, agent.secret)
    assert api.get("/v1/whoami")["data"]["principal"] == "agent"
    agent.acquire("new")
    for reader in [*readers, leaving]:
        told = reader.next(among=("lease.acquired",))
        assert told is not None and told.data["resource_id"] == "new"
    api.close()

    ApiKey.objects.filter(principal=passing.principal).update(revoked_at=clock.now())
    assert leaving.has_ended()
    assert read(passing).response.status == 401

    # Its place is free, and from where it was another goes on.
    other = read(agent, **{"Last-Event-ID": "0"})
    assert other.response.status == 200
    assert other.positions(2)[1:] == [1]

    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert all(reader.has_ended() for reader in [*readers, other])
    server.process.wait(20)
    # Far from granian's own patience with what does not end by itself.
    assert time.monotonic() - began < 15


def test_a_reader_that_does_not_read_is_hung_up_on(agent: Caster, tmp_path: Path) -> None:
    # More than the kernel and the web server take off the stream's hands.
    much = {"text": "x" * 12_000}
    of = {"organization": agent.principal.organization_id, "actor": agent.principal.pk, "at": clock.now()}
    journal.record_all([journal.event("lease.acquired", data=much, **of) for _ in range(2000)])
    settings = {"LEASEHUB_STREAMS": "1", "LEASEHUB_UNREAD_SECONDS": "1"}
    with started(tmp_path / "server.log", **settings) as running, socket.socket() as unread:
        unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        unread.connect(("127.0.0.1", running.port))
        head = f"GET /v1/events/stream?after=0 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {agent.secret}\r\n\r\n"
        unread.sendall(head.encode())
        assert unread.recv(12) == b"HTTP/1.1 200"
        give_up = time.monotonic() + 30
        while True:
            other = Reader(running.port, agent.secret)
            status = other.response.status
            other.close()
            if status == 200:
                return
            assert time.monotonic() < give_up
            time.sleep(0.1)


def test_a_place_is_free_again_when_its_reader_is_gone(agent: Caster, read: Callable[..., Reader]) -> None:
    readers = [read(agent) for _ in range(READERS)]
    for reader in readers:
        reader.close()
    give_up = time.monotonic() + 20
    while read(agent).response.status != 200:
        assert time.monotonic() < give_up
        time.sleep(0.1)


def test_clients_that_came_first_are_hung_up_on_too() -> None:
    """The web server listens a moment before its socket is found."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as client,
    ):
        accepted, _ = listening.accept()
        with accepted:
            assert unread._has_set(7)
            patience = [
                one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) for one in (listening, accepted, client)
            ]
    assert patience == [7000, 7000, 0]
