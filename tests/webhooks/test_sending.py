"""One attempt, and receivers of every kind: it ends in time, and says how in the server's own words."""

import datetime
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from leasehub.events.webhooks import sending
from leasehub.events.webhooks.sending import Outcome
from tests.webhooks.receiver import Behaviour, Receiver, floods, hangs, read, says, status, trickles

# Receivers that are slow for ever are given up after this long, here.
SHORT = 0.5


def post(url: str, *, body: bytes = b"{}", seconds: float = 15.0) -> Outcome:
    return sending.post(url, headers={"webhook-id": "evt_1"}, body=body, seconds=seconds)


@pytest.mark.parametrize("number", [200, 201, 202, 204, 299])
def test_any_2xx_is_success(number: int, receiver: Receiver) -> None:
    receiver.behave = status(number)
    outcome = post(receiver.url)
    assert (outcome.status, outcome.error) == (number, "")


@pytest.mark.parametrize("number", [101, 300, 301, 304, 400, 401, 404, 410, 429, 500, 502, 503, 599, 999])
def test_anything_else_is_failure(number: int, receiver: Receiver) -> None:
    receiver.behave = status(number)
    outcome = post(receiver.url)
    assert outcome.status == number
    assert outcome.error.startswith(f"answered {number}")


ANSWERS: list[tuple[str, Behaviour, str]] = [
    ("closes at once", says(b""), "broke the connection off"),
    ("closes in the status line", says(b"HTTP/1.1 20"), "did not answer with HTTP"),
    ("closes in the headers", says(b"HTTP/1.1 200 OK\r\nContent-Le"), "broke its answer off"),
    ("closes after a header", says(b"HTTP/1.1 200 OK\r\nA: b\r\n"), "broke its answer off"),
    ("closes in the body", says(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"), "broke its answer off"),
    (
        "closes in a chunk",
        says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n40\r\nhalf"),
        "broke its answer off",
    ),
    (
        "has a chunk of less than nothing",
        says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhalf"),
        "did not answer with HTTP",
    ),
    ("speaks no HTTP", says(b"220 mail.example ESMTP\r\n"), "did not answer with HTTP"),
    ("answers HTTP/0.9", says(b"<html>hello</html>"), "did not answer with HTTP"),
    ("continues for ever", floods(b"HTTP/1.1 100 Continue\r\n\r\n" * 700), "HTTP|endless headers"),
    ("hints for ever", floods(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 700), "HTTP|endless headers|broke"),
    ("has endless headers", floods(b"HTTP/1.1 200 OK\r\n"), "HTTP|endless headers"),
    ("has one endless header", says(b"HTTP/1.1 200 OK\r\nA: " + b"x" * 40_000), "HTTP|endless headers"),
]


@pytest.mark.parametrize(("behave", "error"), [case[1:] for case in ANSWERS], ids=[case[0] for case in ANSWERS])
def test_an_answer_that_is_none_is_failure(behave: Behaviour, error: str, receiver: Receiver) -> None:
    receiver.behave = behave
    outcome = post(receiver.url)
    assert outcome.status is None
    assert any(part in outcome.error for part in error.split("|")), outcome.error


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\nuntil the end",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
    ],
)
def test_answers_of_every_form_are_read(answer: bytes, receiver: Receiver) -> None:
    receiver.behave = says(answer)
    assert post(receiver.url).is_success


def test_of_a_long_answer_only_the_beginning_is_read(receiver: Receiver) -> None:
    sent = 0

    def behave(connection: socket.socket, receiver: Receiver) -> None:
        nonlocal sent
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
        with suppress(OSError):
            while sent < 100_000_000:
                sent += connection.send(b"x" * 65536)

    receiver.behave = behave
    outcome = post(receiver.url)
    assert (outcome.status, outcome.error) == (200, "")
    # What fits into the buffers of both ends, not what was announced.
    assert sent < 20_000_000


