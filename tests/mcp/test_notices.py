"""What has changed for a caller is told with any result, until it says that it has read it."""

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from leasehub.events import feed
from leasehub.events.models import Event, Feed
from leasehub.events.queries import RARE
from leasehub.mcp import notices
from leasehub.mcp.models import Reader
from leases import services
from tests.conftest import Caster, cast
from tests.mcp.conftest import Session


def told(session: Session, tool: str = "agent_whoami", **arguments: Any) -> list[tuple[str, str]]:
    """What a session is told, with the lease, handoff or request that it is about."""
    answer = session.call(tool, **arguments)
    return [
        (notice["what"], notice.get("lease_id") or notice.get("handoff_id") or notice["request_id"])
        for notice in answer.get("notices", [])
    ]


def test_a_first_call_tells_nothing_of_the_past(mine: Session, clock: Any) -> None:
    mine.who.acquire("old", ttl_seconds=10)
    clock.move(seconds=10)
    services.reap_due()
    assert told(mine) == []


def test_a_reaped_lease_is_told_until_its_notice_is_read(mine: Session, clock: Any) -> None:
    granted = mine.acquire(ttl_seconds=10)
    clock.move(seconds=10)
    services.reap_due()
    lost = [("lease_lost", granted["lease_id"])]
    assert told(mine) == told(mine) == lost
    answer = mine.call("lease_status", resource_type="a", resource_id="b")
    assert "deploy/checkout ran out" in answer["notices"][0]["message"]
    assert told(mine, notices_cursor=answer["notices_cursor"]) == []
    assert told(mine) == []


def test_a_refusal_carries_notices_too_and_takes_their_cursor(mine: Session, theirs: Session, clock: Any) -> None:
    granted = mine.acquire(ttl_seconds=10)
    clock.move(seconds=10)
    theirs.acquire()
    named = {"lease_id": granted["lease_id"], "fencing_token": granted["fencing_token"]}
    refusal = mine.refused("lease_heartbeat", **named)
    (notice,) = refusal["notices"]
    assert (notice["what"], notice["lease_id"]) == ("lease_lost", granted["lease_id"])
    assert "taken over by teammate" in notice["message"]
    assert "notices" not in mine.refused("lease_heartbeat", **named, notices_cursor=refusal["notices_cursor"])


def test_a_forced_release_is_told_with_its_reason(mine: Session, operating: Session) -> None:
    granted = mine.acquire()
    named = {"lease_id": granted["lease_id"], "fencing_token": granted["fencing_token"]}
    operating.call("lease_force_release", **named, reason="wedged")
    (notice,) = mine.call("agent_whoami")["notices"]
    assert (notice["what"], "wedged" in notice["message"]) == ("lease_lost", True)


def test_each_holder_is_told_of_its_own_leases(agent: Caster, clock: Any) -> None:
    first, second = Session(agent, "agent.1"), Session(agent, "agent.2")
    granted = first.acquire(ttl_seconds=10)
    told(second)
    clock.move(seconds=10)
    second.acquire(holder="agent.2")
    assert told(second) == []
    assert told(first) == [("lease_lost", granted["lease_id"])]


def test_who_takes_over_its_own_dead_lease_is_told_nothing(mine: Session, clock: Any) -> None:
    mine.acquire(ttl_seconds=10)
    clock.move(seconds=10)
    assert mine.acquire()["took_over_expired"] is True
    assert told(mine) == []


def test_an_outsider_is_not_told_who_took_over(theirs: Session, organization: Any, clock: Any) -> None:
    blind = Session(cast(organization, "blind", (2,)))
    blind.acquire(ttl_seconds=10)
    clock.move(seconds=10)
    theirs.acquire()
    (notice,) = blind.call("agent_whoami")["notices"]
    assert "teammate" not in str(notice)


