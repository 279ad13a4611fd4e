"""What a forked process has of its parent's leases, a server that is started again, certificates, and imports."""

import datetime
import os
import ssl
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from leasehub.client import Hub, Unreachable, Usage
from leasehub.client.hub import connect
from tests.cli.conftest import ROOT, until


def in_a_fork(function):
    """What it prints there; the process ends without pytest's own ends."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            os.write(writing, repr(function()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        said = stream.read()
    os.waitpid(process, 0)
    return said


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_process_neither_beats_nor_releases_what_its_parent_holds(hub, proxy, name):
    with hub.lease("deploy", name, ttl=60) as lease:
        beats = f"/v1/leases/{lease.lease_id}/heartbeat"

        def child():
            with lease:
                # Long enough for a beat, were there a thread for it.
                lease._kept.next_at = 0
                time.sleep(0.5)
            released = lease.release()
            with pytest.raises(Usage):
                lease.heartbeat()
            return released, threading.active_count()

        before = proxy.of("POST", beats)
        assert in_a_fork(child) == "(False, 1)"
        assert proxy.of("POST", beats) == before
        assert proxy.of("DELETE", f"/v1/leases/{lease.lease_id}") == 0
        assert hub.status("deploy", name)["state"] == "held"
        lease.heartbeat()


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_process_is_a_holder_of_its_own_on_connections_of_its_own(hub, name):
    with hub.lease("deploy", name):

        def child():
            with hub.lease("deploy", f"{name}-child", ttl=1) as own:
                time.sleep(1.5)
                return own.holder != lease_holder and not own.lost

        lease_holder = hub.holder
        assert in_a_fork(child) == "True"
        assert hub.holder == lease_holder


@pytest.mark.processes
def test_a_server_that_is_started_again_costs_no_lease_and_doubles_nothing(server, alices_key, name):
    done = []
    with Hub(server["url"], alices_key, retry_seconds=120) as hub:
        lease = hub.lease("deploy", name, ttl=120)
        server.stop()
        putting = threading.Thread(target=lambda: done.append(hub.put(name, 1)))
        putting.start()
        server.start()
        putting.join(120)
        lease.heartbeat()
        assert hub.status("deploy", name)["fencing_token"] == lease.fencing_token
        assert lease.release()
        with hub.claim(name, wait=0) as claim:
            assert claim.task_id == done[0]["task_id"]


def test_credentials_are_found_as_the_command_line_finds_them(server, monkeypatch, name):
    monkeypatch.setenv("LEASEHUB_URL", server["url"])
    monkeypatch.setenv("LEASEHUB_TOKEN", server["token"])
    with connect() as hub:
        assert hub.whoami()["principal"] == server["principal"]
        assert hub.holder.startswith(f"{server['principal']}:")
        assert hub.holder.endswith(f":{os.getpid()}")


@pytest.fixture
def secure(tmp_path):
    """A server with a certificate that nobody knows: its address, and the certificate."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path / "both.pem"
    file.write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self):
            content = b'{"data": {"principal": "alice"}}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments):
            pass

    class Server(HTTPServer):
        def handle_error(self, request, client_address):
            """A client that does not trust it hangs up."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    server = Server(("127.0.0.1", 0), Answers)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server.server_address[1], file
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_certificate_must_be_trusted_and_be_the_servers(secure):
    port, file = secure
    with Hub(f"https://localhost:{port}", "lh_x", retry_seconds=30) as hub, pytest.raises(Unreachable) as refused:
        hub.whoami()
    assert "certificate" in str(refused.value)
    trusting = ssl.create_default_context(cafile=file)
    with Hub(f"https://localhost:{port}", "lh_x", tls=trusting) as hub:
        assert hub.whoami()["principal"] == "alice"
    with Hub(f"https://127.0.0.1:{port}", "lh_x", tls=trusting) as hub, pytest.raises(Unreachable):
        hub.whoami()


def test_importing_it_imports_nothing_of_the_server_and_nothing_that_is_slow():
    script = (
        "import sys; before = set(sys.modules)\n"
        "import leasehub.client; bare = set(sys.modules) - before\n"
        "leasehub.client.connect; leasehub.client.Claim; leasehub.client.LeaseLost\n"
        "print(sorted(bare)); print(sorted(set(sys.modules) - before))"
    )
    ran = subprocess.run(
        [sys.executable, "-S", "-E", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    bare, whole = (set(eval(line)) for line in ran.stdout.splitlines())
    assert bare == {"leasehub", "leasehub.client"}
    assert (
        whole & {"django", "ssl", "http.client", "argparse", "asyncio", "logging", "urllib.request", "email"} == set()
    )


def test_what_there_is_not_is_an_attribute_error():
    import leasehub.client

    with pytest.raises(AttributeError, match="nonsense"):
        leasehub.client.nonsense  # noqa: B018
    assert until(lambda: leasehub.client.Conflict).__name__ == "Conflict"
