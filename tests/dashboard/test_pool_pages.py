"""Pools with their slots and their queue, for people."""

import re

import pytest
from django.test import Client

from leasehub.dashboard import pools as pool_pages
from pools.models import Slot
from tests.conftest import Caster
from tests.dashboard.conftest import ESCAPED, HOSTILE, page, person_of, without_tokens
from tests.pools.conftest import Declare, ask, on_slot, passes, slots, take

pytestmark = pytest.mark.django_db


def states(content: str) -> list[str]:
    """Of the cells, as they are drawn."""
    return re.findall(r'<rect class="slot (\w+)" x="\d+" y', content)


def test_a_pool_shows_its_slots_and_its_queue_with_positions_and_etas(
    declare: Declare, agent: Caster, teammate: Caster, operator: Caster, mara: Client
) -> None:
    declare(slots=slots(4))
    ask(agent, holder="day-1")
    grant = ask(agent, holder="day-2")["grants"][0]
    operator.post("pools/e2e/slots/4/drain")
    ask(teammate, holder="night-1")
    ask(teammate, holder="night-2", selector={"id": 1})
    ask(agent, holder="last", count=2)
    content = page(mara, "/pools/e2e")
    assert states(content) == ["leased", "leased", "leased", "draining"]
    for text in ("day-1", "day-2", "night-2", "id = 1", "2 slots", "16 min", "data-left-ms"):
        assert text in content, text
    positions = re.findall(r'data-label="Position">(\d+)<', content)
    assert positions == ["1", "2"]
    assert "resource_type=slot&amp;resource_id=e2e/1" in content
    on_slot(agent, grant, "release")
    assert "on average" in page(mara, "/pools/e2e", partial=True)


def test_a_slot_that_is_being_made_clean_or_broken_says_so(declare: Declare, agent: Caster, mara: Client) -> None:
    declare(slots=slots(2), provision="true")
    ask(agent)
    content = page(mara, "/pools/e2e")
    assert states(content) == ["preparing", "free"]
    passes(take())
    assert states(page(mara, "/pools/e2e")) == ["leased", "free"]
    Slot.objects.filter(slot_id="2").update(is_broken=True, failures=3, error=HOSTILE)
    content = page(mara, "/pools/e2e")
    assert states(content) == ["leased", "broken"]
    assert "3 failures" in content and ESCAPED in content


def test_the_counts_of_a_large_pool_are_those_of_a_drawn_one(
    declare: Declare, agent: Caster, operator: Caster, mara: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = declare(slots=slots(7), provision="true")
    ask(agent, count=2)
    passes(take())
    operator.post("pools/e2e/slots/6/drain")
    Slot.objects.filter(slot_id="7").update(is_broken=True)
    ask(agent, count=7)
    drawn = pool_pages.drawn(pool)
    assert drawn is not None
    counted = pool_pages.counts(pool, drawn)
    assert counted == {"free": 3, "leased": 1, "preparing": 1, "draining": 1, "broken": 1}
    assert pool_pages.counts(pool, None) == counted
    monkeypatch.setattr(pool_pages, "MOST_CELLS", 6)
    content = page(mara, "/pools/e2e")
    assert states(content) == []
    assert "1 preparing, 1 leased" in content and 'data-label="Position">1<' in content


def test_slots_and_queue_go_on_over_pages_each(declare: Declare, agent: Caster, mara: Client) -> None:
    declare(slots=slots(60))
    for number in range(60):
        ask(agent, holder=f"h{number}", selector={"id": 1})
    first = page(mara, "/pools/e2e")
    assert len(re.findall(r'id="slot-\d+"', first)) == 50
    (following,) = re.findall(r'id="slots-after" href="([^"]+)"', first)
    content = page(mara, f"/pools/e2e{following.replace('&amp;', '&')}")
    assert len(re.findall(r'id="slot-\d+"', content)) == 10
    (back,) = re.findall(r'id="slots-before" href="([^"]+)"', content)
    assert back == "?slots=0&amp;queue=0"
    (behind,) = re.findall(r'id="queue-after" href="([^"]+)"', first)
    content = page(mara, f"/pools/e2e{behind.replace('&amp;', '&')}")
    assert re.findall(r'data-label="Position">(\d+)<', content) == [str(place) for place in range(51, 60)]


def test_the_list_of_pools_counts(declare: Declare, agent: Caster, mara: Client) -> None:
    assert "no pools yet" in page(mara, "/pools")
    declare("first", slots=slots(3))
    declare("second", slots=slots(1))
    for _ in range(2):
        ask(agent, "second", holder=f"h{_}")
    content = page(mara, "/pools")
    assert 'aria-label="3 free"' in content and 'aria-label="1 leased"' in content
    assert "<strong>1</strong>" in content
    assert 'href="/pools/second"' in content
    assert "<html" not in page(mara, "/pools", partial=True)


def test_a_pool_of_others_is_not_there(declare: Declare, stranger: Caster, mara: Client) -> None:
    declare("ours")
    outsider = person_of(stranger.principal.organization)
    assert "ours" not in page(outsider, "/pools")
    theirs, nowhere = (outsider.get(f"/pools/{name}") for name in ("ours", "none"))
    assert theirs.status_code == nowhere.status_code == 404
    assert without_tokens(theirs.content).replace(b"ours", b"none") == without_tokens(nowhere.content)


@pytest.mark.parametrize(
    "query",
    ["slots=x&queue=-1", "slots=99999&queue=99999", "slots=%00", "queue=%F0%9F", "slots=999999999999", "after=x"],
)
def test_strange_queries_are_no_failure(query: str, declare: Declare, mara: Client) -> None:
    declare()
    assert mara.get(f"/pools/e2e?{query}").status_code == 200
    assert mara.get(f"/pools?{query}").status_code == 200


def test_a_slot_s_own_page_leads_back_to_its_pool(declare: Declare, agent: Caster, mara: Client) -> None:
    declare()
    ask(agent)
    assert 'href="/pools/e2e"' in page(mara, "/resource?resource_type=slot&resource_id=e2e/1")


def test_a_pool_that_nobody_serves_says_so(declare: Declare, mara: Client) -> None:
    declare(provision="true")
    assert "No worker serves" in page(mara, "/pools/e2e")
    declare()
    assert "No worker serves" not in page(mara, "/pools/e2e")


def test_text_of_others_is_escaped(operator: Caster, agent: Caster, mara: Client) -> None:
    operator.put("pools/e2e", {"slots": [{"id": "1", "note": HOSTILE}]})
    ask(agent, selector={"note": HOSTILE})
    ask(agent, selector={"note": HOSTILE}, holder="second")
    content = page(mara, "/pools/e2e")
    assert content.count(ESCAPED) >= 1
    assert HOSTILE not in content
