"""The library in this process, the server that of `leasehub up`, and between the two a proxy."""

import threading
import time
from contextlib import ExitStack

import pytest

from leasehub.client import Hub
from tests.cli.conftest import free_port, up
from tests.client.proxy import proxying


class Server(dict):
    """Its credentials; it can be stopped and started again on the same port and data."""

    def __init__(self, folder):
        super().__init__()
        self.folder, self.port, self.running = folder, free_port(), ExitStack()

    def start(self):
        self.update(self.running.enter_context(up(self.folder, self.port)))

    def stop(self):
        self.running.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("server"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def key(server):
    """Makes a key for a principal of that name."""
    admin = Hub(server["url"], server["token"])

    def make(principal, **more):
        return admin.call("POST", "/v1/keys", {"principal": principal, **more})["api_key"]

    yield make
    admin.close()


@pytest.fixture(scope="session")
def alices_key(key):
    return key("alice")


@pytest.fixture(scope="session")
def bobs_key(key):
    return key("bob")


@pytest.fixture
def proxy(server):
    with proxying(server["url"]) as proxy:
        yield proxy


@pytest.fixture
def hub(proxy, alices_key):
    """Alice's, through the proxy."""
    with Hub(proxy.url, alices_key) as hub:
        yield hub


@pytest.fixture
def other(server, alices_key):
    """Alice's key in another process, as it were: another holder."""
    with Hub(server["url"], alices_key, holder="alice:elsewhere") as hub:
        yield hub


@pytest.fixture
def bob(server, bobs_key):
    with Hub(server["url"], bobs_key) as hub:
        yield hub


@pytest.fixture
def name():
    """What no other test uses."""
    return f"n-{time.time_ns()}"


@pytest.fixture(autouse=True)
def no_thread_is_left():
    """Whoever beats has ended when there is nothing to beat any more."""
    yield
    give_up = time.monotonic() + 10
    while time.monotonic() < give_up:
        if not any(thread.name == "heartbeats of leases" for thread in threading.enumerate()):
            return
        time.sleep(0.02)
    raise AssertionError([thread.name for thread in threading.enumerate()])


@pytest.fixture
def taken_away(server):
    """Ends a lease as an operator does."""

    def take(lease):
        body = {"reason": "a test", "fencing_token": lease.fencing_token}
        with Hub(server["url"], server["token"]) as operator:
            operator.call("POST", f"/v1/leases/{lease.lease_id}/force-release", body)

    return take
