"""The receiver of docs/webhooks.md, as it stands, told by a real server."""

import http.client
import re
import subprocess
import sys
import time

import pytest

from leasehub.events.webhooks.signing import signature
from tests.cli.conftest import ROOT, free_port, until

STARTED = "import sys; open(sys.argv[1], 'a').write(sys.argv[2] + '\\n')"


FILE = ROOT / "docs" / "examples" / "receiver.py"


def shown():
    """The example as the page shows it."""
    [text] = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "webhooks.md").read_text(), re.M | re.S)
    return text


@pytest.fixture
def listening(operator, tmp_path):
    """The receiver with an endpoint: its port, its secret, and the file that what it starts writes to."""
    port, file = free_port(), tmp_path / "started"
    made = operator("webhook", "create", "--url", f"http://127.0.0.1:{port}/", "--types", "handoff.created")
    assert made.status == 0, made.errors
    command = [sys.executable, str(FILE), str(port), sys.executable, "-c", STARTED, str(file)]
    secret = made.said["secret"]
    process = subprocess.Popen(command, env={"WEBHOOK_SECRET": secret}, stderr=subprocess.DEVNULL)
    try:
        until(lambda: answers(port))
        yield port, secret, file
    finally:
        process.kill()
        process.wait()
        operator("webhook", "delete", "--webhook", made.said["webhook_id"])


def answers(port):
    try:
        return post(port, b"{}")
    except ConnectionRefusedError:
        return None


def post(port, body, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request("POST", "/", body, {"Content-Type": "application/json", **named})
    status = connection.getresponse().status
    connection.close()
    return status


def test_the_page_shows_it_as_it_is_and_it_is_thirty_lines():
    assert shown() == FILE.read_text()
    assert len([line for line in shown().splitlines() if line.strip()]) <= 33


def test_a_handoff_starts_work_and_its_repetition_does_not(alice, bob, listening):
    port, secret, file = listening
    sent = alice("handoff", "send", "--to", "bob", "--subject", "deploy-41").said["handoff_id"]
    until(lambda: file.exists() and file.read_text() == f"{sent}\n")
    body = b'{"type":"handoff.created","data":{"data":{"handoff_id":"hoff_again"}}}'
    now = int(time.time())
    signed = signature(secret, message_id="evt_1", timestamp=now, body=body)
    told = {"webhook_id": "evt_1", "webhook_timestamp": str(now), "webhook_signature": f"v1,bm8= {signed}"}
    assert [post(port, body, **told) for _ in range(2)] == [204, 204]
    until(lambda: file.read_text().splitlines() == [sent, "hoff_again"])


def test_what_is_not_signed_or_old_starts_nothing(listening):
    port, secret, file = listening
    body = b'{"type":"handoff.created","data":{"data":{"handoff_id":"hoff_forged"}}}'
    old = int(time.time()) - 301
    stale = signature(secret, message_id="evt_1", timestamp=old, body=body)
    forgeries = [
        {},
        {"webhook_id": "evt_1", "webhook_timestamp": str(int(time.time())), "webhook_signature": "v1,AAAA"},
        {"webhook_id": "evt_1", "webhook_timestamp": "soon", "webhook_signature": "v1,AAAA"},
        {"webhook_id": "evt_1", "webhook_timestamp": str(old), "webhook_signature": stale},
    ]
    assert [post(port, body, **forged) for forged in forgeries] == [401] * 4
    assert not file.exists()
