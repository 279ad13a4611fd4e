from datetime import timedelta
from typing import Any

from leasehub.events.models import Event
from leases import services
from leases.models import Resource
from tests.conftest import Caster, cast, error_of
from tests.leases.conftest import Held

NAME = {"resource_type": "deploy", "resource_id": "checkout"}


def test_a_dead_lease_is_ended_and_told(held: Held, teammate: Caster, clock: Any) -> None:
    clock.move(seconds=61)
    response = teammate.post("leases/reap", NAME)
    reaped = response.json()["data"]
    assert response.status_code == 200
    assert (reaped["lease_id"], reaped["fencing_token"], reaped["holder"]) == (held.lease_id, held.token, "agent")
    assert reaped["expired_at"] == held.expires_at
    assert teammate.get("leases/status?resource_type=deploy&resource_id=checkout").json()["data"]["state"] == "free"
    event = Event.objects.get(type="lease.reaped")
    assert event.actor_id == teammate.principal.pk


def test_a_live_lease_is_refused_even_to_its_holder_and_to_an_operator(
    held: Held, teammate: Caster, operator: Caster
) -> None:
    for caster in (held.agent, teammate, operator):
        response = caster.post("leases/reap", NAME)
        refused = error_of(response)
        assert (refused["status"], refused["code"]) == (409, "CONFLICT")
        assert 0 < refused["retry_after_ms"] <= 60_000
        assert "Retry-After" in response.headers
    assert held.show()["state"] == "held"


def test_a_free_resource_and_one_that_never_was_are_not_found(held: Held, teammate: Caster) -> None:
    held.release()
    free = teammate.post("leases/reap", NAME)
    never = teammate.post("leases/reap", {**NAME, "resource_id": "never"})
    assert error_of(free)["code"] == "NOT_FOUND"
    assert free.content == never.content


def test_the_reaper_ends_what_is_due_and_nothing_else(agent: Caster, clock: Any) -> None:
    dead = [Held.by(agent, f"dead-{number}", ttl_seconds=10) for number in range(5)]
    beaten = Held.by(agent, "beaten", ttl_seconds=10)
    alive = Held.by(agent, "alive", ttl_seconds=600)
    clock.move(seconds=9)
    beaten.beat(ttl_seconds=60)
    clock.move(seconds=1)
    assert services.reap_due() == 5
    assert services.reap_due() == 0
    assert {held.show()["ended_by"] for held in dead} == {"reaped"}
    assert (beaten.show()["state"], alive.show()["state"]) == ("held", "held")
    # The row that turned out alive comes up again when it may be dead, not at every tick.
    row = Resource.objects.get(resource_id="beaten")
    assert row.check_at == row.expires_at


def test_the_server_itself_is_the_actor_of_the_reaper(held: Held, clock: Any) -> None:
    clock.move(seconds=60)
    services.reap_due()
    event = Event.objects.get(type="lease.reaped")
    assert (event.actor_id, event.key_id) == (None, None)


def test_a_token_grows_across_a_reap_even_when_the_clock_stands_still(agent: Caster, clock: Any) -> None:
    start = clock.now()
    clock.freeze(start)
    first = Held.by(agent)
    clock.freeze(start + timedelta(seconds=60))
    assert services.reap_due() == 1
    clock.freeze(start)
    assert Held.by(agent).token == first.token + 1


def test_a_key_that_may_not_observe_is_not_told_whose_it_was(held: Held, clock: Any) -> None:
    blind = cast(held.agent.principal.organization, "blind", (2,))
    clock.move(seconds=61)
    reaped = blind.post("leases/reap", NAME).json()["data"]
    assert reaped["lease_id"] == held.lease_id
    assert (reaped["principal"], reaped["holder"], reaped["fencing_token"]) == (None, None, None)