SLOW: list[tuple[str, Behaviour]] = [
    ("hangs", hangs),
    ("one byte at a time", trickles(b"HTTP/1.1 200 OK\r\n" + b"X-Slow: yes\r\n" * 10_000, every_seconds=0.05)),
    (
        "a body, one byte at a time",
        trickles(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n" + b"x" * 500, every_seconds=0.02),
    ),
]


@pytest.mark.parametrize("behave", [case[1] for case in SLOW], ids=[case[0] for case in SLOW])
def test_a_slow_receiver_is_given_up_when_the_time_is_over(behave: Behaviour, receiver: Receiver) -> None:
    receiver.behave = behave
    outcome = post(receiver.url, seconds=SHORT)
    assert (outcome.status, outcome.error) == (None, "took longer than 0.5 s")
    assert outcome.took_ms < 10_000


def test_a_receiver_that_does_not_read_is_given_up(receivers: Callable[[], Receiver]) -> None:
    receivers()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        outcome = post(url, body=b"x" * 20_000_000, seconds=SHORT)
    assert outcome.error == "took longer than 0.5 s"


def test_a_closed_port(receivers: Callable[[], Receiver]) -> None:
    gone = receivers()
    gone.close()
    assert post(gone.url).error == "refused the connection"


def test_nothing_of_the_answer_is_kept_but_its_status(receiver: Receiver) -> None:
    receiver.behave = says(b"HTTP/1.1 500 secret-reason\r\nX-Secret: secret\r\nContent-Length: 6\r\n\r\nsecret")
    assert "secret" not in repr(post(receiver.url))


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("Retry-After: 120", 120.0),
        ("retry-after: 0", 0.0),
        ("Retry-After: -5", None),
        ("Retry-After: soon", None),
        ("Retry-After: 1e9", None),
        ("Retry-After: Fri, 31 Dec 1999 23:59:59 GMT", 0.0),
        ("Retry-After: 99999999999999999999", 999_999_999.0),
        ("Accept: x", None),
    ],
)
def test_retry_after_is_read(header: str, seconds: float | None, receiver: Receiver) -> None:
    receiver.behave = status(503, header)
    assert post(receiver.url).retry_after_seconds == seconds


def test_retry_after_may_be_a_time(receiver: Receiver) -> None:
    at = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=10)
    receiver.behave = status(429, f"Retry-After: {at:%a, %d %b %Y %H:%M:%S} GMT")
    seconds = post(receiver.url).retry_after_seconds
    assert seconds is not None and 500 < seconds < 601


class TlsReceiver(Receiver):
    """Speaks TLS, with a certificate for ``name``."""

    def __init__(self, folder: Path, name: str) -> None:
        self.names: list[str | None] = []
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.certificate = certificate(folder, name)
        self.context.load_cert_chain(self.certificate)
        self.context.sni_callback = lambda stream, name, context: self.names.append(name)
        super().__init__()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError), self.context.wrap_socket(connection, server_side=True) as stream:
            message = read(stream)
            if message is not None:
                self.got.append(message)
                self.behave(stream, self)


def certificate(folder: Path, name: str) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    today = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - datetime.timedelta(days=1))
        .not_valid_after(today + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = folder / f"{name}.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM) + private)
    return file


@pytest.fixture
def tls(tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[TlsReceiver]:
    """At hooks.test, which resolves to this machine."""
    settings.LEASEHUB_WEBHOOK_ALLOW = (frozenset(), (ipaddress.ip_network("127.0.0.1"),))
    made = TlsReceiver(tmp_path, "hooks.test")

    def look_up(host: str, port: int, *args: Any, **kwargs: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setenv("SSL_CERT_FILE", str(made.certificate))
    yield made
    made.close()


def test_tls_asks_for_the_name_and_checks_it(tls: TlsReceiver) -> None:
    outcome = post(f"https://hooks.test:{tls.port}/hook", body=b"x" * 200_000)
    assert (outcome.status, outcome.error) == (200, "")
    assert tls.names == ["hooks.test"]
    assert (len(tls.got[0].body), tls.got[0].headers["host"]) == (200_000, f"hooks.test:{tls.port}")


def test_a_certificate_of_another_name_is_refused(tls: TlsReceiver) -> None:
    outcome = post(f"https://other.test:{tls.port}/hook")
    assert outcome.error.startswith("TLS: Hostname mismatch")
    assert tls.got == []


def test_a_certificate_that_nobody_signed_is_refused(tls: TlsReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    assert post(f"https://hooks.test:{tls.port}/hook").error.startswith("TLS: self")
    assert tls.got == []


def test_a_receiver_without_tls_is_refused(tls: TlsReceiver, receivers: Callable[[], Receiver]) -> None:
    plain = receivers()
    plain.behave = status(200)
    outcome = post(f"https://hooks.test:{plain.port}/", seconds=SHORT)
    assert outcome.status is None and outcome.error


def test_a_handshake_that_hangs_ends_in_time(tls: TlsReceiver) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        outcome = post(f"https://hooks.test:{silent.getsockname()[1]}/", seconds=SHORT)
    assert outcome.error == "took longer than 0.5 s"


def test_a_tls_receiver_of_one_byte_a_time_is_given_up(tls: TlsReceiver) -> None:
    tls.behave = trickles(b"HTTP/1.1 200 OK\r\n" * 100, every_seconds=0.05)
    assert post(f"https://hooks.test:{tls.port}/", seconds=SHORT).error == "took longer than 0.5 s"


def test_attempts_leave_no_thread_and_no_socket_behind(receiver: Receiver) -> None:
    before = threading.active_count()
    for _ in range(20):
        assert post(receiver.url).is_success
    until = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < until:
        time.sleep(0.01)
    assert threading.active_count() <= before
