"""Where a webhook may go: the form of its URL, and the addresses that its host may have when it is connected to.

Whoever makes an endpoint chooses its URL, and the worker that posts to it stands inside a network whose machines
trust each other. So the address itself is judged, the one that is then connected to, at every attempt.
"""

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from django.conf import settings

from leasehub.errors import ValidationError

LONGEST_URL = 2000
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
#: Everything else of IPv6 is no ordinary destination: link-local, unique local, IPv4-compatible, NAT64 of a site …
UNICAST = ipaddress.IPv6Network("2000::/3")
#: What one Python 3.11 or another calls global, and nobody's server has.
NOT_PUBLIC = (
    ipaddress.ip_network("192.0.0.0/24"),
    ipaddress.ip_network("192.88.99.0/24"),
    ipaddress.ip_network("2001::/23"),
    ipaddress.ip_network("3fff::/20"),
)
# Of a name only what a resolver takes: no percent signs, no control characters that would reach the request.
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252})|[0-9a-fA-F:.]{2,45}")


@dataclass(frozen=True, slots=True)
class Target:
    """A URL, taken apart."""

    is_tls: bool
    host: str
    port: int
    #: Path and query, as they stand in the request.
    path: str
    #: Host and port, as they stand in the request.
    authority: str


def target(url: str) -> Target:
    """Raises ValidationError: not a URL that a webhook may have."""
    if len(url) > LONGEST_URL:
        raise _wrong(f"must have at most {LONGEST_URL} characters")
    if not (url.isascii() and url.isprintable()) or " " in url or "\\" in url:
        raise _wrong("must be ASCII without spaces and backslashes: a name as xn--…, a path with %…")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise _wrong("is not a URL") from None
    if parts.scheme not in ("https", "http"):
        raise _wrong("must begin with https://")
    if parts.username is not None or parts.password is not None:
        raise _wrong("must not carry credentials: deliveries are signed")
    if "#" in url:
        raise _wrong("must not have a fragment")
    if not HOST.fullmatch(host) or port == 0:
        raise _wrong("must name a host")
    if parts.scheme == "http" and not is_named(host):
        raise _wrong("must begin with https://, since LEASEHUB_WEBHOOK_ALLOW does not name its host")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    is_tls = parts.scheme == "https"
    return Target(is_tls, host, port or (443 if is_tls else 80), path, parts.netloc)


def _wrong(what: str) -> ValidationError:
    return ValidationError(f"url: {what}", url=what)


def is_named(host: str) -> bool:
    """Whether LEASEHUB_WEBHOOK_ALLOW names this host, or a network that the address it is written as is in."""
    hosts, _ = settings.LEASEHUB_WEBHOOK_ALLOW
    if host.lower().rstrip(".") in hosts:
        return True
    try:
        return _is_in_allowed_network(ipaddress.ip_address(host))
    except ValueError:
        return False


def may_connect(host: str, address: str) -> bool:
    """Whether a connection to this address may be opened for that host."""
    hosts, _ = settings.LEASEHUB_WEBHOOK_ALLOW
    if host.lower().rstrip(".") in hosts:
        return True
    try:
        meant = ipaddress.ip_address(address)
    except ValueError:
        return False
    return _is_in_allowed_network(meant) or is_public(meant)


def is_public(address: Address) -> bool:
    """Whether it, and every address that it is a disguise of, is an ordinary one of the public internet."""
    return all(_is_ordinary(meant) for meant in unwrapped(address))


def unwrapped(address: Address) -> Iterator[Address]:
    """The addresses that packets to this one reach: its own, unless it carries others in it."""
    if isinstance(address, ipaddress.IPv4Address):
        yield address
    elif address.ipv4_mapped is not None:
        yield address.ipv4_mapped
    elif address.sixtofour is not None:
        yield address.sixtofour
    elif address.teredo is not None:
        yield from address.teredo
    elif address in NAT64:
        yield ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    else:
        yield address


def _is_ordinary(address: Address) -> bool:
    return (
        address.is_global
        and not address.is_multicast
        and not address.is_reserved
        and (address.version == 4 or address in UNICAST)
        and not any(address in network for network in NOT_PUBLIC)
    )


def _is_in_allowed_network(address: Address) -> bool:
    _, networks = settings.LEASEHUB_WEBHOOK_ALLOW
    return all(any(meant in network for network in networks) for meant in unwrapped(address))
