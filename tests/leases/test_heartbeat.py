from datetime import timedelta
from typing import Any

import pytest

from leasehub.events.models import Event
from leases import services
from leases.models import Resource
from tests.conftest import Caster, cast, error_of
from tests.leases.conftest import Endings, Held


def test_a_beat_moves_the_expiry_to_now_and_the_ttl(held: Held, clock: Any) -> None:
    clock.move(seconds=30)
    response = held.beat()
    beaten = response.json()["data"]
    assert response.status_code == 200
    assert (beaten["lease_id"], beaten["fencing_token"]) == (held.lease_id, held.token)
    assert beaten["expires_in_ms"] == 60_000
    assert beaten["expires_at"] > held.expires_at


def test_a_beat_journals_nothing(held: Held) -> None:
    before = Event.objects.count()
    held.beat()
    assert Event.objects.count() == before


def test_another_ttl_holds_for_the_beats_to_come(held: Held) -> None:
    assert held.beat(ttl_seconds=600).json()["data"]["expires_in_ms"] == 600_000
    assert held.beat().json()["data"]["expires_in_ms"] == 600_000


def test_a_beat_that_extends_leaves_check_at_alone(held: Held, clock: Any) -> None:
    before = Resource.objects.get().check_at
    clock.move(seconds=10)
    held.beat(ttl_seconds=600)
    assert Resource.objects.get().check_at == before


def test_a_beat_that_shortens_lowers_check_at_so_that_the_reaper_comes_in_time(held: Held, clock: Any) -> None:
    held.beat(ttl_seconds=10)
    row = Resource.objects.get()
    assert row.check_at == row.expires_at
    clock.move(seconds=10)
    assert services.reap_due() == 1


def test_a_millisecond_before_the_expiry_a_beat_is_in_time_and_at_the_expiry_it_is_not(held: Held, clock: Any) -> None:
    expires_at = Resource.objects.get().expires_at
    assert expires_at is not None
    clock.freeze(expires_at - timedelta(milliseconds=1))
    assert held.beat().status_code == 200
    expires_at = Resource.objects.get().expires_at
    assert expires_at is not None
    clock.freeze(expires_at)
    lost = error_of(held.beat())
    assert (lost["status"], lost["code"], lost["ended_by"]) == (410, "LEASE_LOST", "expired")


def test_no_beat_goes_beyond_the_lifetime(agent: Caster, clock: Any) -> None:
    held = Held.by(agent, ttl_seconds=60, max_lifetime_seconds=90)
    assert held.beat().json()["data"]["expires_in_ms"] == 60_000
    clock.move(seconds=50)
    assert 39_000 < held.beat().json()["data"]["expires_in_ms"] <= 40_000
    clock.move(seconds=20)
    assert 19_000 < held.beat(ttl_seconds=86_400).json()["data"]["expires_in_ms"] <= 20_000


@pytest.mark.parametrize("reaper_ran", [False, True])
def test_a_lease_past_its_lifetime_ended_by_max_lifetime(agent: Caster, clock: Any, reaper_ran: bool) -> None:
    held = Held.by(agent, ttl_seconds=60, max_lifetime_seconds=30)
    clock.move(seconds=30)
    if reaper_ran:
        assert services.reap_due() == 1
    lost = error_of(held.beat())
    assert (lost["code"], lost["ended_by"]) == ("LEASE_LOST", "max_lifetime")
    assert "T" in lost["ended_at"]


def test_a_ttl_that_ran_out_before_the_lifetime_is_only_expired(agent: Caster, clock: Any) -> None:
    held = Held.by(agent, ttl_seconds=60, max_lifetime_seconds=90)
    clock.move(seconds=60)
    assert error_of(held.beat())["ended_by"] == "expired"
    services.reap_due()
    assert error_of(held.beat())["ended_by"] == "reaped"


def test_every_end_is_told_by_its_name(endings: Endings) -> None:
    for ended_by, held in endings.items():
        lost = error_of(held.beat())
        assert (lost["status"], lost["code"], lost["ended_by"]) == (410, "LEASE_LOST", ended_by)


@pytest.mark.parametrize("off", [-1, 1, 10**15])
def test_another_token_is_stale_and_changes_nothing(held: Held, off: int) -> None:
    before = Resource.objects.values().get()
    refused = error_of(held.agent.post(f"leases/{held.lease_id}/heartbeat", {"fencing_token": held.token + off}))
    assert (refused["status"], refused["code"]) == (409, "STALE_TOKEN")
    assert Resource.objects.values().get() == before


def test_a_teammate_cannot_beat_even_with_the_token(held: Held, teammate: Caster, operator: Caster) -> None:
    for other in (teammate, operator):
        refused = error_of(other.post(f"leases/{held.lease_id}/heartbeat", {"fencing_token": held.token}))
        assert (refused["status"], refused["code"]) == (404, "NOT_FOUND")


def test_a_teammate_is_not_told_how_anothers_lease_ended(endings: Endings, stranger: Caster, teammate: Caster) -> None:
    for held in endings.values():
        for other in (stranger, cast(held.agent.principal.organization, "outsider")):
            refused = error_of(other.post(f"leases/{held.lease_id}/heartbeat", {"fencing_token": held.token}))
            assert refused["code"] == "NOT_FOUND"


def test_another_key_of_the_principal_beats_as_well(held: Held, organization: Any) -> None:
    second = cast(organization, "agent")
    assert second.post(f"leases/{held.lease_id}/heartbeat", {"fencing_token": held.token}).status_code == 200


def test_a_key_with_a_fence_of_its_own_beats_inside_it_alone(agent: Caster, organization: Any) -> None:
    fenced = cast(organization, "agent", holder_pattern=r"^ci-.*$")
    inside = Held.by(agent, "inside", holder="ci-1")
    outside = Held.by(agent, "outside", holder="muse")
    assert fenced.post(f"leases/{inside.lease_id}/heartbeat", {"fencing_token": inside.token}).status_code == 200
    refused = error_of(fenced.post(f"leases/{outside.lease_id}/heartbeat", {"fencing_token": outside.token}))
    assert refused["code"] == "NOT_FOUND"


def test_a_key_with_a_fence_is_not_told_how_a_lease_outside_it_ended(agent: Caster, organization: Any) -> None:
    fenced = cast(organization, "agent", holder_pattern=r"^ci-.*$")
    outside = Held.by(agent, "outside", holder="muse")
    outside.release()
    refused = error_of(fenced.post(f"leases/{outside.lease_id}/heartbeat", {"fencing_token": outside.token}))
    assert refused["code"] == "NOT_FOUND"
