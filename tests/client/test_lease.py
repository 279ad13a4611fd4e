"""Leases, and what becomes of them when answers are lost, the server is away, or they are taken away."""

import socket
import threading
import time

import pytest

from leasehub.client import Conflict, Hub, LeaseLost, NotFound, Refused, Unreachable, Usage
from leasehub.client.clock import boot_clock
from tests.cli.conftest import until
from tests.client.proxy import bad_gateway, lose_answer, too_many, unavailable


def test_a_lease_is_held_within_the_block_and_free_after_it(hub, other, name):
    with hub.lease("deploy", name, ttl=60, purpose="a test", payload={"n": 1}) as lease:
        assert not lease.lost
        assert hub.status("deploy", name)["state"] == "held"
        assert hub.fence_check("deploy", name, lease.fencing_token) is True
        assert hub.fence_check("deploy", name, lease.fencing_token - 1) is False
        with pytest.raises(Conflict) as refused:
            other.lease("deploy", name)
        assert refused.value.retry_after_ms > 0
        assert refused.value.expires_at
        assert not refused.value.held_by_self
    assert hub.status("deploy", name)["state"] == "free"


def test_what_was_given_back_or_detached_is_not_to_be_relied_on(hub, name):
    told = []
    with hub.lease("deploy", name, on_lost=told.append) as lease:
        lease.check()
    detached = hub.lease("deploy", f"{name}-2", on_lost=told.append)
    detached.detach()
    for over, ended_by in ((lease, "released"), (detached, None)):
        assert over.lost
        assert over.lost.wait(0)
        assert over.seconds_left == 0
        with pytest.raises(LeaseLost) as lost:
            over.check()
        assert lost.value.ended_by == ended_by
    assert not told


def test_two_threads_of_one_process_exclude_each_other(hub, name):
    with hub.lease("deploy", name), pytest.raises(Conflict) as refused:
        hub.lease("deploy", name)
    assert refused.value.held_by_self


def test_a_lease_is_waited_for(hub, other, name):
    lease = other.lease("deploy", name)
    got = []
    waiting = threading.Thread(target=lambda: got.append(hub.lease("deploy", name, wait=30)))
    waiting.start()
    lease.release()
    waiting.join(30)
    assert got[0].fencing_token > lease.fencing_token
    got[0].release()


def test_it_outlives_its_ttl_many_times_over(hub, other, name):
    with hub.lease("deploy", name, ttl=1) as lease:
        give_up = boot_clock() + 2.5
        while boot_clock() < give_up:
            assert not lease.lost
            assert hub.status("deploy", name)["mine"]
            time.sleep(0.1)


def test_many_leases_are_beaten_in_one_call(hub, proxy, name):
    leases = [hub.lease("deploy", f"{name}-{n}", ttl=2) for n in range(20)]
    until(lambda: proxy.of("POST", "/v1/leases/heartbeats") >= 3)
    assert not any(lease.lost for lease in leases)
    singles = [path for _, path in proxy.seen if path.endswith("/heartbeat")]
    assert len(singles) < 20
    for lease in leases:
        lease.release()


def test_one_of_many_that_is_taken_away_is_lost_alone(hub, taken_away, name):
    kept, taken = (hub.lease("deploy", f"{name}-{n}", ttl=2) for n in range(2))
    taken_away(taken)
    assert taken.lost.wait(30)
    assert not kept.lost
    with pytest.raises(LeaseLost) as lost:
        taken.check()
    assert lost.value.ended_by == "force_released"
    with pytest.raises(LeaseLost):
        taken.release()
    kept.release()


def test_a_loss_calls_back_and_raises_at_the_end_of_the_block(hub, taken_away, name):
    told = threading.Event()
    with pytest.raises(LeaseLost), hub.lease("deploy", name, ttl=2, on_lost=lambda lease: told.set()) as lease:
        taken_away(lease)
        assert lease.lost.wait(30)
        assert told.wait(30)


