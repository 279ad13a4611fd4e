from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from leasehub.identity import services as identity
from leasehub.identity.models import Organization, Principal
from tests.conftest import Caster, cast
from tests.handoffs.conftest import resolve, sent, show

ADDRESSES = ("/", "/handoffs", "/handoffs/accepted", "/handoffs/sent", "/handoffs/new", "/board", "/events")
HOSTILE = "<b onclick=x>'\"&"


def person_of(organization: Organization, handle: str) -> Client:
    """A person who is signed in."""
    user = User.objects.create_user(f"{organization.name}-{handle}")
    identity.create_principal(organization=organization.pk, handle=handle, kind="human", user=user)
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def mara(organization: Organization) -> Client:
    return person_of(organization, "mara")


def test_a_stranger_is_sent_to_sign_in_and_comes_back(organization: Organization) -> None:
    client = Client()
    for address in ADDRESSES:
        response = client.get(address)
        assert (response.status_code, response.headers["Location"]) == (302, f"/sign-in?next={address}")
    User.objects.create_user("mara", password="correct-horse-battery")
    wrong = client.post("/sign-in", {"username": "mara", "password": "wrong", "next": "/board"})
    assert b"do not fit" in wrong.content
    body = {"username": "mara", "password": "correct-horse-battery"}
    assert client.post("/sign-in", body | {"next": "/board"}).headers["Location"] == "/board"
    client.post("/sign-out")
    assert client.get("/board").status_code == 302
    assert client.post("/sign-in", body | {"next": "https://elsewhere.example/"}).headers["Location"] == "/"


def test_a_live_part_of_somebody_signed_out_sends_the_whole_page_to_sign_in() -> None:
    response = Client().get("/board", headers={"HX-Request": "true"})
    assert (response.status_code, response.headers["HX-Redirect"]) == (401, "/sign-in")


def test_a_user_without_a_principal_and_a_retired_one_see_nothing(
    organization: Organization, mara: Client, agent: Caster
) -> None:
    agent.acquire("secret-name")
    assert b"secret-name" in mara.get("/board").content
    identity.retire_principal(organization=organization.pk, handle="mara")
    admin = Client()
    admin.force_login(User.objects.create_superuser("root"))
    for client in (mara, admin):
        for address in ADDRESSES:
            response = client.get(address)
            assert response.status_code == 403
            assert b"secret-name" not in response.content


def test_pages_carry_a_policy_that_allows_nothing_inline(mara: Client) -> None:
    for address in ADDRESSES:
        response = mara.get(address)
        policy = response.headers["Content-Security-Policy"]
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        for inline in (b" style=", b"<style", b" onclick=", b"javascript:"):
            assert inline not in response.content


def test_every_page_shows_what_there_is_in_under_twelve_queries(agent: Caster, teammate: Caster, mara: Client) -> None:
    ids = []
    for number in range(12):
        lease = agent.acquire(f"r{number}").json()["data"]
        checkpoint = agent.put(f"checkpoints/s{number}/k", {"state": number}).json()["data"]["checkpoint_id"]
        members = {"lease_ids": [lease["lease_id"]], "message": HOSTILE, "checkpoint_id": checkpoint}
        ids.append(sent(agent, "mara", subject_id=f"s{number}", **members))
    for handoff_id in ids[:3]:
        mara.post(f"/handoffs/{handoff_id}/accept")
    mara.post("/handoffs/new", {"to_principal": "agent", "subject_id": "back"})
    # The first reader after news numbers it, once.
    mara.get("/events")
    own = (f"/handoffs/{ids[0]}", f"/handoffs/{ids[5]}", "/resource?resource_type=deploy&resource_id=r0")
    for address in (*ADDRESSES, *own, "/handoffs/badge"):
        for partial in (False, True):
            with CaptureQueriesContext(
                connection,
            ) as captured:
                response = mara.get(address, headers={"HX-Request": "true"} if partial else {})
            assert response.status_code == 200, address
            assert HOSTILE.encode() not in response.content
            reads = [query for query in captured if query["sql"].startswith("SELECT")]
            assert len(reads) < 12, (address, [query["sql"] for query in reads])
            assert (b"<html" in response.content) is not (partial or address == "/handoffs/badge")


