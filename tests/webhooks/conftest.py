"""Endpoints that deliver to a receiver on this machine, and deliveries made in the test's own process."""

import ipaddress
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from leasehub.events.webhooks import courier, delivery
from leasehub.events.webhooks.models import WebhookDelivery, WebhookEndpoint
from leasehub.events.webhooks.sending import Outcome
from tests.conftest import Caster
from tests.webhooks.receiver import Receiver

LOOPBACK = (frozenset(), (ipaddress.ip_network("127.0.0.0/8"),))
#: Makes an endpoint of the receiver's; its answer, with the secret.
Subscribe = Callable[..., dict[str, Any]]


@pytest.fixture
def receivers(settings: Any) -> Iterator[Callable[[], Receiver]]:
    settings.LEASEHUB_WEBHOOK_ALLOW = LOOPBACK
    made: list[Receiver] = []

    def make() -> Receiver:
        made.append(Receiver())
        return made[-1]

    yield make
    for receiver in made:
        receiver.close()


@pytest.fixture
def receiver(receivers: Callable[[], Receiver]) -> Receiver:
    return receivers()


@pytest.fixture
def subscribe(operator: Caster, receiver: Receiver) -> Subscribe:
    def subscribed(to: Receiver = receiver, by: Caster = operator, **members: Any) -> dict[str, Any]:
        response = by.post("webhooks", {"url": to.url, **members})
        assert response.status_code == 201, response.content
        return dict(response.json()["data"])

    return subscribed


def send_all() -> list[Outcome]:
    """Tries each endpoint's next message once, as a worker does."""
    outcomes = []
    for due in delivery.due():
        attempt = delivery.take(endpoint=due.endpoint)
        if attempt is not None:
            outcomes.append(courier.tried(attempt))
            delivery.finish(attempt, outcomes[-1])
    return outcomes


def send_until_done() -> int:
    """Until nothing is due: how many attempts it took."""
    total = 0
    while made := len(send_all()):
        total += made
    return total


def row(endpoint: dict[str, Any]) -> WebhookEndpoint:
    return WebhookEndpoint.objects.get(public_id=endpoint["webhook_id"].removeprefix("whk_"))


def shown(caster: Caster, endpoint: dict[str, Any]) -> dict[str, Any]:
    return dict(caster.get(f"webhooks/{endpoint['webhook_id']}").json()["data"])


def log(caster: Caster, endpoint: dict[str, Any], query: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = caster.get(f"webhooks/{endpoint['webhook_id']}/deliveries{query}").json()["data"][
        "deliveries"
    ]
    return found


def pending() -> int:
    return WebhookDelivery.objects.filter(state="pending").count()