def test_a_lost_claim_is_told(mine: Session, clock: Any) -> None:
    mine.who.post("queues/q/tasks", {"max_attempts": 1})
    mine.who.post("queues/q/tasks", {})
    claims = [mine.call("task_claim", queue="q", ttl_seconds=10) for _ in range(2)]
    clock.move(seconds=10)
    services.reap_due()
    assert sorted(told(mine)) == sorted(("lease_lost", claim["lease_id"]) for claim in claims)


def test_a_task_that_one_failed_oneself_is_no_news(mine: Session) -> None:
    mine.who.post("queues/q/tasks", {})
    claim = mine.call("task_claim", queue="q")
    mine.call("task_fail", task_id=claim["task_id"], fencing_token=claim["fencing_token"], error="e", final=True)
    assert told(mine) == []


def test_a_handoff_is_told_to_its_addressee_and_its_answer_to_its_giver(mine: Session, theirs: Session) -> None:
    told(mine)
    granted = mine.acquire()
    offered = mine.call(
        "handoff_offer", to_principal="teammate", subject_id="issue-7", lease_ids=[granted["lease_id"]]
    )["handoff_id"]
    # Its first call: what waits for it is told all the same.
    waiting = theirs.call("agent_whoami")
    assert [(notice["what"], notice["handoff_id"]) for notice in waiting["notices"]] == [("handoff_waiting", offered)]
    assert told(theirs) == [("handoff_waiting", offered)]
    # Accepted, it waits no more.
    assert told(theirs, "handoff_accept", handoff_id=offered) == []
    assert told(mine) == [("handoff_accepted", offered)]
    theirs.call("handoff_complete", handoff_id=offered)
    assert told(mine) == [("handoff_accepted", offered), ("handoff_completed", offered)]


def test_a_rejected_and_a_withdrawn_offer_are_told(mine: Session, theirs: Session) -> None:
    told(mine), told(theirs)
    offer = {"to_principal": "teammate", "subject_id": "issue-7"}
    first, second = (mine.call("handoff_offer", **offer)["handoff_id"] for _ in range(2))
    mine.call("handoff_withdraw", handoff_id=second)
    assert told(theirs) == [("handoff_waiting", first), ("handoff_withdrawn", second)]
    theirs.call("handoff_reject", handoff_id=first, reason="busy")
    assert told(mine) == [("handoff_rejected", first)]


def test_a_turn_in_a_pool_is_told_until_it_is_fetched(mine: Session, theirs: Session, operating: Session) -> None:
    operating.who.put("pools/phones", {"slots": [{"id": 1}]})
    (grant,) = mine.call("pool_acquire", pool="phones")["grants"]
    assert told(mine) == []
    waits = theirs.call("pool_acquire", pool="phones")["request_id"]
    assert told(theirs) == []
    mine.call("pool_release", pool="phones", slot_id="1", fencing_token=grant["fencing_token"])
    assert told(theirs) == told(theirs) == [("turn_come", waits)]
    assert told(theirs, "pool_wait", pool="phones", request_id=waits) == []


def test_a_dropped_request_is_told(mine: Session, theirs: Session, operating: Session) -> None:
    operating.who.put("pools/phones", {"slots": [{"id": 1}, {"id": 2}]})
    mine.call("pool_acquire", pool="phones")
    waits = theirs.call("pool_acquire", pool="phones", count=2)["request_id"]
    operating.who.put("pools/phones", {"slots": [{"id": 1}]})
    assert told(theirs) == [("request_dropped", waits)]


def lose(session: Session, clock: Any, names: list[str]) -> list[str]:
    """Takes leases and lets them be reaped, in this order. Their ids."""
    ids = [session.acquire(name, ttl_seconds=10)["lease_id"] for name in names]
    clock.move(seconds=10)
    services.reap_due()
    return ids


def told_ids(answer: dict[str, Any]) -> set[str]:
    return {notice["lease_id"] for notice in answer["notices"]}


