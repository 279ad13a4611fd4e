from typing import Any

from leases.models import Resource
from tests.conftest import Caster, cast
from tests.leases.conftest import Held

STATUS = "leases/status?resource_type=deploy&resource_id=checkout"


def test_what_never_was_is_free_and_asking_makes_nothing(agent: Caster) -> None:
    status = agent.get(STATUS).json()["data"]
    assert (status["state"], status["resource_type"], status["resource_id"]) == ("free", "deploy", "checkout")
    assert all(status[name] is None for name in ("lease_id", "holder", "expires_at", "expires_in_ms", "fencing_token"))
    assert not Resource.objects.exists()


def test_held_is_told_with_its_figures(held: Held, teammate: Caster, clock: Any) -> None:
    clock.move(seconds=20)
    status = teammate.get(STATUS).json()["data"]
    assert (status["state"], status["lease_id"], status["holder"]) == ("held", held.lease_id, "agent")
    assert 39_000 < status["expires_in_ms"] <= 40_000
    assert status["expired_for_ms"] is None
    assert not status["mine"]


def test_run_out_and_not_yet_reaped_is_unknown(held: Held, teammate: Caster, clock: Any) -> None:
    clock.move(seconds=65)
    status = teammate.get(STATUS).json()["data"]
    assert (status["state"], status["expires_in_ms"]) == ("unknown", 0)
    assert 5000 <= status["expired_for_ms"] < 7000
    assert status["holder"] == "agent"


def test_free_again_after_the_release(held: Held, teammate: Caster) -> None:
    held.release()
    status = teammate.get(STATUS).json()["data"]
    assert (status["state"], status["lease_id"], status["holder"]) == ("free", None, None)


def test_the_token_is_shown_to_its_own_principal_and_to_an_operator_alone(
    held: Held, teammate: Caster, operator: Caster
) -> None:
    assert held.agent.get(STATUS).json()["data"]["fencing_token"] == held.token
    assert operator.get(STATUS).json()["data"]["fencing_token"] == held.token
    assert teammate.get(STATUS).json()["data"]["fencing_token"] is None


def test_without_ring_1_anothers_lease_is_taken_until_when_and_nothing_more(agent: Caster, organization: Any) -> None:
    held = Held.by(agent, purpose="secret plan", payload={"secret": 1})
    blind = cast(organization, "blind", (2,))
    status = blind.get(STATUS).json()["data"]
    assert (status["state"], status["expires_at"]) == ("held", held.expires_at)
    told = {name for name, value in status.items() if value not in (None, False)}
    assert told == {"resource_type", "resource_id", "state", "expires_at", "expires_in_ms"}


def test_without_ring_1_ones_own_lease_is_shown_whole(organization: Any) -> None:
    blind = cast(organization, "blind", (2,))
    held = Held.by(blind, purpose="mine", payload=[1])
    status = blind.get(STATUS).json()["data"]
    assert (status["mine"], status["lease_id"], status["fencing_token"]) == (True, held.lease_id, held.token)
    assert (status["purpose"], status["payload"], status["ttl_seconds"]) == ("mine", [1], 60)


def test_another_organization_s_resource_of_that_name_is_free_to_me(held: Held, stranger: Caster) -> None:
    before = stranger.get(STATUS).content
    assert b'"free"' in before
    held.release()
    assert stranger.get(STATUS).content == before
