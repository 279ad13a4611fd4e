"""The twin for asyncio does what the client does, and gives back what a cancelled call gets."""

import asyncio
import inspect
import threading

import pytest

from leasehub.client import Conflict, Empty, LeaseLost, Saturated, Usage, aio, events, handoffs, held
from leasehub.client import hub as sync
from tests.client.proxy import lose_answer
from tests.client.test_slot import pool, waiting  # noqa: F401


@pytest.fixture
def run(proxy, alices_key, hub):
    """Runs a coroutine function with the hub, in a loop of its own."""

    def run(function):
        async def main():
            async with aio.Hub(proxy.url, alices_key) as hub:
                return await asyncio.wait_for(function(hub), 60)

        return asyncio.run(main())

    return run


def test_a_lease_a_claim_and_a_checkpoint(run, hub, proxy, name):
    async def main(aio_hub):
        proxy.once(lose_answer, path="/v1/leases")
        async with aio_hub.lease("deploy", name, ttl=60) as lease:
            assert not lease.lost
            assert lease.seconds_left > 0
            assert await aio_hub.fence_check("deploy", name, lease.fencing_token)
            await aio_hub.checkpoints.save(name, "k", 1, fence=lease)
            await lease.heartbeat()
            with pytest.raises(Conflict):
                await aio_hub.lease("deploy", name)
        await aio_hub.put(name, 7, priority=2)
        async with aio_hub.claim(name, wait=10) as claim:
            assert claim.payload == 7
            await claim.complete("done")
        with pytest.raises(Empty):
            await aio_hub.claim(name, wait=0)
        return claim.task_id

    task_id = run(main)
    assert hub.task(task_id)["result"] == "done"
    assert hub.status("deploy", name)["state"] == "free"


def test_a_loss_is_told_in_the_loop(run, taken_away, name):
    async def main(hub):
        told = asyncio.Event()
        with pytest.raises(LeaseLost):
            async with hub.lease("deploy", name, ttl=2, on_lost=lambda lease: told.set()) as lease:
                await asyncio.to_thread(taken_away, lease)
                await told.wait()
                assert lease.lost

    run(main)


def test_a_cancelled_wait_for_a_lease_leaves_nothing(run, other, hub, name):
    async def main(aio_hub):
        lease = await asyncio.to_thread(other.lease, "deploy", name)
        waits = asyncio.ensure_future(aio_hub.lease("deploy", name, wait=None).__aenter__())
        await asyncio.sleep(0.3)
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        await asyncio.to_thread(lease.release)

    run(main)
    assert hub.status("deploy", name)["state"] == "free"


def test_a_lease_that_is_granted_after_the_cancellation_is_given_back(run, proxy, hub, name):
    async def main(aio_hub):
        asked, go_on = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        await aio_hub.whoami()
        await aio_hub.run(lambda: aio_hub.hub.holder)

        def slowly(handler):
            answer = handler.ask()
            loop.call_soon_threadsafe(asked.set)
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()
            handler.reply(*answer)
            return True

        proxy.once(slowly, path="/v1/leases")
        taking = asyncio.ensure_future(aio_hub.lease("deploy", name).__aenter__())
        await asked.wait()
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        assert hub.status("deploy", name)["state"] == "held"
        go_on.set()

    run(main)
    assert hub.status("deploy", name)["state"] == "free"


def test_however_many_wait_what_they_wait_for_can_be_given_back(run, hub, name):
    async def main(aio_hub):
        lease = await aio_hub.lease("deploy", name, ttl=60)
        waits = [asyncio.ensure_future(wait(aio_hub)) for _ in range(aio.MOST_WAITING + 1)]
        while aio_hub._waiting._work_queue.qsize() == 0:
            await asyncio.sleep(0.01)
        await aio_hub.put(name)
        async with aio_hub.claim(name, wait=0) as claim:
            await claim.complete()
        await lease.heartbeat()
        await asyncio.wait_for(lease.release(), 20)
        for begun in waits:
            begun.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

    go_on = threading.Event()

    async def wait(aio_hub):
        await aio_hub._take(None, lambda patience: go_on.wait(60), lambda result: None)

    async def guarded(aio_hub):
        try:
            await main(aio_hub)
        finally:
            go_on.set()

    run(guarded)
    assert hub.status("deploy", name)["state"] == "free"


def test_a_cancelled_wait_for_a_slot_leaves_the_queue(run, hub, bob, pool):  # noqa: F811
    async def main(aio_hub):
        queued = asyncio.Event()
        with pytest.raises(Saturated):
            await aio_hub.slot(pool, wait=0)
        waits = asyncio.ensure_future(aio_hub.slot(pool, on_queued=lambda *figures: queued.set()).__aenter__())
        await queued.wait()
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits

    with bob.slot(pool):
        run(main)
        assert waiting(hub, pool) == []


def test_work_that_is_cancelled_gives_its_task_back(run, hub, name):
    hub.put(name)

    async def main(aio_hub):
        begun = asyncio.Event()

        async def work():
            async with aio_hub.claim(name, wait=10):
                begun.set()
                await asyncio.Event().wait()

        working = asyncio.ensure_future(work())
        await begun.wait()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working

    run(main)
    assert hub.call("GET", f"/v1/queues/{name}")["ready"] == 1


def test_handoffs_and_the_feed(run, hub, bob, server, bobs_key, name):
    async def main(aio_hub):
        lease = await aio_hub.lease("repo", name, ttl=60)
        start = await aio_hub.events.end()
        sent = await aio_hub.handoffs.send("bob", name, leases=[lease])
        async with aio.Hub(server["url"], bobs_key) as bobs:
            assert sent in [handoff["handoff_id"] async for handoff in bobs.handoffs.inbox()]
            async with bobs.handoffs.accept(sent, ttl=60) as accepted:
                assert accepted.leases[0].fencing_token > lease.fencing_token
        lease.detach()
        seen = []
        async for event in aio_hub.events.follow(after=start, types=["handoff.accepted"]):
            seen.append(event["type"])
            break
        assert seen == ["handoff.accepted"]

    run(main)


def test_types_that_are_no_list_are_refused_not_spelt(run):
    async def main(aio_hub):
        with pytest.raises(Usage, match="a list, such as"):
            await anext(aio_hub.events.follow(types="lease.acquired"))

    run(main)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (aio.Hub, sync.Hub),
        (aio.Held, held.Held),
        (aio.Lease, held.Lease),
        (aio.Claim, held.Claim),
        (aio.Slot, held.Slot),
        (aio.Handoffs, handoffs.Handoffs),
        (aio.Checkpoints, handoffs.Checkpoints),
        (aio.Events, events.Events),
    ],
)
def test_the_twins_have_the_same_names_and_arguments(ours, theirs):
    left_out = {"connection", "keep", "follower", "holder"}
    public = {name for name in dir(theirs) if not name.startswith("_")} - left_out
    known = set(dir(ours)) | {name for base in ours.__mro__ for name in inspect.get_annotations(base)}
    assert public <= known
    for name in sorted(public & set(dir(ours))):
        if not (inspect.isfunction(getattr(theirs, name)) and inspect.isfunction(getattr(ours, name))):
            continue
        of_theirs = inspect.signature(getattr(theirs, name)).parameters
        of_ours = inspect.signature(getattr(ours, name)).parameters
        assert set(of_theirs) <= set(of_ours) or "more" in of_ours, name
