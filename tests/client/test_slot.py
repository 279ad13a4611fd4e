"""Slots of pools, and places in their queues."""

import threading

import pytest

from leasehub.client import Hub, Saturated, Usage
from leasehub.client.slots import id_text
from pools.templates import text_of
from tests.cli.conftest import until
from tests.client.proxy import lose_answer, unavailable


@pytest.fixture
def pool(server, name):
    with Hub(server["url"], server["token"]) as operator:
        slots = [{"id": 1, "port": 4000}]
        file = {"name": name, "slots": slots, "grantEnv": {"APP_PORT": "{port}"}, "ttlMinutes": 1}
        operator.call("PUT", f"/v1/pools/{name}", file)
    return name


def waiting(hub, pool):
    return hub.call("GET", f"/v1/pools/{pool}")["queue"]


def test_a_slot_is_granted_and_given_back(hub, proxy, pool):
    with hub.slot(pool) as slot:
        proxy.seen.clear()
        assert (slot.slot_id, slot.attrs["port"], slot.env) == (1, 4000, {"APP_PORT": "4000"})
        assert hub.fence_check("slot", f"{pool}/1", slot.fencing_token)
        with pytest.raises(Saturated) as refused:
            hub.slot(pool, wait=0)
        assert refused.value.position == 1
        assert proxy.of("POST", f"/v1/pools/{pool}/requests") == 1
    with hub.slot(pool, wait=0):
        pass


@pytest.mark.parametrize("slot_id", [1, "01", 1.0, 1e3, 1.5])
def test_what_a_slot_is_called_is_what_the_server_calls_it(server, hub, name, slot_id):
    with Hub(server["url"], server["token"]) as operator:
        operator.call("PUT", f"/v1/pools/{name}", {"name": name, "slots": [{"id": slot_id}]})
    with hub.slot(name) as slot:
        assert slot.slot_id == slot_id
        assert hub.status(slot.resource_type, slot.resource_id)["lease_id"] == slot.lease_id
        assert hub.fence_check(slot.resource_type, slot.resource_id, slot.fencing_token)


@pytest.mark.parametrize("number", [1, 1.0, -0.0, 1e3, 1.5, 1e-7, 1e18, 1e21, 2**60])
def test_a_number_is_written_as_the_server_writes_it(number):
    assert id_text(number) == text_of(number)


def test_the_queue_is_waited_in(hub, bob, pool):
    first = bob.slot(pool)
    told, got = [], []
    thread = threading.Thread(
        target=lambda: got.append(hub.slot(pool, on_queued=lambda position, eta_ms: told.append(position)))
    )
    thread.start()
    until(lambda: told)
    first.release()
    thread.join(30)
    assert told[0] == 1
    got[0].release()


def test_the_queue_is_left_when_the_wait_is_over_and_when_it_is_interrupted(hub, bob, pool):
    def interrupt(position, eta_ms):
        raise KeyboardInterrupt

    with bob.slot(pool):
        with pytest.raises(Saturated) as refused:
            hub.slot(pool, wait=0.3)
        assert refused.value.position == 1
        assert waiting(hub, pool) == []
        with pytest.raises(KeyboardInterrupt):
            hub.slot(pool, on_queued=interrupt)
        assert waiting(hub, pool) == []


def test_what_no_slot_is_like_is_refused_at_once(hub, pool):
    with pytest.raises(Usage):
        hub.slot(pool, selector={"port": 1})


def test_lost_answers_take_one_place(hub, proxy, pool):
    proxy.once(lose_answer, path="/requests")
    proxy.once(unavailable, path="/requests")
    with hub.slot(pool):
        assert waiting(hub, pool) == []
        assert sum(slot["state"] == "held" for slot in hub.call("GET", f"/v1/pools/{pool}")["slots"]) == 1