def test_of_more_than_a_result_holds_the_newest_are_told_first(mine: Session, clock: Any) -> None:
    old, new = (lose(mine, clock, [f"{age}{n}" for n in range(count)]) for age, count in (("old", 3), ("new", 10)))
    first = mine.call("agent_whoami")
    assert (told_ids(first), first["notices_more"]) == (set(new), 3)
    assert mine.call("agent_whoami")["notices"] == first["notices"]
    second = mine.call("agent_whoami", notices_cursor=first["notices_cursor"])
    assert (told_ids(second), "notices_more" in second) == (set(old), False)
    assert told(mine, notices_cursor=second["notices_cursor"]) == []


def test_whoever_never_reads_the_old_ones_is_told_of_every_newer_one(mine: Session, clock: Any) -> None:
    lose(mine, clock, [f"old{n}" for n in range(10)])
    for n in range(12):
        (lost,) = lose(mine, clock, [f"new{n}"])
        assert lost in told_ids(mine.call("agent_whoami"))


def test_lost_leases_hide_neither_an_offer_nor_a_turn(
    mine: Session, theirs: Session, operating: Session, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "MOST_TOLD", 2)
    told(mine)
    operating.who.put("pools/phones", {"slots": [{"id": 1}]})
    (grant,) = operating.call("pool_acquire", pool="phones")["grants"]
    waits = mine.call("pool_acquire", pool="phones")["request_id"]
    offered = theirs.call("handoff_offer", to_principal="agent", subject_id="issue-7")["handoff_id"]
    operating.call("pool_release", pool="phones", slot_id="1", fencing_token=grant["fencing_token"])
    lost = [lose(mine, clock, [f"r{n}"])[0] for n in range(4)]
    assert told(mine) == [
        ("turn_come", waits), ("handoff_waiting", offered), ("lease_lost", lost[2]), ("lease_lost", lost[3])
    ]  # fmt: skip
    assert mine.call("agent_whoami")["notices_more"] == 2


def test_offers_hide_no_lost_lease(mine: Session, theirs: Session, clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "MOST_TOLD", 1)
    told(mine)
    (lost,) = lose(mine, clock, ["r"])
    offers = [
        theirs.call("handoff_offer", to_principal="agent", subject_id=f"issue-{n}")["handoff_id"] for n in range(3)
    ]
    answer = mine.call("agent_whoami")
    assert told(mine) == [("handoff_waiting", offers[2]), ("lease_lost", lost)]
    assert answer["notices_more"] == 2
    assert told(mine, notices_cursor=answer["notices_cursor"]) == [("handoff_waiting", offers[1])]