def test_a_handoff_is_shown_to_its_parties_alone(
    organization: Organization, agent: Caster, teammate: Caster, mara: Client, stranger: Caster
) -> None:
    handoff_id = sent(agent, "mara")
    other = person_of(organization, "omar")
    outsider = person_of(stranger.principal.organization, "mara")
    assert mara.get(f"/handoffs/{handoff_id}").status_code == 200
    for client in (other, outsider):
        there, nowhere = (client.get(f"/handoffs/{name}") for name in (handoff_id, "hoff_" + "0" * 32))
        assert there.status_code == nowhere.status_code == 404
        for verb in ("accept", "reject", "withdraw", "complete"):
            assert client.post(f"/handoffs/{handoff_id}/{verb}", {"reason": "x"}).status_code == 404
        assert client.get(f"/handoffs/new?parent_id={handoff_id}").status_code == 404
    assert show(agent, handoff_id)["status"] == "pending"


def test_another_organization_is_not_on_the_board_nor_in_the_log(agent: Caster, mara: Client, stranger: Caster) -> None:
    stranger.acquire("their-own")
    for address in ("/board", "/events", "/"):
        assert b"their-own" not in mara.get(address).content
    assert mara.get("/resource?resource_type=deploy&resource_id=their-own").status_code == 404


def test_deciding_is_by_post_and_with_a_token_of_the_form(agent: Caster, mara: Client) -> None:
    handoff_id = sent(agent, "mara")
    for verb in ("accept", "reject", "withdraw", "complete"):
        assert mara.get(f"/handoffs/{handoff_id}/{verb}").status_code == 405
    careful = Client(enforce_csrf_checks=True)
    careful.force_login(User.objects.get(username="acme-mara"))
    assert careful.post(f"/handoffs/{handoff_id}/accept").status_code == 403
    assert show(agent, handoff_id)["status"] == "pending"


def test_a_decision_that_comes_too_late_says_so(agent: Caster, mara: Client) -> None:
    handoff_id = sent(agent, "mara")
    agent.post(f"handoffs/{handoff_id}/withdraw")
    response = mara.post(f"/handoffs/{handoff_id}/accept", follow=True)
    assert b"too late" in response.content
    assert show(agent, handoff_id)["status"] == "withdrawn"


def test_rejecting_without_a_reason_shows_the_handoff_again(agent: Caster, mara: Client) -> None:
    handoff_id = sent(agent, "mara")
    response = mara.post(f"/handoffs/{handoff_id}/reject", {"reason": " "})
    assert b"required" in response.content
    assert show(agent, handoff_id)["status"] == "pending"


def test_a_secret_in_a_form_is_refused_at_its_field(agent: Caster, mara: Client) -> None:
    secret = "ghp_0123456789abcdefghij0123456789abcdef"
    response = mara.post("/handoffs/new", {"to_principal": "agent", "subject_id": "x", "message": secret})
    assert b"looks like a credential" in response.content
    assert agent.get("handoffs").json()["data"]["handoffs"] == []


def test_a_person_hands_an_accepted_one_on_with_its_lease(agent: Caster, teammate: Caster, mara: Client) -> None:
    lease = agent.acquire().json()["data"]
    first = sent(agent, "mara", subject_id="deploy-41", lease_ids=[lease["lease_id"]])
    mara.post(f"/handoffs/{first}/accept")
    held = agent.get("leases?holder=mara").json()["data"]["leases"][0]["lease_id"]
    page = mara.get(f"/handoffs/new?parent_id={first}").content.decode()
    assert held in page
    assert 'value="deploy-41"' in page
    body = {"to_principal": "teammate", "subject_id": "deploy-41", "lease_ids": [held], "hours": "8"}
    mara.post(f"/handoffs/new?parent_id={first}", body)
    (second,) = teammate.get("handoffs").json()["data"]["handoffs"]
    assert (second["parent_id"], second["hop"]) == (first, 1)
    assert 7 * 3600_000 < second["accept_by_in_ms"] <= 8 * 3600_000
    assert len(resolve(teammate, second["handoff_id"]).json()["data"]["leases"]) == 1


def test_only_ones_own_leases_can_be_ticked(agent: Caster, mara: Client) -> None:
    lease = agent.acquire().json()["data"]["lease_id"]
    response = mara.post("/handoffs/new", {"to_principal": "agent", "subject_id": "x", "lease_ids": [lease]})
    assert b"not one of the available choices" in response.content