def test_a_failure_in_the_block_is_not_hidden_by_the_loss(hub, taken_away, name):
    with pytest.raises(ZeroDivisionError) as failure, hub.lease("deploy", name, ttl=2) as lease:
        taken_away(lease)
        lease.lost.wait(30)
        raise ZeroDivisionError
    assert "lease is lost" in failure.value.__notes__[0]


def test_what_ended_between_two_beats_is_found_out_at_the_end(hub, taken_away, name):
    with pytest.raises(LeaseLost) as lost, hub.lease("deploy", name, ttl=3600) as lease:
        taken_away(lease)
    assert lost.value.ended_by == "force_released"


def test_a_server_away_for_less_than_the_ttl_is_survived(hub, proxy, name):
    with hub.lease("deploy", name, ttl=4) as lease:
        with proxy.away():
            time.sleep(1.5)
        beats = len(proxy.seen)
        until(lambda: len(proxy.seen) > beats + 4)
        assert not lease.lost


def test_with_the_server_away_the_loss_is_known_before_the_lease_can_be_anothers(hub, proxy, other, name):
    lease = hub.lease("deploy", name, ttl=2)
    with proxy.away():
        assert lease.lost.wait(30)
        # Through no proxy: the server still gives it to nobody else.
        with pytest.raises(Conflict):
            other.lease("deploy", name)
        with pytest.raises(LeaseLost) as lost:
            lease.check()
        assert lost.value.ended_by is None
        with pytest.raises(LeaseLost):
            lease.release()


def test_the_flag_is_true_at_the_deadline_even_when_no_thread_said_so(hub, proxy, name):
    lease = hub.lease("deploy", name, ttl=60)
    hub.heartbeats.drop(lease._kept)
    assert not lease.lost
    lease._kept.deadline.term_at = boot_clock()
    assert lease.lost
    with pytest.raises(LeaseLost):
        lease.release()


def test_answers_that_are_late_are_no_beats(hub, proxy, name):
    """The server renews, but what it says comes after the deadline: by then the lease has been given up."""
    lease = hub.lease("deploy", name, ttl=1)
    proxy.faults.append(lambda handler: bool(time.sleep(2)))
    assert lease.lost.wait(30)
    proxy.faults.clear()
    with pytest.raises(LeaseLost):
        lease.release()


def test_a_lost_answer_takes_the_lease_once(hub, proxy, name):
    met = proxy.once(lose_answer, path="/v1/leases")
    before = boot_clock()
    with hub.lease("deploy", name, ttl=60) as lease:
        assert met.is_set()
        assert proxy.of("POST", "/v1/leases") == 2
        # Its time is counted from before the answer that was lost.
        assert lease.seconds_left < 60 - (boot_clock() - before)
        events = hub.call("GET", f"/v1/events?resource=deploy/{name}")["events"]
        assert [event["type"] for event in events] == ["lease.acquired"]


def test_a_wait_finds_again_what_it_got_unheard(hub, proxy, name):
    hub.retry_seconds = 0
    proxy.once(lose_answer, path="/v1/leases")
    before = boot_clock()
    with hub.lease("deploy", name, ttl=60, wait=20) as lease:
        assert proxy.of("POST", "/v1/leases") == 2
        assert lease.seconds_left < 60 - (boot_clock() - before)


def test_a_lost_answer_to_the_release_is_no_loss(hub, proxy, name):
    with hub.lease("deploy", name, ttl=60) as lease:
        proxy.once(lose_answer, path=f"/v1/leases/{lease.lease_id}")
    assert hub.status("deploy", name)["state"] == "free"


def test_a_lost_answer_to_the_release_of_what_was_taken_away_is_a_loss(hub, proxy, taken_away, name):
    with pytest.raises(LeaseLost), hub.lease("deploy", name, ttl=3600) as lease:
        taken_away(lease)
        proxy.once(lose_answer, path=f"/v1/leases/{lease.lease_id}")


