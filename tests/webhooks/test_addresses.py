"""Which addresses a webhook may go to: the address that is connected to decides, whatever name or disguise it has."""

import ipaddress
import socket
from typing import Any

import pytest

from leasehub.errors import ValidationError
from leasehub.events.webhooks import addresses, sending
from tests.webhooks.receiver import Receiver, status

FORBIDDEN = [
    "127.0.0.1", "127.1.2.3", "127.255.255.254", "0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "172.16.0.1",
    "172.31.255.254", "192.168.0.1", "192.168.255.255", "169.254.0.1", "169.254.169.254", "100.64.0.1",
    "100.127.255.254", "192.0.0.1", "192.0.0.8", "192.0.0.9", "192.0.0.170", "192.0.2.1", "198.51.100.1",
    "203.0.113.7", "198.18.0.1", "198.19.255.255", "192.88.99.1", "224.0.0.1", "239.1.1.1", "240.0.0.1",
    "255.255.255.255",
    "::", "::1", "::127.0.0.1", "::8.8.8.8", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254",
    "::ffff:0:127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::10.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1",
    "64:ff9b:1::7f00:1", "64:ff9b:1::808:808", "2002:7f00:1::", "2002:a00:1::1", "2002:c0a8:1::", "2002:a9fe:a9fe::",
    "2001:0:4136:e378:8000:63bf:80ff:fffe", "2001:0:7f00:1:8000:63bf:f7f7:f7f7", "2001::1", "2001:10::1", "2001:20::1",
    "2001:db8::1", "3fff::1", "100::1", "fc00::1", "fd12:3456:789a::1", "fe80::1", "fe80::1%1", "fec0::1", "ff02::1",
    "ff0e::1", "5f00::1", "4000::1",
]  # fmt: skip
PUBLIC = [
    "8.8.8.8", "1.1.1.1", "93.184.216.34", "172.15.0.1", "172.32.0.1", "100.63.255.255", "100.128.0.1", "192.0.1.1",
    "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2002:808:808::", "2606:4700:4700::1111", "2a00:1450:4001:81b::200e",
]  # fmt: skip


