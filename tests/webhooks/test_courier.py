"""The worker's part: threads that deliver side by side, workers that are killed, and two at once."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connections

from leasehub.events.webhooks import courier, delivery
from leasehub.events.webhooks.courier import Courier
from leasehub.events.webhooks.delivery import Due
from leasehub.events.webhooks.models import WebhookDelivery
from leasehub.events.webhooks.sending import Outcome
from tests.conftest import Caster
from tests.installation import Installation, eventually
from tests.webhooks.conftest import Subscribe, row
from tests.webhooks.receiver import OK, Receiver, hangs, says

pytestmark = pytest.mark.django_db(transaction=True)
WORKER = (sys.executable, "-m", "django", "worker")


@pytest.fixture
def couriers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Courier]]:
    made: list[Courier] = []

    def make(**members: Any) -> Courier:
        made.append(Courier(**members))
        return made[-1]

    yield make
    for one in made:
        one.end()


def test_it_delivers_by_itself_in_order(
    agent: Caster, subscribe: Subscribe, receiver: Receiver, couriers: Callable[[], Courier]
) -> None:
    endpoint = subscribe()
    couriers().start()
    for number in range(10):
        agent.acquire(f"r{number}")
    eventually(lambda: row(endpoint).cursor == 10)
    assert receiver.positions == list(range(1, 11))


def test_a_hanging_receiver_delays_no_other(
    agent: Caster, stranger: Caster, subscribe: Subscribe, receivers: Callable[[], Receiver], couriers: Any
) -> None:
    hanging, well, theirs = receivers(), receivers(), receivers()
    hanging.behave = hangs
    for _ in range(2):
        subscribe(to=hanging)
    subscribe(to=well)
    subscribe(to=theirs, by=stranger)
    agent.acquire()
    stranger.acquire()
    one = couriers(limit=16)
    one.start()
    eventually(lambda: bool(well.got and theirs.got and len(hanging.got) == 2))
    agent.acquire("another")
    eventually(lambda: len(well.got) == 2)
    hanging.ending.set()


def due(endpoint: int, *, organization: int = 1, is_hindering: bool = False) -> Due:
    return Due(endpoint, organization, is_hindering)


def test_one_organization_and_who_is_slow_or_fails_leave_room_for_the_others(couriers: Any) -> None:
    one = couriers(limit=8)
    sent_off: list[Due] = []

    def goes(endpoint: int, **members: Any) -> bool:
        wanted = due(endpoint, **members)
        has_room = one._has_room_for(wanted)
        if has_room:
            sent_off.append(wanted)
            one._under_way[endpoint] = courier.Trip(wanted, threading.current_thread())
        return has_room

    assert goes(1, organization=1, is_hindering=True)
    assert not goes(1, organization=9), "it is under way"
    assert not goes(2, organization=1, is_hindering=True), "half of a quarter"
    assert goes(2, organization=1)
    assert not goes(3, organization=1), "a quarter"
    for organization in (2, 3, 4):
        assert goes(10 * organization, organization=organization, is_hindering=True)
    assert not goes(50, organization=5, is_hindering=True), "half"
    assert goes(51, organization=5) and goes(52, organization=5)
    assert goes(61, organization=6)
    assert len(sent_off) == 8 and not goes(71, organization=7), "all"
    one._under_way.clear()


def test_an_endpoint_that_is_slow_counts_among_the_failing_until_it_is_quick(
    agent: Caster, subscribe: Subscribe, couriers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = row(subscribe())
    took, one = [courier.SLOW_MS, courier.SLOW_MS - 1], couriers()
    monkeypatch.setattr(courier, "tried", lambda attempt: Outcome(200, took_ms=took.pop(0)))
    for number, hindering in enumerate((True, False)):
        agent.acquire(f"r{number}")
        one.look()
        eventually(lambda: not one._under_way)
        assert (endpoint.pk in one._hindering) is hindering


def test_an_endpoint_that_fails_to_be_replayed_counts_among_the_failing(
    operator: Caster, subscribe: Subscribe, receivers: Callable[[], Receiver], couriers: Any, monkeypatch: Any
) -> None:
    broken, well = receivers(), receivers()
    broken.behave = says(b"")
    endpoints = [subscribe(to=to) for to in (broken, well)]
    for endpoint in endpoints * 2:
        assert operator.post(f"webhooks/{endpoint['webhook_id']}/test").status_code == 202
    one, judged = couriers(), []
    monkeypatch.setattr(one, "_has_room_for", lambda due: judged.append(due) or Courier._has_room_for(one, due))
    one.look()
    eventually(lambda: len(well.got) == 2 and not one._under_way)
    assert one._hindering == {row(endpoints[0]).pk}
    judged.clear()
    one.look()
    assert [due.is_hindering for due in judged] == [True]
    eventually(lambda: not one._under_way)
    broken.behave = says(OK)
    operator.post(f"webhooks/{endpoints[0]['webhook_id']}/test")
    one.look()
    eventually(lambda: not one._under_way)
    assert one._hindering == set()


def test_an_endpoint_for_which_there_was_no_thread_is_served_later(
    agent: Caster, subscribe: Subscribe, receiver: Receiver, couriers: Any, clock: Any, monkeypatch: Any
) -> None:
    endpoint = subscribe()
    agent.acquire()
    one = couriers()

    def none_left(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched, pytest.raises(RuntimeError):
        patched.setattr(threading.Thread, "start", none_left)
        one.look()
    clock.move(seconds=46)
    one.look()
    eventually(lambda: row(endpoint).cursor == 1)


def test_two_couriers_deliver_each_event_once_and_in_order(
    agent: Caster, subscribe: Subscribe, receivers: Callable[[], Receiver], couriers: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(courier, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(courier, "TURN_SECONDS", 0.0)
    all_receivers = [receivers() for _ in range(3)]
    endpoints = [subscribe(to=one) for one in all_receivers]
    for number in range(12):
        agent.acquire(f"r{number}")
    for _ in range(2):
        couriers().start()
    eventually(lambda: all(row(endpoint).cursor == 12 for endpoint in endpoints))
    for one in all_receivers:
        assert one.positions == list(range(1, 13))
    assert set(WebhookDelivery.objects.values_list("attempts", flat=True)) == {1}


def test_the_end_is_written_down_though_the_database_was_away_for_a_moment(
    agent: Caster, subscribe: Subscribe, receiver: Receiver, couriers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.db import OperationalError

    finish, failed = delivery.finish, []

    def away_once(attempt: Any, outcome: Any) -> bool:
        if not failed:
            failed.append(attempt)
            raise OperationalError("the database is away")
        return finish(attempt, outcome)

    monkeypatch.setattr(delivery, "finish", away_once)
    endpoint = subscribe()
    agent.acquire()
    one = couriers()
    one.look()
    eventually(lambda: row(endpoint).cursor == 1)
    assert failed and receiver.positions == [1]


def test_an_endpoint_that_cannot_be_served_delays_no_other(
    agent: Caster, subscribe: Subscribe, receiver: Receiver, couriers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, well = row(subscribe()), subscribe()
    body = delivery._body

    def fails_for_one(endpoint: Any, *given: Any) -> bytes:
        if endpoint.pk == broken.pk:
            raise ValueError("what nobody thought of")
        return body(endpoint, *given)

    monkeypatch.setattr(delivery, "_body", fails_for_one)
    agent.acquire()
    couriers().look()
    eventually(lambda: row(well).cursor == 1)


def test_a_courier_that_was_told_to_stop_sends_nothing_more(
    agent: Caster, subscribe: Subscribe, receiver: Receiver, couriers: Any
) -> None:
    subscribe()
    agent.acquire()
    one = couriers()
    one.end()
    one.look()
    assert receiver.got == []


def test_a_hanging_receiver_holds_a_stopping_worker_up_once_and_not_for_long(
    agent: Caster, subscribe: Subscribe, receiver: Receiver, couriers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(courier, "STOP_SECONDS", 0.2)
    receiver.behave = hangs
    endpoint = subscribe()
    agent.acquire()
    one = couriers()
    one.look()
    eventually(lambda: len(receiver.got) == 1)
    one.end()
    monkeypatch.setattr(courier, "STOP_SECONDS", 3600.0)
    one.end()
    assert one._under_way and row(endpoint).cursor == 0
    receiver.ending.set()
    eventually(lambda: not one._under_way)


class Sender:
    """What Celery's signal tells a worker of."""

    def __init__(self, *queues: str) -> None:
        self.app = self
        self.amqp = self
        self.queues = self
        self.consume_from = dict.fromkeys(queues)


