"""leasehub webhook against a real server and a real receiver."""

import pytest
from standardwebhooks import Webhook

from tests.cli.conftest import until
from tests.cli.test_lease_verbs import acquired
from tests.webhooks.receiver import Receiver, status


@pytest.fixture
def receiver():
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def webhook(operator, receiver):
    """The flags that name an endpoint of the receiver's, and its secret."""
    made = operator("webhook", "create", "--url", receiver.url, "--types", "lease.acquired", "--description", "mine")
    assert (made.status, made.said["code"]) == (0, "created"), made.errors
    named = ["--webhook", made.said["webhook_id"]]
    yield named, made.said["secret"]
    assert operator("webhook", "delete", *named).said["code"] == "deleted"


def test_an_event_arrives_signed_and_is_replayed(operator, alice, webhook, receiver, kind):
    named, secret = webhook
    acquired(alice, kind)
    until(lambda: receiver.got)
    message = receiver.got[0]
    assert Webhook(secret).verify(message.body, message.headers)["data"]["resource_id"] == kind
    listed = until(
        lambda: [entry for entry in deliveries(operator, named) if entry["state"] == "delivered"],
    )
    again = operator("webhook", "replay", *named, "--delivery", listed[0]["delivery_id"])
    assert (again.status, again.said["code"], again.said["purpose"]) == (0, "queued", "replay")
    until(lambda: len(receiver.got) == 2)
    assert receiver.got[1].id == message.id
    span = operator("webhook", "replay", *named, "--after", message.position - 1, "--before", message.position + 1)
    assert (span.said["code"], span.said["queued"]) == ("queued", 1)
    until(lambda: len(receiver.got) == 3)


def deliveries(operator, named):
    listed = operator("webhook", "deliveries", *named, "--limit", "10").said
    assert listed["code"] == "listed"
    return listed["deliveries"]


def test_a_test_says_how_it_went(operator, webhook, receiver):
    named, _ = webhook
    outcome = operator("webhook", "test", *named)
    assert (outcome.status, outcome.said["code"], outcome.said["response_status"]) == (0, "delivered", 200)
    receiver.behave = status(500)
    outcome = operator("webhook", "test", *named)
    assert (outcome.status, outcome.said["code"], outcome.said["error"]) == (1, "failed", "answered 500")
    assert operator("webhook", "test", *named, "--wait-seconds", "0").said["code"] == "pending"


def test_it_is_paused_shown_resumed_and_its_secret_changed(operator, webhook):
    named, secret = webhook
    paused = operator("webhook", "pause", *named).said
    assert (paused["code"], paused["state"]) == ("paused", "paused")
    shown = operator("webhook", "show", *named)
    assert (shown.said["code"], shown.said["state"], "secret" in shown.said) == ("shown", "paused", False)
    assert operator("webhook", "resume", *named).said["state"] == "active"
    rotated = operator("webhook", "rotate", *named, "--overlap-seconds", "60").said
    assert rotated["code"] == "rotated" and rotated["secret"] not in ("", secret)
    listed = operator("webhook", "list").said
    assert named[1] in [entry["webhook_id"] for entry in listed["webhooks"]]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["create"], "--url"),
        (["show"], "--webhook"),
        (["rotate", "--webhook", "x", "--overlap-seconds", "-1"], "--overlap-seconds"),
        (["replay", "--webhook", "x"], "--delivery"),
        (["replay", "--webhook", "x", "--before", "3"], "--after"),
        (["replay", "--webhook", "x", "--delivery", "d", "--after", "3"], "--delivery"),
        (["deliveries", "--webhook", "x", "--limit", "201"], "--limit"),
    ],
)
def test_a_wrong_command_line_names_what_is_wrong(alice, arguments, named):
    outcome = alice("webhook", *arguments)
    assert (outcome.status, outcome.said["code"]) == (2, "usage")
    assert named in outcome.said["message"]


def test_refusals_carry_the_servers_code(alice, operator):
    assert alice("webhook", "list").said["code"] == "forbidden"
    missing = operator("webhook", "pause", "--webhook", "whk_" + "0" * 32)
    assert (missing.status, missing.said["code"]) == (1, "not_found")
    wrong = operator("webhook", "create", "--url", "https://hooks.example.org/", "--types", "lease.exploded")
    assert (wrong.status, wrong.said["code"]) == (2, "usage")
    assert "lease.exploded" in wrong.said["message"]