@pytest.mark.parametrize("address", FORBIDDEN)
def test_an_address_that_is_no_public_one_is_refused(address: str, settings: Any) -> None:
    assert not addresses.is_public(ipaddress.ip_address(address))
    assert not addresses.may_connect("example.org", address)
    assert not addresses.is_named(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_allowed(address: str) -> None:
    assert addresses.is_public(ipaddress.ip_address(address))
    assert addresses.may_connect("example.org", address)


@pytest.mark.parametrize(
    ("allowed", "host", "address", "may"),
    [
        ("10.0.0.0/8", "example.org", "10.1.2.3", True),
        ("10.0.0.0/8", "example.org", "::ffff:10.1.2.3", True),
        ("10.0.0.0/8", "example.org", "64:ff9b::10.1.2.3", True),
        ("10.0.0.0/8", "example.org", "11.0.0.1", True),
        ("10.0.0.0/8", "example.org", "192.168.0.1", False),
        ("10.0.0.0/8", "example.org", "2001:0:a00:1:8000:63bf:80ff:fffe", False),
        ("fd00::/8", "example.org", "fd00::1", True),
        ("fd00::/8", "example.org", "127.0.0.1", False),
        ("127.0.0.1", "example.org", "127.0.0.1", True),
        ("127.0.0.1", "example.org", "127.0.0.2", False),
        ("hooks.internal", "hooks.internal", "10.1.2.3", True),
        ("hooks.internal", "HOOKS.internal.", "10.1.2.3", True),
        ("hooks.internal", "a.hooks.internal", "10.1.2.3", False),
        ("hooks.internal", "example.org", "10.1.2.3", False),
    ],
)
def test_what_the_operator_names_is_allowed_besides(
    allowed: str, host: str, address: str, may: bool, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    from leasehub.settings import hosts_and_networks

    monkeypatch.setenv("LEASEHUB_WEBHOOK_ALLOW", allowed)
    settings.LEASEHUB_WEBHOOK_ALLOW = hosts_and_networks("LEASEHUB_WEBHOOK_ALLOW")
    assert addresses.may_connect(host, address) is may


@pytest.mark.parametrize(
    ("url", "wrong"),
    [
        ("ftp://example.org/", "https"),
        ("file:///etc/passwd", "https"),
        ("//example.org/", "https"),
        ("example.org/hook", "https"),
        ("http://example.org/", "LEASEHUB_WEBHOOK_ALLOW"),
        ("http://127.0.0.1/", "LEASEHUB_WEBHOOK_ALLOW"),
        ("https://user@example.org/", "credentials"),
        ("https://user:secret@example.org/", "credentials"),
        ("https://:@example.org/", "credentials"),
        ("https://example.org/#part", "fragment"),
        ("https://example.org/#", "fragment"),
        ("https:///hook", "host"),
        ("https://", "host"),
        ("https://example.org:0/", "host"),
        ("https://example.org:65536/", "URL"),
        ("https://example.org:x/", "URL"),
        ("https://[::1/", "URL"),
        ("https://[fe80::1%25eth0]/", "host"),
        ("https://exa%6dple.org/", "host"),
        ("https://example.org/a b", "ASCII"),
        ("https://example.org\\@evil.example/", "ASCII"),
        ("https://exämple.org/", "ASCII"),
        ("https://example.org/\r\nHost: x", "ASCII"),
        ("https://example.org/" + "a" * 2000, "2000"),
    ],
)
def test_a_url_that_cannot_be_is_refused_with_the_reason(url: str, wrong: str) -> None:
    with pytest.raises(ValidationError, match=wrong):
        addresses.target(url)


def test_a_url_is_taken_apart() -> None:
    given = addresses.target("https://Example.org:8443?a=1")
    assert (given.is_tls, given.host, given.port, given.path) == (True, "example.org", 8443, "/?a=1")
    assert given.authority == "Example.org:8443"
    assert addresses.target("https://[2606:4700::1111]/x").port == 443


class Resolver:
    """Answers a name with these addresses, turn by turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *turns: list[str]) -> None:
        self.turns, self.asked = list(turns), 0
        monkeypatch.setattr(socket, "getaddrinfo", self.look_up)

    def look_up(self, host: str, port: int, *args: Any, **kwargs: Any) -> list[Any]:
        found = self.turns[min(self.asked, len(self.turns) - 1)]
        self.asked += 1
        families = {4: socket.AF_INET, 6: socket.AF_INET6}
        return [
            (families[ipaddress.ip_address(address).version], socket.SOCK_STREAM, 6, "", (address, port))
            for address in found
        ]


def post(url: str, seconds: float = 10.0) -> sending.Outcome:
    return sending.post(url, headers={}, body=b"{}", seconds=seconds)


def test_a_name_that_resolves_to_this_machine_is_not_connected_to(
    receivers: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = receivers()
    settings.LEASEHUB_WEBHOOK_ALLOW = (frozenset(), ())
    Resolver(monkeypatch, ["127.0.0.1"])
    outcome = post(f"https://example.org:{receiver.port}/")
    assert "not a public one" in outcome.error and outcome.status is None
    assert "127.0.0.1" not in outcome.error
    assert receiver.connections == 0


@pytest.mark.parametrize("literal", ["2130706433", "0x7f.1", "127.1", "0177.0.0.1", "[::ffff:127.0.0.1]", "localhost"])
def test_this_machine_in_another_spelling_is_not_connected_to(literal: str, receivers: Any, settings: Any) -> None:
    receiver = receivers()
    settings.LEASEHUB_WEBHOOK_ALLOW = (frozenset(), ())
    assert "not a public one" in post(f"https://{literal}:{receiver.port}/").error
    assert receiver.connections == 0


def test_one_forbidden_address_among_public_ones_is_enough(
    receivers: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = receivers()
    settings.LEASEHUB_WEBHOOK_ALLOW = (frozenset(), ())
    Resolver(monkeypatch, ["8.8.8.8", "127.0.0.1"])
    assert "not a public one" in post(f"https://example.org:{receiver.port}/").error
    assert receiver.connections == 0


def test_the_address_that_was_judged_is_the_one_that_is_connected_to(
    receivers: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that is public when it is looked at and this machine when it is connected to: it is asked for once."""
    receiver = receivers()
    settings.LEASEHUB_WEBHOOK_ALLOW = (frozenset(), ())
    resolver = Resolver(monkeypatch, ["8.8.8.8"], ["127.0.0.1"])
    connected: list[Any] = []

    def connect(self: socket.socket, address: Any) -> None:
        connected.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(sending.socket.socket, "connect", connect)
    url = f"https://example.org:{receiver.port}/"
    assert post(url).error == "refused the connection"
    assert (resolver.asked, connected) == (1, [("8.8.8.8", receiver.port)])
    # Judged anew at the next attempt.
    assert "not a public one" in post(url).error
    assert len(connected) == 1


def test_a_redirect_to_this_machine_is_not_followed(receivers: Any) -> None:
    inside, outside = receivers(), receivers()
    for number in (301, 302, 303, 307, 308):
        outside.behave = status(number, f"Location: {inside.url}")
        outcome = post(outside.url)
        assert (outcome.status, outcome.is_success) == (number, False)
        assert "redirect" in outcome.error
    assert inside.connections == 0


def test_no_proxy_is_used(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1/")
    assert post(receiver.url).is_success
    assert receiver.got[0].line == "POST /hook?tenant=a HTTP/1.1"


def test_a_name_that_does_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(*args: Any, **kwargs: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "nothing")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert post("https://nothing.example/").error == "its name does not resolve"


def test_a_resolver_that_hangs_ends_with_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: over.wait(30) and [])
    assert post("https://slow.example/", seconds=0.2).error == "its name was not resolved in time"
    over.set()