@pytest.mark.parametrize(("queues", "delivers"), [(("default",), 1), (("gpu-host", "default"), 1), (("gpu-host",), 0)])
def test_only_a_worker_of_the_default_queue_delivers(queues: tuple[str, ...], delivers: int) -> None:
    assert courier._running == []
    courier.begin(sender=Sender(*queues))
    try:
        assert len(courier._running) == delivers
    finally:
        courier.wait_for_all()
    assert courier._running == []


MAKE = """
from leasehub.events import journal
from leasehub.events.webhooks import services
from leasehub.identity.authentication import Caller
from leasehub.identity.models import ApiKey
from leasehub.db import clock
from django.db import transaction
key = ApiKey.objects.select_related("principal__organization").first()
org = key.principal.organization
caller = Caller(key.pk, key.key_id, key.principal_id, "x", "agent", org.pk, org.name, frozenset((1, 2, 3)), "^.*$")
services.create(caller=caller, url="{url}")
for number in range({count}):
    journal.record("lease.acquired", at=clock.now(), organization=org.pk, data={{}}, resource_id=str(number))
1
"""
STATES = """
from leasehub.events.models import WebhookDelivery
sorted(WebhookDelivery.objects.values_list("position", "state", "attempts"))
"""


@pytest.mark.processes
def test_a_killed_worker_repeats_what_was_under_way_and_loses_nothing(
    bootstrapped: Installation, receivers: Callable[[], Receiver]
) -> None:
    receiver = receivers()
    bootstrapped.environment["LEASEHUB_WEBHOOK_ALLOW"] = "127.0.0.0/8"
    # A claim that runs out soon, so that nobody waits long for the next worker to make the delivery again.
    short = (
        "import django; django.setup()\n"
        "from datetime import timedelta\n"
        "from leasehub.events.webhooks import delivery\n"
        "delivery.CLAIM = timedelta(seconds=2)\n"
        "from django.core.management import call_command; call_command('worker')"
    )
    receiver.behave = hangs
    bootstrapped.python(MAKE.format(url=receiver.url, count=3))
    first = bootstrapped.start(sys.executable, "-c", short)
    eventually(lambda: len(receiver.got) == 1)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    receiver.behave = lambda connection, receiver: connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
    second = bootstrapped.start(*WORKER)
    eventually(lambda: len(receiver.got) >= 4)
    second.send_signal(signal.SIGTERM)
    assert second.wait(timeout=30) == 0
    assert receiver.positions == [1, 1, 2, 3]
    assert receiver.got[0].id == receiver.got[1].id
    assert bootstrapped.python(STATES) == [[1, "delivered", 2], [2, "delivered", 1], [3, "delivered", 1]]


def test_no_connection_is_left_open_by_a_trip(
    agent: Caster, subscribe: Subscribe, receiver: Receiver, couriers: Any
) -> None:
    closed = threading.Event()
    close_all = connections.close_all

    def noticed() -> None:
        close_all()
        if threading.current_thread().name.startswith("webhook-"):
            closed.set()

    connections.close_all = noticed  # type: ignore[method-assign]
    try:
        subscribe()
        agent.acquire()
        couriers().look()
        assert closed.wait(30)
    finally:
        connections.close_all = close_all  # type: ignore[method-assign]
