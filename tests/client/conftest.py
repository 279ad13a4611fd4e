"""The library in this process, the server that of `leasehub up`, and between the two a proxy."""

import threading
import time

import pytest

from leasehub.client import Hub
from tests.cli.conftest import free_port, up
from tests.client.proxy import proxying


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    with up(folder, free_port()) as credentials:
        yield credentials


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
