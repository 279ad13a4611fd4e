import datetime as dt
from typing import Any

import pytest
from django.db import connection

from leasehub.events.models import Event
from leases.models import Resource
from tests.conftest import Caster, cast, error_of


def test_a_free_resource_is_granted_with_a_token_and_an_expiry(agent: Caster) -> None:
    response = agent.acquire(purpose="release 41")
    granted = response.json()["data"]
    assert response.status_code == 201
    assert response.headers["Location"] == f"/v1/leases/{granted['lease_id']}"
    assert granted["expires_in_ms"] == 60_000
    assert not granted["took_over_expired"]
    assert granted["previous"] is None


def test_a_second_agent_is_refused_and_told_when_to_retry_but_not_by_whom(agent: Caster, teammate: Caster) -> None:
    agent.acquire(purpose="secret plan")
    response = teammate.acquire()
    refused = error_of(response)
    assert (refused["status"], refused["code"], refused["held_by_self"]) == (409, "CONFLICT", False)
    assert 0 < refused["retry_after_ms"] <= 60_000
    assert response.headers["Retry-After"] == "60"
    assert b"secret plan" not in response.content
    assert b"agent" not in response.content


def test_an_expired_lease_is_taken_over_loudly_without_the_reaper(agent: Caster, teammate: Caster, clock: Any) -> None:
    lost = agent.acquire().json()["data"]
    clock.move(seconds=60)
    taken = teammate.acquire().json()["data"]
    assert taken["took_over_expired"]
    assert taken["previous"]["lease_id"] == lost["lease_id"]
    assert taken["previous"]["holder"] == "agent"
    assert taken["previous"]["expires_at"] == lost["expires_at"]
    assert taken["fencing_token"] > lost["fencing_token"]
    event = Event.objects.order_by("pk").last()
    assert event is not None
    assert event.type == "lease.taken_over"
    beat = agent.post(f"leases/{lost['lease_id']}/heartbeat", {"fencing_token": lost["fencing_token"]})
    assert error_of(beat) | {"code": "LEASE_LOST", "ended_by": "taken_over"} == error_of(beat)


def test_a_millisecond_before_the_expiry_it_is_held_and_at_the_expiry_it_is_not(
    agent: Caster, teammate: Caster, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.acquire()
    expires_at = Resource.objects.get().expires_at
    assert expires_at is not None
    clock.freeze(expires_at - dt.timedelta(milliseconds=1))
    refused = error_of(teammate.acquire())
    assert (refused["status"], refused["retry_after_ms"]) == (409, 1)
    clock.freeze(expires_at)
    assert teammate.acquire().json()["data"]["took_over_expired"]


def test_the_same_holder_acquires_anew_and_the_old_lease_ends(agent: Caster) -> None:
    first = agent.acquire(purpose="one").json()["data"]
    second = agent.acquire(purpose="two").json()["data"]
    assert second["lease_id"] != first["lease_id"]
    assert second["fencing_token"] > first["fencing_token"]
    assert second["previous"]["lease_id"] == first["lease_id"]
    assert not second["took_over_expired"]
    shown = agent.get(f"leases/{first['lease_id']}").json()["data"]
    assert (shown["state"], shown["ended_by"]) == ("ended", "reacquired")


def test_without_reacquire_the_holder_itself_is_refused_and_told_so(agent: Caster) -> None:
    first = agent.acquire().json()["data"]
    refused = error_of(agent.acquire(reacquire=False))
    assert (refused["code"], refused["held_by_self"]) == ("CONFLICT", True)
    shown = agent.get(f"leases/{first['lease_id']}").json()["data"]
    assert shown["state"] == "held"


def test_two_holders_on_one_key_are_two_holders(agent: Caster) -> None:
    first = agent.acquire(holder="worker-1").json()["data"]
    refused = error_of(agent.acquire(holder="worker-2"))
    assert (refused["code"], refused["held_by_self"]) == ("CONFLICT", False)
    again = agent.acquire(holder="worker-1").json()["data"]
    assert again["previous"]["lease_id"] == first["lease_id"]


def test_the_same_label_of_another_principal_is_another_holder(agent: Caster, teammate: Caster) -> None:
    agent.acquire(holder="muse-04")
    assert not error_of(teammate.acquire(holder="muse-04"))["held_by_self"]


def test_two_keys_of_one_principal_with_one_holder_are_one_holder(agent: Caster, organization: Any) -> None:
    agent.acquire(holder="muse-04")
    second = cast(organization, "agent")
    assert second.acquire(holder="muse-04").json()["data"]["previous"]["holder"] == "muse-04"


@pytest.mark.parametrize("resource_type", ["task", "slot"])
def test_reserved_types_are_refused_with_a_name(agent: Caster, resource_type: str) -> None:
    refused = error_of(agent.acquire(resource_type=resource_type))
    assert (refused["status"], list(refused["fields"])) == (400, ["resource_type"])
    assert not Resource.objects.exists()


@pytest.mark.parametrize("resource_type", ["tasks", "Task", "slot/1"])
def test_what_only_resembles_a_reserved_type_is_free(agent: Caster, resource_type: str) -> None:
    assert agent.acquire(resource_type=resource_type).status_code == 201


def test_the_lifetime_bounds_the_first_expiry(agent: Caster) -> None:
    granted = agent.acquire(ttl_seconds=60, max_lifetime_seconds=20).json()["data"]
    assert granted["expires_in_ms"] == 20_000
    shown = agent.get(f"leases/{granted['lease_id']}").json()["data"]
    assert shown["lifetime_ends_at"] == granted["expires_at"]


def test_a_refusal_leaves_no_trace(agent: Caster, teammate: Caster) -> None:
    agent.acquire()
    before = Resource.objects.values().get()
    teammate.acquire()
    assert Resource.objects.values().get() == before
    assert Event.objects.count() == 1


def test_a_grant_has_one_event_with_all_that_matters(agent: Caster) -> None:
    granted = agent.acquire(purpose="release 41").json()["data"]
    event = Event.objects.get()
    assert event.type == "lease.acquired"
    assert (event.fencing_token, event.holder) == (granted["fencing_token"], "agent")
    assert event.data == {"ttl_seconds": 60, "expires_at": granted["expires_at"], "purpose": "release 41"}


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        (r"^ci-[a-z]+$", ["ci-main"], ["muse", "ci-main2", "xci-main", "ci-"]),
        # Anchors bind tighter than the bar: searching would let both of these through.
        (r"^ci|muse$", ["ci", "muse"], ["ci-evil", "evil-muse", "cimuse"]),
        (r"^(?:ci|muse)$", ["ci", "muse"], ["ci-evil", "cim"]),
        # A dollar matches before a last newline: the whole holder must match.
        (r"^worker-\d$", ["worker-1"], ["worker-1x", "worker-12"]),
        (r"^\w+$", ["abc_1"], ["é", "a-b"]),
    ],
)
def test_the_fence_is_matched_whole(organization: Any, pattern: str, inside: list[str], outside: list[str]) -> None:
    fenced = cast(organization, "ci", holder_pattern=pattern)
    for holder in inside:
        assert fenced.acquire(holder, holder=holder).status_code == 201
    for holder in outside:
        refused = error_of(fenced.acquire(holder, holder=holder))
        assert (refused["status"], refused["code"]) == (403, "FORBIDDEN")
        assert (refused["holder"], refused["holder_pattern"]) == (holder, pattern)


