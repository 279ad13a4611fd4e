"""A person's way through the pages, in Debian's chromium."""

import json
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User

from leasehub.identity import services as identity
from tests.browser import SIZES, keep, no_wider_than_the_screen, open_page

PASSWORD = "correct-horse-battery"

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]


class Api:
    """An agent that speaks HTTP to the live server, as the browser does: playwright's loop forbids the ORM here."""

    def __init__(self, server: str, secret: str) -> None:
        self.server, self.secret = server, secret

    def __call__(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        status, answer = self.answered(method, path, body)
        return status, answer["data" if status < 400 else "error"]

    def bare(self, method: str, path: str, body: Any) -> Any:
        """The answer of the one operation that has no envelope."""
        return self.answered(method, path, body)[1]

    def answered(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        request = urllib.request.Request(
            f"{self.server}/v1/{path}",
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {self.secret}", "Content-Type": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)


@pytest.fixture
def people(transactional_db: None, live_server: Any) -> dict[str, Api]:
    """An organization with two agents, and mara, a person who can sign in."""
    organization = identity.create_organization(name="acme")
    agents = {}
    for handle in ("builder", "watcher"):
        principal = identity.create_principal(organization=organization.pk, handle=handle)
        agents[handle] = Api(live_server.url, identity.issue_key(principal=principal)[1])
    operator = identity.create_principal(organization=organization.pk, handle="operator")
    agents["operator"] = Api(live_server.url, identity.issue_key(principal=operator, rings=(1, 2, 3))[1])
    user = User.objects.create_user("mara", password=PASSWORD)
    identity.create_principal(organization=organization.pk, handle="mara", kind="human", user=user)
    return agents


def sign_in(page: Any) -> None:
    page.goto("/")
    page.get_by_label("Name").fill("mara")
    page.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Sign out").wait_for()


HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


def hand_over(builder: Api, resource_id: str = "checkout") -> tuple[dict[str, Any], str]:
    """A deploy that is half done, and its lease, for mara."""
    _, lease = builder(
        "POST",
        "leases",
        {"resource_type": "deploy", "resource_id": resource_id, "ttl_seconds": 600, "purpose": "release 41"},
    )
    _, checkpoint = builder("PUT", "checkpoints/release-41/task_state", {"state": {"hosts": ["web-07", "web-08"]}})
    status, sent = builder(
        "POST",
        "handoffs",
        {
            "to_principal": "mara",
            "subject_id": "release-41",
            "checkpoint_id": checkpoint.get("checkpoint_id"),
            "message": f"Six of eight hosts run release 41. The last two need somebody who may drain them.\n{HOSTILE}",
            "next_action": "./deploy --from web-07 --drain",
            "done": ["web-01 to web-06 run 41", "the canary was watched for 20 minutes"],
            "decisions": [{"what": "no database change", "why": "40 brought it already"}],
            "failed_approaches": [{"what": "all hosts at once", "why": "the balancer times out"}],
            "blockers": ["draining wants a person"],
            "artifacts": [
                {
                    "kind": "log",
                    "uri": "https://ci.example/runs/9041",
                    "sha256": "ab" * 32,
                    "note": "the last green run",
                },
                {"kind": "page", "uri": "javascript:alert(1)"},
            ],
            "state": {"repo": "shop", "branch": "release-41", "commit": "3f9d51f", "dirty": False},
            "lease_ids": [lease["lease_id"]],
            "context_id": "sprint-9",
        },
    )
    assert status == 201, sent
    return lease, sent["handoff_id"]


def test_a_person_takes_over_what_an_agent_sent_and_the_agent_sees_it(
    people: dict[str, Api], live_server: Any, browser: Any
) -> None:
    builder, watcher = people["builder"], people["watcher"]
    lease, handoff_id = hand_over(builder)
    page, complaints = open_page(browser, live_server.url)
    sign_in(page)
    page.get_by_role("link", name="Inbox").first.click()
    page.get_by_role("link", name="release-41").click()
    body = page.locator("main")
    for text in (
        "./deploy --from web-07 --drain",
        "web-01 to web-06 run 41",
        "no database change",
        "javascript:alert(1)",
        HOSTILE,
        "web-08",
    ):
        assert text in body.inner_text()
    assert page.title() != "owned"
    assert page.locator("main a[href^='javascript'], main a[href*='ci.example']").count() == 0
    first = page.locator("time[data-left-ms]").first
    before = first.inner_text()
    page.wait_for_function(
        "([time, before]) => time.isConnected === false || time.textContent !== before",
        arg=[first.element_handle(), before],
    )
    page.get_by_role("button", name="Accept").click()
    assert "Accepted." in page.get_by_role("status").first.inner_text()

    _, shown = builder("GET", f"handoffs/{handoff_id}")
    assert (shown["status"], shown["holder"]) == ("accepted", "mara")
    (moved,) = shown["leases"]
    status, lost = builder("POST", f"leases/{lease['lease_id']}/heartbeat", {"fencing_token": lease["fencing_token"]})
    assert (status, lost["code"], lost["ended_by"]) == (410, "LEASE_LOST", "transferred")
    taken, _ = watcher("POST", "leases", {"resource_type": "deploy", "resource_id": "checkout", "ttl_seconds": 60})
    assert taken == 409
    assert 8 * 3600_000 - 60_000 < moved["expires_in_ms"] <= 8 * 3600_000

    page.get_by_label("Result").fill("drained and deployed")
    page.get_by_role("button", name="Complete").click()
    page.get_by_text("Completed.").wait_for()
    assert builder("GET", f"handoffs/{handoff_id}")[1]["result"] == "drained and deployed"
    assert complaints == []


def test_the_badge_and_the_board_update_by_themselves(people: dict[str, Api], live_server: Any, browser: Any) -> None:
    builder = people["builder"]
    page, complaints = open_page(browser, live_server.url)
    sign_in(page)
    page.get_by_role("link", name="Leases", exact=True).click()
    page.get_by_text("everything is free").wait_for()
    _, handoff_id = hand_over(builder)
    page.get_by_role("link", name="deploy/checkout").wait_for()
    page.locator("#badge .badge").wait_for(timeout=15_000)
    assert page.locator("#badge").inner_text().startswith("1")
    page.goto(f"/handoffs/{handoff_id}")
    builder("POST", f"handoffs/{handoff_id}/withdraw", {"reason": "did it myself"})
    page.get_by_text("did it myself").wait_for()
    assert page.get_by_role("button", name="Accept").count() == 0
    assert complaints == []


def test_a_pool_s_page_updates_by_itself_and_leaves_the_keyboard_where_it_is(
    people: dict[str, Api], live_server: Any, browser: Any
) -> None:
    share_slots_and_tasks(people)
    page, complaints = open_page(browser, live_server.url)
    sign_in(page)
    page.get_by_role("link", name="Pools").click()
    page.get_by_role("link", name="e2e").press("Enter")
    third = page.get_by_role("link", name="3", exact=True)
    third.focus()
    people["builder"]("POST", "pools/e2e/requests", {"mode": "async", "holder": "late"})
    page.get_by_role("cell", name="late builder").wait_for()
    assert third.evaluate("element => element === document.activeElement")
    page.get_by_role("link", name="Queues").click()
    page.get_by_role("link", name="thumbnails").press("Enter")
    claimed = people["builder"].bare("POST", "leases/hot-claim", {"queue": "thumbnails"})
    page.get_by_role("link", name=claimed["task_id"]).wait_for()
    assert complaints == []


def test_a_person_rejects_and_sends_without_javascript_by_keyboard(
    people: dict[str, Api], live_server: Any, browser: Any
) -> None:
    builder = people["builder"]
    lease, handoff_id = hand_over(builder)
    page, complaints = open_page(browser, live_server.url, java_script_enabled=False)
    sign_in(page)
    page.goto(f"/handoffs/{handoff_id}")
    page.get_by_role("button", name="Reject").press("Enter")
    page.get_by_label("Or reject it, with a reason").fill("no access\nto web-07")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.get_by_text("Rejected.").wait_for()
    _, shown = builder("GET", f"handoffs/{handoff_id}")
    assert (shown["status"], shown["reason"]) == ("rejected", "no access\nto web-07")
    beat, _ = builder("POST", f"leases/{lease['lease_id']}/heartbeat", {"fencing_token": lease["fencing_token"]})
    assert beat == 200

    page.goto("/handoffs/new")
    page.get_by_label("To", exact=True).fill("bilder")
    page.get_by_label("Subject").fill("release-42")
    page.get_by_role("button", name="Send").press("Enter")
    page.get_by_text("Did you mean builder?").wait_for()
    page.get_by_label("To", exact=True).fill("builder")
    page.get_by_role("button", name="Send").press("Enter")
    page.get_by_text("Sent to builder.").wait_for()
    assert builder("GET", "handoffs")[1]["handoffs"][0]["from_principal"] == "mara"
    page.get_by_role("button", name="Withdraw").press("Enter")
    page.get_by_text("Withdrawn.").wait_for()
    assert builder("GET", "handoffs")[1]["handoffs"] == []
    assert complaints == []


def share_slots_and_tasks(people: dict[str, Api]) -> None:
    """A pool with free, leased and drained slots and a queue before it; a queue of tasks, one of them dead."""
    builder, operator = people["builder"], people["operator"]
    operator("PUT", "pools/e2e", {"slots": [{"id": number, "os": "linux"} for number in range(1, 7)]})
    operator("POST", "pools/e2e/slots/6/drain", {})
    for number in range(6):
        body = {"mode": "async", "holder": f"e2e-{number}", "count": 1 + number % 2}
        _, asked = builder("POST", "pools/e2e/requests", body)
        if number == 0:
            grant = asked["grants"][0]
            beat = {"fencing_token": grant["fencing_token"]}
            builder("POST", f"pools/e2e/slots/{grant['slot_id']}/release", beat)
    builder("POST", "queues/thumbnails/tasks", {"tasks": [{"payload": number} for number in range(9)]})
    claimed = [builder.bare("POST", "leases/hot-claim", {"queue": "thumbnails"}) for _ in range(3)]
    failed = {"fencing_token": claimed[0]["fencing_token"], "error": "no space left on device", "final": True}
    builder("POST", f"tasks/{claimed[0]['task_id']}/fail", failed)


@pytest.mark.parametrize("size", SIZES)
def test_every_page_fits_its_screen_and_is_kept_as_a_picture(
    size: str, people: dict[str, Api], live_server: Any, browser: Any
) -> None:
    builder, watcher = people["builder"], people["watcher"]
    for name in ("checkout", "checkout", "search"):
        _, held = watcher(
            "POST",
            "leases",
            {"resource_type": "deploy", "resource_id": name, "ttl_seconds": 60, "holder": f"ci-{name}"},
        )
        watcher("DELETE", f"leases/{held['lease_id']}")
    _, handoff_id = hand_over(builder)
    accept_by = (datetime.now(UTC) + timedelta(hours=2)).isoformat()
    for number in range(3):
        watcher(
            "POST",
            "leases",
            {
                "resource_type": "branch",
                "resource_id": f"feature/{'long-' * number * 6}name",
                "ttl_seconds": 3600,
                "purpose": "rebase, then merge",
            },
        )
        watcher(
            "POST",
            "handoffs",
            {
                "to_principal": "mara",
                "subject_id": f"review-{number}",
                "message": "Two of five files are looked at.",
                "accept_by": accept_by,
            },
        )
    share_slots_and_tasks(people)
    page, complaints = open_page(browser, live_server.url, size)
    page.goto("/sign-in")
    keep(page, "sign-in", size)
    sign_in(page)
    resource = "/resource?resource_type=deploy&resource_id=checkout"
    pages = {
        "home": "/",
        "inbox": "/handoffs",
        "handoff": f"/handoffs/{handoff_id}",
        "sent-empty": "/handoffs/sent",
        "send": f"/handoffs/new?parent_id={handoff_id}",
        "board": "/board",
        "pools": "/pools",
        "pool": "/pools/e2e",
        "queues": "/queues",
        "queue": "/queue?name=thumbnails",
        "resource": resource,
        "events": "/events",
    }
    for name, address in pages.items():
        page.goto(address)
        keep(page, name, size)
        assert no_wider_than_the_screen(page), name
    page.goto(f"/handoffs/{handoff_id}")
    page.get_by_role("button", name="Accept").click()
    page.get_by_text("Accepted.").wait_for()
    keep(page, "handoff-accepted", size)
    page.goto("/handoffs/new")
    page.get_by_label("To", exact=True).fill("bilder")
    page.get_by_label("Subject").fill("release-41")
    page.get_by_label("deploy/checkout").check()
    page.get_by_role("button", name="Send").click()
    page.get_by_text("Did you mean builder?").wait_for()
    keep(page, "send-refused", size)
    page.get_by_label("To", exact=True).fill("builder")
    page.get_by_role("button", name="Send").click()
    page.get_by_text("Sent to builder.").wait_for()
    keep(page, "handoff-sent", size)
    page.goto("/handoffs/sent")
    keep(page, "sent", size)
    page.goto(resource)
    keep(page, "resource-moved", size)
    # What was asked for on purpose below is no complaint.
    assert complaints == []
    page.goto("/handoffs/hoff_unknown")
    page.get_by_text("There is nothing here by that name").wait_for()
    keep(page, "not-found", size)
