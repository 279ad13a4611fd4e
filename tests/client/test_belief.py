"""Whatever the line does, no two believe at one instant that they hold the same resource."""

import random
import threading
import time
from contextlib import ExitStack, suppress

import pytest

from leasehub.client import Failure, Hub
from leasehub.client.clock import boot_clock
from tests.client.proxy import hang_up, lose_answer, proxying, unavailable

ROUND_SECONDS = 4.0
HOLDERS = 4


def late(handler):
    """The answer comes when it may be too late."""
    answer = handler.ask()
    time.sleep(random.uniform(0.5, 2.0))
    handler.reply(*answer)
    return True


class Line:
    """One holder's way to the server: bad at all times, and down now and then."""

    def __init__(self, stack, url):
        self.down_until = 0.0
        self.proxy = stack.enter_context(proxying(url))
        self.proxy.faults.append(self.fault)

    def fault(self, handler):
        if boot_clock() < self.down_until:
            return hang_up(handler)
        return random.random() < 0.3 and random.choice([hang_up, lose_answer, unavailable, late])(handler)


@pytest.mark.processes
def test_no_two_believe_that_they_hold_it(server, alices_key, name):
    held, tokens, over = {}, [], threading.Event()

    def hold(number, line):
        with Hub(line.proxy.url, alices_key, holder=f"h{number}", retry_seconds=1, timeout=3) as hub:
            while not over.is_set():
                with suppress(Failure), hub.lease("deploy", name, ttl=1, wait=2) as lease:
                    tokens.append(lease.fencing_token)
                    held[number] = lease
                    line.down_until = boot_clock() + random.choice([0, 2])
                    give_up = boot_clock() + random.uniform(0.1, 2)
                    while boot_clock() < give_up and not lease.lost:
                        time.sleep(0.01)
                    del held[number]

    with ExitStack() as stack:
        lines = [Line(stack, server["url"]) for _ in range(HOLDERS)]
        threads = [threading.Thread(target=hold, args=pair) for pair in enumerate(lines)]
        for thread in threads:
            thread.start()
        most, give_up = 0, boot_clock() + ROUND_SECONDS
        while boot_clock() < give_up:
            most = max(most, sum(not lease.lost for lease in list(held.values())))
            time.sleep(0.001)
        over.set()
        for line in lines:
            line.proxy.faults.clear()
        for thread in threads:
            thread.join(60)
    assert most == 1
    assert len(tokens) == len(set(tokens))
