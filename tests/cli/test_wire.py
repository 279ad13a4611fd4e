"""HTTP over a plain socket, at a server with faults."""

import json
import socket
import threading

import pytest

from leasehub.client.failures import Refused, Unreachable
from leasehub.client.wire import Connection, quoted


@pytest.fixture
def connection(fake):
    connection = Connection(fake.url, "lh_alice", timeout=5)
    yield connection
    connection.close()


def dropping(times, *, of="POST", after_effect=True):
    """Hangs up instead of answering, so many times."""
    left = [times]

    def fault(handler):
        if handler.command != of or not left[0]:
            return False
        left[0] -= 1
        if after_effect:
            handler.answer()
        handler.hang_up()
        return True

    return fault


def test_two_calls_go_over_one_connection(fake, connection):
    ports = set()
    fake.faults.append(lambda handler: ports.add(handler.client_address) and False)
    connection.call("GET", "/v1/whoami")
    connection.call("GET", "/v1/whoami")
    assert len(ports) == 1


def test_an_answer_in_chunks(fake, connection):
    content = json.dumps({"data": {"text": "é" * 5000}}).encode()

    def chunked(handler):
        pieces = b"".join(
            f"{len(content[at : at + 1000]):X};x=y\r\n".encode() + content[at : at + 1000] + b"\r\n"
            for at in range(0, len(content), 1000)
        )
        handler.reply_with(200, pieces + b"0\r\nTrailer: x\r\n\r\n", transfer_encoding="chunked")
        return True

    fake.faults.append(chunked)
    assert connection.call("GET", "/v1/whoami") == {"text": "é" * 5000}
    fake.faults.clear()
    assert connection.call("GET", "/v1/whoami")["principal"] == "alice"


def test_an_answer_that_ends_with_the_connection(fake, connection):
    def bare(handler):
        handler.wfile.write(b'HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\r\n\r\n{"data": {"a": 1}}')
        handler.close_connection = True
        return True

    fake.faults.append(bare)
    assert connection.call("GET", "/v1/whoami") == {"a": 1}
    fake.faults.clear()
    assert connection.call("GET", "/v1/whoami")["principal"] == "alice"


def test_a_kept_connection_that_the_server_has_closed_is_opened_again(fake, connection):
    connection.call("GET", "/v1/whoami")
    fake.faults.append(dropping(1, of="GET"))
    assert connection.call("GET", "/v1/whoami")["principal"] == "alice"


def test_a_lost_answer_is_asked_for_again_under_the_same_key(fake, faulty):
    fake.faults.append(dropping(2))
    outcome = faulty("lease", "acquire", "--kind", "k", "--ttl", "5", "--owner", "o")
    assert outcome.status == 0, outcome.errors
    posts = [seen for seen in fake.seen if seen[0] == "POST"]
    assert len(posts) == 3
    assert len({headers["idempotency-key"] for _, _, headers, _ in posts}) == 1
    [row] = fake.leases.rows.values()
    assert row["token"] == outcome.said["record"]["token"]


def test_answers_lost_for_good_are_unreachable(fake, faulty):
    fake.faults.append(dropping(99))
    outcome = faulty("lease", "acquire", "--kind", "k", "--ttl", "5", "--owner", "o")
    assert outcome.status == 3
    assert outcome.said["code"] == "unreachable"


def test_a_release_whose_answer_was_lost_has_released(fake, faulty):
    token = faulty("lease", "acquire", "--kind", "k", "--ttl", "5").said["record"]["token"]
    fake.faults.append(dropping(1, of="DELETE"))
    outcome = faulty("lease", "release", "--kind", "k", "--token", token)
    assert outcome.said == {
        "ok": True,
        "code": "released",
        "kind": "k",
        "released": True,
        "wasExpired": False,
    }


