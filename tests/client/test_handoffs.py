"""Unfinished work that moves on with its leases, checkpoints, and the events that tell of it."""

import itertools
import os
import signal
import threading

import pytest

from leasehub.client import LeaseLost, NotFound, StaleToken, Usage, VersionConflict
from tests.cli.conftest import until
from tests.client.proxy import hang_up, lose_answer


def test_work_moves_with_its_lease(hub, proxy, bob, name):
    lease = hub.lease("repo", name, ttl=2)
    proxy.once(lose_answer, path="/v1/handoffs")
    sent = hub.handoffs.send("bob", name, leases=[lease], message="half done", next_action="make test", done=["a"])
    assert [handoff["handoff_id"] for handoff in hub.handoffs.sent()][0] == sent
    [offered] = [handoff for handoff in bob.handoffs.inbox() if handoff["handoff_id"] == sent]
    assert offered["next_action"] == "make test"
    with bob.handoffs.accept(sent, ttl=60) as accepted:
        [moved] = accepted.leases
        assert (moved.resource_type, moved.resource_id, accepted.lost) == ("repo", name, [])
        assert moved.fencing_token > lease.fencing_token
        assert bob.status("repo", name)["holder"] == bob.holder
        assert lease.lost.wait(30)
        with pytest.raises(LeaseLost) as lost:
            lease.check()
        assert lost.value.ended_by == "transferred"
    assert bob.status("repo", name)["state"] == "free"
    assert bob.handoffs.complete(sent, {"ok": True})["status"] == "completed"
    assert bob.handoffs.show(sent)["result"] == {"ok": True}


def test_an_offer_is_rejected_or_taken_back(hub, bob, name):
    assert bob.handoffs.reject(hub.handoffs.send("bob", name), "busy")["status"] == "rejected"
    sent = hub.handoffs.send("bob", name)
    assert hub.handoffs.withdraw(sent, "done myself")["status"] == "withdrawn"
    with pytest.raises(NotFound):
        bob.handoffs.accept(sent)


def test_an_unknown_addressee_is_named(hub, bob, name):
    with pytest.raises(NotFound) as refused:
        hub.handoffs.send("bobb", name)
    assert refused.value.fields["did_you_mean"]


def test_a_checkpoint_is_saved_by_compare_and_swap(hub, proxy, name):
    proxy.once(lose_answer, path="/v1/checkpoints")
    assert hub.checkpoints.save(name, "progress", {"step": 1})["version"] == 1
    assert hub.checkpoints.save(name, "progress", {"step": 2}, expected_version=1)["version"] == 2
    with pytest.raises(VersionConflict):
        hub.checkpoints.save(name, "progress", {"step": 3}, expected_version=1)
    assert hub.checkpoints.save(name, "progress", {"step": 3}, expected_version=None)["version"] == 3
    found = hub.checkpoints.get(name, "progress")
    assert found["state"] == {"step": 3}
    assert hub.checkpoints.show(found["checkpoint_id"])["version"] == 3
    assert hub.checkpoints.get(name, "progress", version=1)["state"] == {"step": 1}


def test_a_checkpoint_behind_a_fence_refuses_a_stale_writer(hub, other, name):
    stale = hub.lease("repo", name, ttl=60)
    hub.checkpoints.save(name, "progress", 1, fence=stale)
    stale.release()
    with other.lease("repo", name), pytest.raises(StaleToken):
        hub.checkpoints.save(name, "progress", 2, expected_version=1, fence=stale)


def test_the_feed_is_followed_through_an_outage(hub, proxy, other, name):
    start = hub.events.end()
    following = hub.events.follow(after=start, resource=f"feed/{name}")
    other.lease("feed", name).release()
    assert [event["type"] for event in itertools.islice(following, 2)] == ["lease.acquired", "lease.released"]
    for fault in (hang_up, lose_answer):
        proxy.once(fault, path="/v1/events")
    other.lease("feed", name).release()
    seen = list(itertools.islice(following, 2))
    assert [event["type"] for event in seen] == ["lease.acquired", "lease.released"]
    again = hub.events.follow(after=seen[0]["position"], resource=f"feed/{name}", types=["lease.released"])
    assert next(again)["position"] == seen[1]["position"]


def test_types_that_are_no_list_are_refused_not_spelt(hub):
    with pytest.raises(Usage, match=r"a list, such as \['lease.acquired'\]"):
        next(hub.events.follow(types="lease.acquired"))


def test_a_follower_begins_with_what_comes_from_now_on(hub, other, name):
    other.lease("feed", name).release()
    follower = hub.events.follower(after=None, types=[], resource=f"feed/{name}")
    follower.cursor = hub.events.end()
    other.lease("feed", name).release()
    from leasehub.client.patience import Patience

    seen = []
    while len(seen) < 2:
        seen += follower.next_page(Patience(5))
    assert [event["type"] for event in seen] == ["lease.acquired", "lease.released"]


def test_leases_of_a_handoff_whose_acceptance_was_interrupted_are_given_back(hub, proxy, bob, name):
    lease = bob.lease("repo", name, ttl=60)
    sent = bob.handoffs.send("alice", name, leases=[lease])
    assert hub.holder
    interrupted = threading.Event()

    def late(handler):
        answer = handler.ask()
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupted.wait(30)
        handler.reply(*answer)
        return True

    proxy.once(late, path="/resolve")
    with pytest.raises(KeyboardInterrupt):
        hub.handoffs.accept(sent, ttl=3600)
    interrupted.set()
    until(lambda: hub.status("repo", name)["state"] == "free")
    lease.detach()