def test_a_connection_that_was_closed_meanwhile_is_not_taken_for_a_lost_answer(hub, proxy, name):
    with hub.connection() as connection:
        connection.call("GET", "/v1/whoami")
        ours = connection
    ours._socket.shutdown(socket.SHUT_RDWR)
    with hub.connection() as connection:
        assert connection is ours
        connection.call("GET", "/v1/whoami")
        assert connection.answers_lost == 0


@pytest.mark.parametrize("refusal", [(429, "QUOTA_EXCEEDED"), (503, "UNAVAILABLE")])
def test_it_comes_back_when_the_server_says(hub, proxy, refusal):
    status, code = refusal
    error = {"code": code, "message": "Later.", "retry_after_ms": 700}
    proxy.once(lambda handler: handler.reply_json(status, {"error": error}, {"Retry-After": "1"}) or True)
    began = boot_clock()
    hub.whoami()
    assert boot_clock() - began >= 0.7


def test_what_the_server_wants_to_be_waited_for_too_long_is_reported_at_once(proxy, alices_key):
    error = {"code": "UNAVAILABLE", "message": "Later.", "retry_after_ms": 3_600_000}
    proxy.faults.append(lambda handler: handler.reply_json(503, {"error": error}, {}) or True)
    with Hub(proxy.url, alices_key, holder="h") as hub, pytest.raises(Unreachable):
        hub.lease("deploy", "x")
    assert len(proxy.seen) == 1


@pytest.mark.parametrize("fault", [unavailable, too_many, bad_gateway, lose_answer])
def test_what_passes_is_waited_out(hub, proxy, name, fault):
    for _ in range(3):
        proxy.once(fault, path="/v1/leases")
    with hub.lease("deploy", name) as lease:
        assert not lease.lost
    assert proxy.of("POST", "/v1/leases") >= 2


def test_what_does_not_pass_is_reported_when_its_time_is_over(proxy, alices_key, name):
    proxy.faults.append(unavailable)
    with Hub(proxy.url, alices_key, holder="h", retry_seconds=0.3) as hub, pytest.raises(Unreachable):
        hub.lease("deploy", name)
    assert len(proxy.seen) > 1


def test_nobody_there_is_reported_when_its_time_is_over(alices_key, name):
    with Hub("http://127.0.0.1:9", alices_key, holder="h", retry_seconds=0.3) as hub, pytest.raises(Unreachable):
        hub.lease("deploy", name)


def test_refusals_are_exceptions_by_their_code(hub, server, name):
    with pytest.raises(NotFound):
        hub.call("GET", "/v1/leases/lease_" + "0" * 32)
    with pytest.raises(Usage, match="ttl_seconds"):
        hub.lease("deploy", name, ttl=-1)
    with Hub(server["url"], "lh_nobody", holder="h") as nobody, pytest.raises(Refused) as refused:
        nobody.lease("deploy", name)
    assert refused.value.reason == "UNAUTHENTICATED"


def test_a_lease_that_ran_out_is_taken_over_and_says_so(hub, other, name):
    dead = other.lease("deploy", name, ttl=1)
    dead.detach()
    with hub.lease("deploy", name, wait=30) as lease:
        assert lease.took_over_expired
        assert lease.previous["holder"] == "alice:elsewhere"


def test_what_is_detached_is_left_to_others(hub, name):
    lease = hub.lease("deploy", name, ttl=60)
    lease.detach()
    assert lease.release() is False
    assert hub.status("deploy", name)["state"] == "held"


def test_a_beat_by_hand_moves_the_deadline(hub, name):
    with hub.lease("deploy", name, ttl=60) as lease:
        lease._kept.deadline.term_at -= 30
        left = lease.seconds_left
        lease.heartbeat()
        assert lease.seconds_left > left


def test_eight_threads_and_one_resource(hub, name):
    inside, most = [], []

    def work(number):
        with hub.lease("deploy", name, wait=60, ttl=10, holder=f"alice:{number}"):
            inside.append(number)
            most.append(len(inside))
            time.sleep(0.01)
            inside.remove(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert most == [1] * 8