def test_nobody_there_is_unreachable_and_sends_nothing(faulty):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        outcome = faulty("lease", "status", "--kind", "k", environment={"LEASEHUB_URL": url})
    assert outcome.status == 3
    assert outcome.said["code"] == "unreachable"
    assert url in outcome.said["message"]
    for remedy in ("`leasehub up`", "LEASEHUB_URL"):
        assert remedy in outcome.said["message"]
        assert remedy in outcome.errors
    assert "Traceback" not in outcome.errors


def test_a_name_without_an_address_is_unreachable(faulty):
    outcome = faulty("whoami", environment={"LEASEHUB_URL": "http://no-such-host.invalid:1"})
    assert outcome.status == 3
    assert outcome.said["code"] == "unreachable"


def test_a_server_that_does_not_answer_in_time_is_unreachable(fake):
    released = threading.Event()
    fake.faults.append(lambda handler: released.wait(10))
    connection = Connection(fake.url, "lh_alice", timeout=0.2)
    with pytest.raises(Unreachable) as caught:
        connection.call("GET", "/v1/whoami", attempts=1)
    released.set()
    assert caught.value.sent


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n<html",
        b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 4\r\n\r\noops",
        b"HTTP/1.1 301 Moved\r\nLocation: http://evil/\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000,
        b"HTTP/1.1 401 No\r\nContent-Length: 14\r\n\r\n" + b'{"error": "x"}',
    ],
)
def test_nonsense_is_unreachable_never_a_traceback(fake, faulty, raw):
    def nonsense(handler):
        handler.wfile.write(raw)
        handler.close_connection = True
        return True

    fake.faults.append(nonsense)
    outcome = faulty("lease", "status", "--kind", "k")
    assert outcome.status == 3
    assert outcome.said["code"] == "unreachable"
    assert "Traceback" not in outcome.errors


def answering(status, code, times=99, **fields):
    left = [times]

    def fault(handler):
        if not left[0]:
            return False
        left[0] -= 1
        handler.reply(status, {"error": {"code": code, "message": "no", **fields}})
        return True

    return fault


def test_a_server_that_is_busy_for_a_moment_is_asked_again(fake, connection):
    fake.faults.append(answering(503, "UNAVAILABLE", times=1, retry_after_ms=20))
    fake.faults.append(answering(409, "IN_PROGRESS", times=1, retry_after_ms=20))
    assert connection.call("GET", "/v1/whoami")["principal"] == "alice"
    assert len(fake.seen) == 3


@pytest.mark.parametrize(
    ("status", "code", "exit_status", "said"),
    [
        (503, "UNAVAILABLE", 3, "unreachable"),
        (500, "INTERNAL", 3, "internal"),
        (400, "VALIDATION_ERROR", 2, "usage"),
        (413, "PAYLOAD_TOO_LARGE", 2, "usage"),
        (401, "UNAUTHENTICATED", 1, "unauthenticated"),
        (429, "QUOTA_EXCEEDED", 1, "quota_exceeded"),
    ],
)
def test_the_servers_codes_have_their_exit_statuses(fake, faulty, status, code, exit_status, said):
    fake.faults.append(answering(status, code, retry_after_ms=10, fields={"kind": "is wrong"}))
    outcome = faulty("lease", "status", "--kind", "k")
    assert outcome.status == exit_status
    assert outcome.said["code"] == said


def test_a_refusal_carries_its_fields(fake, connection):
    fake.faults.append(answering(410, "LEASE_LOST", ended_by="reaped"))
    with pytest.raises(Refused) as caught:
        connection.call("GET", "/v1/whoami")
    assert caught.value.reason == "LEASE_LOST"
    assert caught.value.fields == {"ended_by": "reaped"}


def test_names_are_quoted():
    assert quoted("a/b c?é&#") == "a%2Fb%20c%3F%C3%A9%26%23"


def test_the_key_is_in_no_error_and_in_no_address(fake, faulty):
    fake.faults.append(dropping(99, of="GET"))
    outcome = faulty("lease", "status", "--kind", "k", environment={"LEASEHUB_TOKEN": "lh_s3cret"})
    assert "s3cret" not in outcome.text + outcome.errors
    assert all("s3cret" not in path for _, path, _, _ in fake.seen)
