"""The operator's screens of webhooks."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from leasehub.events.models import WebhookDelivery, WebhookEndpoint
from leasehub.events.webhooks import delivery, queries
from tests.admin.conftest import act, plan, signed_in, told
from tests.conftest import Caster
from tests.webhooks.conftest import Subscribe, log, row, send_all, send_until_done, shown
from tests.webhooks.receiver import Receiver, status

ENDPOINTS, DELIVERIES = "events/webhookendpoint", "events/webhookdelivery"
MANY = 20_000


@pytest.fixture
def root(db: None) -> Client:
    return signed_in(User.objects.create_superuser("root", password="not-used-here"))


def page(client: Client, address: str, **query: Any) -> str:
    response = client.get(f"/admin/{address}/", query)
    assert response.status_code == 200
    return str(response.content.decode())


def test_endpoints_and_their_log_are_shown_without_the_secret(
    root: Client, agent: Caster, subscribe: Subscribe, receiver: Receiver
) -> None:
    endpoint = subscribe(types=["lease.acquired"], description="<b>pager</b>")
    agent.acquire()
    send_until_done()
    listed = page(root, ENDPOINTS)
    assert f"127.0.0.1:{receiver.port}/hook" in listed and "lease.acquired" in listed
    one = page(root, f"{ENDPOINTS}/{row(endpoint).pk}/change")
    assert endpoint["webhook_id"] in one and "<b>pager" not in one and endpoint["secret"] not in one
    assert "lease.acquired" in page(root, DELIVERIES, endpoint=row(endpoint).pk)
    (entry,) = WebhookDelivery.objects.all()
    assert entry.message_id in page(root, f"{DELIVERIES}/{entry.pk}/change")


def test_a_disabled_one_is_noted_with_its_reason(
    root: Client, agent: Caster, subscribe: Subscribe, receiver: Receiver
) -> None:
    receiver.behave = status(410)
    subscribe()
    agent.acquire()
    send_all()
    listed = root.get(f"/admin/{ENDPOINTS}/")
    assert any("of acme is disabled: the receiver answered 410 Gone" in note for note in told(listed))
    assert "DISABLED" in listed.content.decode()


def test_the_actions_call_the_services(
    root: Client, operator: Caster, subscribe: Subscribe, receiver: Receiver
) -> None:
    endpoint = subscribe()
    meant = row(endpoint).pk
    act(root, ENDPOINTS, "pause", meant)
    assert shown(operator, endpoint)["state"] == "paused"
    act(root, ENDPOINTS, "resume", meant)
    assert shown(operator, endpoint)["state"] == "active"
    act(root, ENDPOINTS, "send_test", meant)
    send_until_done()
    assert log(operator, endpoint)[0]["state"] == "delivered"
    act(root, ENDPOINTS, "delete_for_good", meant)
    assert operator.get(f"webhooks/{endpoint['webhook_id']}").status_code == 404
    assert f"127.0.0.1:{receiver.port}" not in page(root, ENDPOINTS)
    assert "webhook.test" not in page(root, DELIVERIES).partition("<tbody>")[2]


def test_a_delivery_is_replayed_and_a_refusal_is_told(
    root: Client, agent: Caster, operator: Caster, subscribe: Subscribe, receiver: Receiver
) -> None:
    endpoint = subscribe()
    agent.acquire()
    operator.post(f"webhooks/{endpoint['webhook_id']}/test")
    send_until_done()
    rows = WebhookDelivery.objects.values_list("pk", flat=True)
    answer = act(root, DELIVERIES, "replay", *rows)
    assert any("A test is not replayed" in note for note in told(answer)) and "1 done." in told(answer)
    send_until_done()
    assert receiver.positions.count(1) == 2


def test_who_may_only_look_changes_nothing(subscribe: Subscribe, operator: Caster) -> None:
    endpoint = subscribe()
    user = User.objects.create_user("looker", is_staff=True)
    names = ["view_webhookendpoint", "view_webhookdelivery"]
    user.user_permissions.add(*Permission.objects.filter(codename__in=names))
    looker = signed_in(user)
    assert "Pause:" not in page(looker, ENDPOINTS)
    act(looker, ENDPOINTS, "pause", row(endpoint).pk)
    assert shown(operator, endpoint)["state"] == "active"
    assert looker.post(f"/admin/{ENDPOINTS}/{row(endpoint).pk}/delete/", {"post": "yes"}).status_code == 403


@pytest.fixture
def many(subscribe: Subscribe, stranger: Caster) -> WebhookEndpoint:
    """An endpoint with a log, and another organization's with a much longer one."""
    endpoints = [row(subscribe()), row(subscribe(by=stranger))]
    at = timezone.now()
    WebhookDelivery.objects.bulk_create(
        [
            WebhookDelivery(
                endpoint=endpoints[number % 20 > 0],
                purpose="feed",
                event_id=f"{number:032x}",
                position=number,
                type="lease.acquired",
                state="delivered",
                created_at=at,
                ended_at=at,
            )
            for number in range(1, MANY)
        ],
        batch_size=1000,
    )
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE events_webhookdelivery, events_webhookendpoint")
    return endpoints[0]


def plans_of(look: Callable[[], object]) -> list[str]:
    with CaptureQueriesContext(connection) as captured:
        look()
    read = [
        query["sql"] for query in captured if query["sql"].startswith("SELECT") and "webhookdelivery" in query["sql"]
    ]
    assert read
    return [plan(sql) for sql in read]


def reads_the_log(plan: str, *, but_for_its_end: bool = False) -> bool:
    """Goes through all deliveries, or through all of one endpoint's."""
    if connection.vendor == "postgresql":
        return "Seq Scan on events_webhookdelivery" in plan
    whole = any(line.startswith("SCAN") and "webhookdelivery" in line for line in plan.splitlines())
    return (whole or "webhook_log" in plan) and (not but_for_its_end or "TEMP B-TREE" in plan)


def test_what_delivers_reads_no_log(many: WebhookEndpoint, agent: Caster) -> None:
    agent.acquire()
    for look in (delivery.due, lambda: delivery.take(endpoint=many.pk), queries.webhook_backlog):
        assert not any(reads_the_log(found) for found in plans_of(look))


@pytest.mark.parametrize("query", ["", "?state=failed", "?state=pending", "?endpoint=1", "?organization=1"])
def test_the_screens_read_the_end_of_the_log_alone(query: str, many: WebhookEndpoint, root: Client) -> None:
    query = query.replace("endpoint=1", f"endpoint={many.pk}")
    query = query.replace("organization=1", f"organization={many.organization_id}")
    for found in plans_of(lambda: root.get(f"/admin/{DELIVERIES}/{query}")):
        assert not reads_the_log(found, but_for_its_end=True), found
