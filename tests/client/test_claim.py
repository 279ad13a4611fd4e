"""Tasks: put once, claimed once, settled once, whatever becomes of the answers."""

import os
import signal
import threading

import pytest

from leasehub.client import Empty, Failure, Forbidden, Hub, InProgress, LeaseLost, Usage
from tests.cli.conftest import until
from tests.client.proxy import hang_up, lose_answer, unavailable


def test_a_task_is_worked_off(hub, name):
    put = hub.put(name, {"n": 1}, priority=3)
    with hub.claim(name, wait=10) as claim:
        assert (claim.task_id, claim.payload, claim.attempt) == (put["task_id"], {"n": 1}, 1)
        assert hub.task(claim.task_id)["state"] == "leased"
        claim.complete({"done": True})
    shown = hub.task(claim.task_id)
    assert (shown["state"], shown["result"]) == ("done", {"done": True})
    with pytest.raises(LeaseLost, match="settled") as over:
        claim.check()
    assert over.value.ended_by == "completed"


def test_the_end_of_the_block_completes_it(hub, name):
    hub.put(name)
    with hub.claim(name, wait=10) as claim:
        pass
    assert hub.task(claim.task_id)["state"] == "done"


def test_an_exception_fails_it_and_says_why(hub, name):
    hub.put(name, max_attempts=1)
    with pytest.raises(ZeroDivisionError), hub.claim(name, wait=10) as claim:
        raise ZeroDivisionError("no way")
    shown = hub.task(claim.task_id)
    assert shown["state"] == "dead"
    assert "ZeroDivisionError: no way" in str(shown)


def test_an_interruption_gives_it_back(hub, name):
    hub.put(name)
    with pytest.raises(KeyboardInterrupt), hub.claim(name, wait=10):
        raise KeyboardInterrupt
    with hub.claim(name, wait=10) as again:
        again.fail("not today", final=True)
    assert hub.task(again.task_id)["state"] == "dead"


def test_it_is_given_back_by_hand(hub, name):
    hub.put(name)
    with hub.claim(name, wait=10) as claim:
        assert claim.give_back()
    assert hub.task(claim.task_id)["state"] == "ready"


def test_an_empty_queue_is_said_once_the_wait_is_over(hub, name):
    with pytest.raises(Empty):
        hub.claim(name, wait=0)
    with pytest.raises(Empty):
        hub.claim(name, wait=0.2)


def test_a_task_is_waited_for(hub, bob, name):
    claims = []
    waiting = threading.Thread(target=lambda: claims.append(hub.claim(name)))
    waiting.start()
    bob.put(name, 7)
    waiting.join(30)
    with claims[0] as claim:
        assert claim.payload == 7


def test_a_claim_outlives_its_ttl(hub, proxy, name):
    hub.put(name)
    with hub.claim(name, ttl=1, wait=10) as claim:
        beats = f"/v1/leases/{claim.lease_id}/heartbeat"
        until(lambda: proxy.of("POST", beats) > 12)
        claim.check()
    assert hub.task(claim.task_id)["state"] == "done"


def test_lost_answers_put_once_claim_once_and_complete_once(hub, proxy, name):
    for path in (f"/v1/queues/{name}/tasks", "/v1/leases/hot-claim", "/complete"):
        proxy.once(lose_answer, path=path)
        proxy.once(unavailable, path=path)
    hub.put(name, 1)
    with hub.claim(name, wait=10) as claim:
        claim.complete("once")
    with pytest.raises(Empty):
        hub.claim(name, wait=0)
    events = hub.call("GET", f"/v1/events?resource=task/{claim.task_id}")["events"]
    assert [event["type"] for event in events] == ["task.queued", "task.claimed", "task.completed"]


def test_a_wait_finds_again_the_claim_that_it_got_unheard(hub, proxy, bob, name):
    hub.retry_seconds = 0
    path, lost, claims = "/v1/leases/hot-claim", threading.Event(), []

    def lose_the_first_claim(handler):
        if handler.path != path:
            return False
        status, headers, content = handler.ask()
        if status == 200 and not lost.is_set():
            lost.set()
            handler.hang_up()
        else:
            handler.reply(status, headers, content)
        return True

    proxy.faults.append(lose_the_first_claim)
    waiting = threading.Thread(target=lambda: claims.append(hub.claim(name, ttl=8, wait=30)))
    waiting.start()
    until(lambda: proxy.of("POST", path) == 2)
    bob.put(name)
    waiting.join(60)
    with claims[0] as claim:
        assert claim.attempt == 1
    assert lost.is_set()