@pytest.mark.parametrize("pattern", [r"^ci-[a-z]+$", r"^[\s\S]+$"])
def test_a_newline_slips_through_no_fence(organization: Any, pattern: str) -> None:
    fenced = cast(organization, "ci", holder_pattern=pattern)
    assert error_of(fenced.acquire(holder="ci-main\n"))["status"] == 400
    assert not fenced.caller.may_hold_as("ci-main\n") or pattern != r"^ci-[a-z]+$"


def test_a_handle_outside_its_own_key_s_fence_cannot_hold_by_default(organization: Any) -> None:
    fenced = cast(organization, "agent", holder_pattern=r"^ci-.*$")
    assert error_of(fenced.acquire())["code"] == "FORBIDDEN"


def test_a_call_of_the_hot_path_is_prepared_once(agent: Caster) -> None:
    """Planning it anew each time takes longer than carrying it out."""
    if connection.vendor != "postgresql":
        return
    for number in range(3):
        agent.acquire(f"r{number}")
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT generic_plans + custom_plans FROM pg_prepared_statements WHERE statement LIKE %s",
            ["%lease_acquire%"],
        )
        ((times,),) = cursor.fetchall()
    assert times >= 3


def test_what_was_planned_for_an_empty_table_is_right_for_a_full_one(agent: Caster) -> None:
    """A function keeps its plans: made for a handful of rows, they must not read all of what comes later."""
    if connection.vendor != "postgresql":
        return
    for number in range(30):
        held = agent.acquire(f"r{number}").json()["data"]
        agent.post(f"leases/{held['lease_id']}/heartbeat", {"fencing_token": held["fencing_token"]})
        agent.post("leases/heartbeats", {"leases": [{name: held[name] for name in ("lease_id", "fencing_token")}]})
        agent.delete(f"leases/{held['lease_id']}")
    with connection.cursor() as cursor:
        cursor.execute(
            # One statement that reads all at each of these calls reads several hundreds.
            "SELECT relname, seq_tup_read FROM pg_stat_xact_user_tables"
            " WHERE relname IN ('leases_resource', 'events_event') AND seq_tup_read > 100"
        )
        assert cursor.fetchall() == []