def test_nothing_is_hidden_by_more_than_one_look_takes(
    mine: Session, theirs: Session, operating: Session, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, rows in (("PORTABLE", 6), ("NEWEST", 6), ("MOST_LOOKED_AT", 6)):
        query = getattr(notices, name)
        monkeypatch.setattr(notices, name, rows if isinstance(query, int) else query.replace("200", str(rows)))
    monkeypatch.setattr(notices, "_looked_up", lambda *who: notices._asked(notices.PORTABLE, *who))
    monkeypatch.setattr(notices, "MOST_TOLD", 2)
    monkeypatch.setattr(notices, "MANY_SEEN", 3)
    operating.who.put("pools/phones", {"slots": [{"id": 1}]})
    (grant,) = operating.call("pool_acquire", pool="phones")["grants"]
    waits = mine.call("pool_acquire", pool="phones")["request_id"]
    lost = lose(mine, clock, [f"r{n}" for n in range(30)])
    operating.call("pool_release", pool="phones", slot_id="1", fencing_token=grant["fencing_token"])
    offered = theirs.call("handoff_offer", to_principal="agent", subject_id="issue-7")["handoff_id"]
    all_is_numbered(mine)
    answer = mine.call("agent_whoami")
    assert [notice["what"] for notice in answer["notices"][:2]] == ["turn_come", "handoff_waiting"]
    assert answer["notices_more"] > 0
    read: set[str] = set()
    for _ in range(40):
        read |= {notice["lease_id"] for notice in answer.get("notices", []) if notice["what"] == "lease_lost"}
        cursor = answer.get("notices_cursor")
        answer = mine.call("agent_whoami", **({"notices_cursor": cursor} if cursor else {}))
    assert read == set(lost)
    assert [notice["request_id"] for notice in answer["notices"]] == [waits]
    assert offered not in str(answer)
    assert Reader.objects.get(holder="agent").seen == []


def test_of_very_many_that_were_read_the_oldest_is_told_again_rather_than_an_unread_one_never(
    mine: Session, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "MOST_TOLD", 2)
    monkeypatch.setattr(notices, "MOST_SEEN", 3)
    unread, *read = lose(mine, clock, [f"r{n}" for n in range(5)])
    for _ in range(2):
        answer = mine.call("agent_whoami")
        mine.call("agent_whoami", notices_cursor=answer["notices_cursor"])
    assert told_ids(mine.call("agent_whoami")) == {unread, read[0]}


def test_a_notice_that_appears_late_with_a_lower_id_is_told(mine: Session, clock: Any) -> None:
    """Its transaction had its id first and committed last."""
    early, late = (mine.acquire(name, ttl_seconds=10) for name in ("early", "late"))
    clock.move(seconds=10)
    services.reap_due()
    hidden = Event.objects.get(type="lease.reaped", lease_id=_uuid(early["lease_id"]))
    Event.objects.filter(pk=hidden.pk).delete()
    answer = mine.call("agent_whoami")
    assert [notice["lease_id"] for notice in answer["notices"]] == [late["lease_id"]]
    told(mine, notices_cursor=answer["notices_cursor"])
    hidden.save(force_insert=True)
    assert told(mine) == [("lease_lost", early["lease_id"])]


def all_is_numbered(session: Session) -> None:
    """As if no transaction were running that might still bring an event with a lower id."""
    organization = session.who.principal.organization_id
    feed.stamp(organization=organization)
    newest = Event.objects.order_by("-pk").values_list("pk", flat=True).first()
    Feed.objects.filter(pk=organization).update(low_water=newest)


def _uuid(lease_id: str) -> str:
    return lease_id.removeprefix("lease_")


def test_the_floor_follows_the_low_water_and_never_passes_what_is_unread(mine: Session, clock: Any) -> None:
    granted = mine.acquire(ttl_seconds=10)
    floor = Reader.objects.get().floor
    clock.move(seconds=10)
    services.reap_due()
    told(mine, "lease_acquire", resource_type="deploy", resource_id="another")
    all_is_numbered(mine)
    answer = mine.call("agent_whoami")
    assert [notice["lease_id"] for notice in answer["notices"]] == [granted["lease_id"]]
    assert Reader.objects.get().floor == floor
    told(mine, notices_cursor=answer["notices_cursor"])
    told(mine)
    reader = Reader.objects.get()
    assert (reader.floor > floor, reader.seen) == (True, [])
    assert told(mine) == []


@pytest.mark.parametrize("cursor", ["", "1", "n", "n.", "nxyz", "n-1", "n0", "n" + "1." * 20 + "1", "n" + "f" * 30])
def test_what_is_no_cursor_is_refused(mine: Session, cursor: str) -> None:
    assert list(mine.refused("agent_whoami", notices_cursor=cursor)["fields"]) == ["notices_cursor"]


def test_a_cursor_of_others_does_no_harm(mine: Session, clock: Any) -> None:
    granted = mine.acquire(ttl_seconds=10)
    told(mine, notices_cursor="n7fffffffffffffff.1")
    clock.move(seconds=10)
    services.reap_due()
    assert told(mine) == [("lease_lost", granted["lease_id"])]


def test_the_notices_cost_one_statement_more_and_on_postgresql_none(mine: Session) -> None:
    mine.acquire("one")
    with CaptureQueriesContext(connection) as statements:
        mine.acquire("two")
    looks = ("events_event AS start", "mcp_unread")
    assert sum(any(look in query["sql"] for look in looks) for query in statements) == 1
    with CaptureQueriesContext(connection) as same:
        mine.who.acquire("three")
    assert len(statements) == len(same) + (connection.vendor == "sqlite")


def test_what_a_call_asks_along_sees_the_past_of_that_call(mine: Session, clock: Any) -> None:
    granted = mine.acquire(ttl_seconds=10)
    clock.move(seconds=10)
    services.reap_due()
    lost = {"lease_id": granted["lease_id"], "fencing_token": granted["fencing_token"]}
    assert [notice["what"] for notice in mine.refused("lease_heartbeat", **lost)["notices"]] == ["lease_lost"]


def test_readers_of_holders_that_are_gone_are_forgotten(mine: Session, clock: Any) -> None:
    told(mine)
    assert notices.forget_readers() == 0
    clock.move(days=31)
    assert notices.forget_readers() == 1
    assert told(mine) == []


@pytest.mark.skipif(connection.vendor != "sqlite", reason="on PostgreSQL the plan of a small table says nothing")
def test_the_look_for_notices_goes_by_indexes(mine: Session) -> None:
    mine.acquire()
    with connection.cursor() as cursor:
        names = {"key": 1, "holder": "agent", "organization": 1, "principal": 1}
        cursor.execute(f"EXPLAIN QUERY PLAN {notices.PORTABLE}", names)
        plan = [row[3] for row in cursor.fetchall()]
    small = (
        "SCAN reader",
        "SCAN news",
        "SCAN always",
        "SCAN CONSTANT ROW",
        "SCAN pools_request USING INDEX request_unfetched",
    )
    assert [line for line in plan if line.startswith("SCAN") and not line.startswith(small)] == []
    assert [line.partition(" (")[0].rpartition(" ")[2] for line in plan if "SEARCH events_event" in line] == [
        "event_reaped",
        "event_by_rare_type",
    ]


def test_the_look_repeats_the_condition_of_the_index_of_rare_types() -> None:
    assert RARE in notices.QUERY


def test_a_floor_that_has_fallen_far_behind_follows_without_news(mine: Session) -> None:
    mine.acquire()
    floor = Reader.objects.get().floor
    feed.stamp(organization=mine.who.principal.organization_id)
    for behind, follows in ((5000, 0), (5001, 5001)):
        Feed.objects.update(low_water=floor + behind)
        assert told(mine) == []
        assert Reader.objects.get().floor == floor + follows


def test_turns_that_nobody_fetches_hide_nothing_else(
    mine: Session, operating: Session, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "MOST_TOLD", 1)
    operating.who.put("pools/phones", {"slots": [{"id": 1}]})
    (grant,) = operating.call("pool_acquire", pool="phones")["grants"]
    waits = mine.call("pool_acquire", pool="phones")["request_id"]
    lost = mine.acquire(ttl_seconds=10)["lease_id"]
    operating.call("pool_release", pool="phones", slot_id="1", fencing_token=grant["fencing_token"])
    clock.move(seconds=10)
    services.reap_due()
    all_is_numbered(mine)
    assert told(mine) == [("turn_come", waits), ("lease_lost", lost)]


def test_many_handoffs_are_looked_up_together(mine: Session, agent: Caster, teammate: Caster) -> None:
    told(mine)
    for number in range(12):
        assert teammate.post("handoffs", {"to_principal": "agent", "subject_id": f"s{number}"}).status_code == 201
    with CaptureQueriesContext(connection) as asked:
        assert len(told(mine)) == notices.MOST_TOLD
    assert sum('FROM "handoffs_handoff"' in query["sql"] for query in asked) == 1