def test_tasks_through_a_bad_line_are_each_done_once(proxy, alices_key, name):
    """Every third request is not carried out, or carried out unheard."""
    counted = iter(range(10**6))

    def bad_line(handler):
        return (next(counted) % 3 == 0) and (lose_answer if next(counted) % 2 else hang_up)(handler)

    with Hub(proxy.url, alices_key, holder="h", retry_seconds=60) as hub:
        proxy.faults.append(bad_line)
        hub.put_all(name, [{"payload": n} for n in range(12)])
        done = []

        def work():
            while True:
                try:
                    claim = hub.claim(name, wait=0)
                except Empty:
                    return
                with claim:
                    done.append(claim.payload)

        workers = [threading.Thread(target=work) for _ in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(120)
        proxy.faults.clear()
        assert sorted(done) == list(range(12))
        figures = hub.call("GET", f"/v1/queues/{name}")
    assert (figures["ready"], figures["leased"], figures["dead"]) == (0, 0, 0)


def test_completing_waits_for_a_server_that_is_away(hub, proxy, name):
    hub.retry_seconds = 0.2
    hub.put(name)
    with hub.claim(name, ttl=30, wait=10) as claim:
        seen = len(proxy.seen)
        proxy.faults.append(hang_up)
        back = threading.Thread(target=lambda: (until(lambda: len(proxy.seen) > seen + 4), proxy.faults.clear()))
        back.start()
        claim.complete("late")
        back.join(30)
    assert hub.task(claim.task_id)["result"] == "late"


def test_a_claim_that_another_has_by_now_cannot_be_completed(hub, proxy, bob, name):
    hub.put(name)
    with pytest.raises(LeaseLost), hub.claim(name, ttl=1, wait=10) as claim:
        with proxy.away():
            assert claim.lost.wait(30)
        with bob.claim(name, wait=30) as second:
            assert second.fencing_token > claim.fencing_token
        claim.complete("too late")
    assert hub.task(claim.task_id)["result"] is None


def test_a_loss_that_came_while_completing_was_refused_otherwise_is_told(hub, proxy, taken_away, name):
    hub.put(name)
    hub.retry_seconds = 0.2
    claim = hub.claim(name, ttl=30, wait=10)
    # The background would take seconds to learn of it.
    claim._kept.next_at = claim._kept.interval = 0.05

    def refuse(handler):
        taken_away(claim)
        until(lambda: claim._kept_from is not None)
        return in_progress(handler)

    refused = proxy.once(refuse, path="/complete")
    proxy.faults.append(lambda handler: "/complete" in handler.path and in_progress(handler))
    with pytest.raises(InProgress):
        claim.complete()
    assert refused.is_set() and claim.lost._told.is_set()


def in_progress(handler):
    error = {"code": "IN_PROGRESS", "message": "Somebody else does it.", "retry_after_ms": 50}
    handler.reply_json(409, {"error": error}, {})
    return True


def test_a_result_that_the_server_does_not_take_leaves_the_claim_alive(hub, name):
    hub.put(name)
    with hub.claim(name, wait=10) as claim:
        with pytest.raises(Usage):
            claim.complete("x" * 100_000)
        claim.complete("shorter")
        with pytest.raises(Usage):
            claim.complete("again")
    assert hub.task(claim.task_id)["result"] == "shorter"


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_wait_that_is_interrupted_gives_back_what_it_gets_all_the_same(hub, proxy, name, is_lost):
    task_id = hub.put(name)["task_id"]
    assert hub.holder
    interrupted = threading.Event()

    def late(handler):
        answer = handler.ask()
        assert hub.task(task_id)["state"] == "leased"
        if is_lost:
            # The next attempt is what is interrupted.
            proxy.once(silent, path="/v1/leases/hot-claim")
            handler.hang_up()
        else:
            os.kill(os.getpid(), signal.SIGINT)
            assert interrupted.wait(30)
            handler.reply(*answer)
        return True

    def silent(handler):
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupted.wait(30)
        handler.reply(*handler.ask())
        return True

    proxy.once(late, path="/v1/leases/hot-claim")
    with pytest.raises(KeyboardInterrupt):
        hub.claim(name, wait=None)
    interrupted.set()
    until(lambda: hub.task(task_id)["state"] == "ready")


def test_a_claim_whose_completion_is_refused_is_beaten_no_more(hub, proxy, name):
    hub.put(name)
    error = {"code": "FORBIDDEN", "message": "No."}
    with pytest.raises(Forbidden), hub.claim(name, ttl=2, wait=10) as claim:
        proxy.once(lambda handler: handler.reply_json(403, {"error": error}, {}) or True, path="/complete")
    assert claim._kept not in hub.heartbeats._kept
    with pytest.raises(LeaseLost):
        claim.check()


@pytest.mark.parametrize(
    "call",
    [
        lambda hub: hub.claim("q", ttl="60"),
        lambda hub: hub.claim("q", ttl=-5, wait=0),
        lambda hub: hub.claim("q", wait="soon"),
        lambda hub: hub.lease("deploy", "x", ttl=10.5),
        lambda hub: hub.lease("deploy", "x", wait=float("nan")),
        lambda hub: hub.lease("deploy", "x", payload={1, 2}),
        lambda hub: hub.slot(5),
        lambda hub: hub.put("q", float("nan")),
        lambda hub: hub.task(None),
        lambda hub: hub.status("deploy", 5),
        lambda hub: hub.put_all("q", [5]),
    ],
)
def test_wrong_arguments_are_a_failure_as_what_the_server_refuses_is(hub, call):
    with pytest.raises(Failure) as failure:
        call(hub)
    assert failure.value.code == "usage"
