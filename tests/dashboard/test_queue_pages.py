"""Queues with depth and age, for people."""

import re
from typing import Any

import pytest
from django.test import Client

from leasehub.dashboard import queues as queue_pages
from leases.queues.models import Queue
from tests.conftest import Caster
from tests.dashboard.conftest import ESCAPED, HOSTILE, page, person_of, without_tokens

pytestmark = pytest.mark.django_db


def put(caster: Caster, queue: str, count: int = 1, **members: Any) -> None:
    response = caster.post(f"queues/{queue}/tasks", {"tasks": [members or {"payload": 1}] * count})
    assert response.status_code == 201, response.content


def claim(caster: Caster, queue: str, **members: Any) -> dict[str, Any]:
    response = caster.post("leases/hot-claim", {"queue": queue, **members})
    assert response.status_code == 200, response.content
    claimed: dict[str, Any] = response.json()
    return claimed


def cells(content: str, label: str) -> list[str]:
    return [re.sub("<[^>]+>", "", cell) for cell in re.findall(rf'<td data-label="{label}">(.*?)</td>', content)]


def test_the_list_has_depth_and_age_of_each(agent: Caster, teammate: Caster, mara: Client, clock: Any) -> None:
    assert "no queues yet" in page(mara, "/queues")
    put(agent, "build", 3)
    put(agent, "deploy", 1, delay_seconds=600)
    clock.move(seconds=90)
    put(agent, "review", 2)
    claim(teammate, "review")
    content = page(mara, "/queues")
    assert cells(content, "Ready") == ["3", "0", "1"]
    assert cells(content, "Later") == ["0", "1", "0"]
    assert cells(content, "Claimed") == ["0", "0", "1"]
    assert cells(content, "Claims a minute") == ["0", "0", "1"]
    assert [cell.startswith("1 min") for cell in cells(content, "Oldest")] == [True, False, False]
    assert 'aria-label="1 waiting, 1 claimed"' in content


def test_many_queues_cost_as_much_as_few(agent: Caster, mara: Client) -> None:
    for number in range(55):
        put(agent, f"q{number:02}")
    content = page(mara, "/queues")
    assert content.count('scope="row"') == 50
    assert cells(content, "Ready") == ["1"] * 50
    assert not any(cell == "–" for cell in cells(content, "Oldest"))
    (following,) = re.findall(r'id="more" href="([^"]+)"', content)
    assert page(mara, f"/queues{following}").count('scope="row"') == 5


def test_a_queue_shows_its_claims_its_dead_and_its_last_half_hour(
    agent: Caster, teammate: Caster, mara: Client, clock: Any
) -> None:
    put(agent, "build", 4)
    clock.move(seconds=120)
    claimed = claim(teammate, "build", holder="night-1")
    failed = claim(teammate, "build", holder="night-2")
    body = {"fencing_token": failed["fencing_token"], "error": f"no disk {HOSTILE}", "final": True}
    teammate.post(f"tasks/{failed['task_id']}/fail", body)
    for partial in (False, True):
        content = page(mara, "/queue?name=build", partial=partial)
        for text in (claimed["task_id"], "night-1", failed["task_id"], ESCAPED, "1 of 5", "4 put and 2 claimed"):
            assert text in content, text
        assert "night-2" not in content
    assert 'href="/queue?name=build">Queue build</a>' in page(
        mara, f"/resource?resource_type=task&resource_id={claimed['task_id']}"
    )


def test_the_minutes_are_those_of_the_events(agent: Caster, teammate: Caster, stranger: Caster, clock: Any) -> None:
    clock.freeze(clock.now().replace(second=30, microsecond=0))
    put(agent, "build", 3)
    put(agent, "other", 9)
    put(stranger, "build", 9)
    clock.freeze(clock.now().replace(second=59))
    claim(teammate, "build")
    at = clock.now()
    queue = Queue.objects.get(name="build", organization=agent.principal.organization)
    (*before, last) = queue_pages.minutes(queue, at=at)
    assert (last.put, last.claimed, last.put_height) == (3, 1, 50)
    assert last.start == at.replace(second=0)
    assert {minute.put + minute.claimed for minute in before} == {0}
    assert len(before) == 29


def test_claims_go_on_over_pages(agent: Caster, teammate: Caster, mara: Client) -> None:
    put(agent, "build", 60)
    for number in range(6):
        claim(teammate, "build", count=10, holder=f"h{number}")
    first = page(mara, "/queue?name=build")
    assert len(re.findall(r'id="claim-', first)) == 50
    (following,) = re.findall(r'id="more" href="([^"]+)"', first)
    content = page(mara, f"/queue{following.replace('&amp;', '&')}")
    assert len(re.findall(r'id="claim-', content)) == 10


def test_a_queue_of_others_is_not_there(agent: Caster, stranger: Caster, mara: Client) -> None:
    put(agent, "ours")
    outsider = person_of(stranger.principal.organization)
    assert "ours" not in page(outsider, "/queues")
    theirs, nowhere = (outsider.get(f"/queue?name={name}") for name in ("ours", "none"))
    assert theirs.status_code == nowhere.status_code == 404
    assert without_tokens(theirs.content).replace(b"ours", b"none") == without_tokens(nowhere.content)


@pytest.mark.parametrize("query", ["", "name=%00", "name=%ED%A0%80", "name=build&after=x", "name=build&after=-1"])
def test_strange_queries_are_no_failure(query: str, agent: Caster, mara: Client) -> None:
    put(agent, "build")
    assert mara.get(f"/queue?{query}").status_code == (200 if "build" in query else 404)


def test_names_of_others_are_escaped(agent: Caster, mara: Client) -> None:
    put(agent, "%3Cb%20onclick=x%3E'%22&")
    for address in ("/queues", "/queue?name=%3Cb%20onclick=x%3E'%22%26"):
        content = page(mara, address)
        assert ESCAPED in content and HOSTILE not in content


def test_every_page_of_the_menu_sends_a_stranger_to_sign_in() -> None:
    for address in ("/pools", "/pools/e2e", "/queues", "/queue?name=x"):
        assert Client().get(address).headers["Location"].startswith("/sign-in?next=/")