def test_pages_render_when_everybody_else_is_gone(agent: Caster, operator: Caster, mara: Client) -> None:
    lease = agent.acquire().json()["data"]
    received = sent(agent, "mara", lease_ids=[lease["lease_id"]])
    mara.post("/handoffs/new", {"to_principal": "agent", "subject_id": "back"})
    operator.post("principals/agent/retire")
    operator.delete(f"keys/{Principal.objects.get(handle='agent').keys.get().key_id}")
    for address in (*ADDRESSES, f"/handoffs/{received}", "/resource?resource_type=deploy&resource_id=checkout"):
        assert mara.get(address).status_code == 200
    assert b"Accepted. 1" in mara.post(f"/handoffs/{received}/accept", follow=True).content


def test_the_live_part_of_a_decided_handoff_asks_for_the_whole_page(agent: Caster, mara: Client) -> None:
    handoff_id = sent(agent, "mara")
    polled = f"/handoffs/{handoff_id}?status=pending"
    assert "HX-Refresh" not in mara.get(polled, headers={"HX-Request": "true"}).headers
    agent.post(f"handoffs/{handoff_id}/withdraw")
    assert mara.get(polled, headers={"HX-Request": "true"}).headers["HX-Refresh"] == "true"


@pytest.mark.parametrize(
    "address",
    [
        "/board?q=%00&state=%00&after=x",
        "/events?type=none&before=-1",
        "/events?before=99999999999999999999",
        "/handoffs?after=%F0%9F",
        "/board?q=%ED%A0%80",
        "/resource?resource_type=%00&resource_id=%ED%A0%80",
        "/resource",
        "/handoffs/%00",
        "/handoffs/new?parent_id=%00",
    ],
)
def test_strange_addresses_are_no_failure(mara: Client, address: str) -> None:
    assert mara.get(address).status_code in (200, 404)


def test_the_board_finds_by_the_beginning_of_resource_or_holder(agent: Caster, teammate: Caster, mara: Client) -> None:
    agent.acquire("checkout")
    teammate.acquire("search", holder="night-1")
    for text, found in [("deploy", 2), ("deploy/ch", 1), ("search", 1), ("night", 1), ("eploy", 0)]:
        content = mara.get("/board", {"q": text}).content
        assert content.count(b'scope="row"') == found, text


def test_the_board_and_the_log_go_on_over_pages(agent: Caster, mara: Client) -> None:
    for number in range(60):
        agent.acquire(f"r{number:02}")
    first = mara.get("/board").content.decode()
    assert first.count('scope="row"') == 50
    following = first.split('id="more" href="')[1].split('"')[0].replace("&amp;", "&")
    assert mara.get(f"/board{following}").content.count(b'scope="row"') == 10
    log = mara.get("/events").content.decode()
    older = log.split('id="older" href="')[1].split('"')[0].replace("&amp;", "&")
    assert log.count('scope="row"') == 50
    assert mara.get(f"/events{older}").content.count(b'scope="row"') == 10


def test_a_resource_shows_who_held_it_when(agent: Caster, teammate: Caster, mara: Client, clock: Any) -> None:
    agent.acquire(holder="day-1")
    clock.move(seconds=60)
    lease = teammate.acquire(holder="night-1").json()["data"]
    clock.move(seconds=30)
    teammate.delete(f"leases/{lease['lease_id']}")
    clock.move(seconds=30)
    content = mara.get("/resource?resource_type=deploy&resource_id=checkout").content.decode()
    assert content.count("<title>") == 3
    assert "<title>day-1," in content
    assert "(lease.taken_over)</title>" in content
    assert "(lease.released)</title>" in content
    assert 'class="pill free"' in content


def test_an_agents_key_cannot_open_pages_and_a_session_not_the_api(agent: Caster, mara: Client) -> None:
    headers = {"Authorization": f"Bearer {agent.secret}"}
    assert Client(headers=headers).get("/board").status_code == 302
    assert mara.get("/v1/handoffs").status_code == 401


def test_the_badge_counts_what_waits(organization: Organization, agent: Caster, mara: Client) -> None:
    assert b"badge" not in mara.get("/handoffs/badge").content
    ids = [sent(agent, "mara") for _ in range(3)]
    mara.post(f"/handoffs/{ids[0]}/accept")
    assert b">2<" in mara.get("/handoffs/badge").content
    assert cast(organization, "mara").get("handoffs").json()["data"]["next"] is None
