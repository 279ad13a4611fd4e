import uuid
from typing import Any

from tests.conftest import Caster, cast, error_of
from tests.leases.conftest import Endings, Held


def test_a_live_lease_is_shown_whole_to_its_holder(agent: Caster) -> None:
    held = Held.by(agent, purpose="release 41", payload={"commit": "abc"}, max_lifetime_seconds=3600)
    shown = held.show()
    assert (shown["state"], shown["mine"], shown["fencing_token"]) == ("held", True, held.token)
    assert (shown["purpose"], shown["payload"], shown["ttl_seconds"]) == ("release 41", {"commit": "abc"}, 60)
    assert (shown["principal"], shown["holder"]) == ("agent", "agent")
    assert shown["expires_at"] == held.expires_at


def test_a_lease_that_ran_out_is_unknown_until_somebody_ends_it(held: Held, clock: Any) -> None:
    clock.move(seconds=60)
    shown = held.show()
    assert (shown["state"], shown["expires_in_ms"]) == ("unknown", 0)


def test_an_ended_lease_says_how_it_ended(endings: Endings, teammate: Caster) -> None:
    for ended_by, held in endings.items():
        for caster in (held.agent, teammate):
            response = caster.get(f"leases/{held.lease_id}")
            shown = response.json()["data"]
            assert response.status_code == 200
            assert (shown["state"], shown["ended_by"]) == ("ended", ended_by)
            assert (shown["lease_id"], shown["resource_id"]) == (held.lease_id, held.resource_id)
            assert (shown["principal"], shown["holder"]) == ("agent", "agent")
            assert "T" in shown["ended_at"]


def test_a_lease_that_outlived_several_acquisitions_tells_each_apart(agent: Caster) -> None:
    first, second = Held.by(agent), Held.by(agent)
    second.release()
    assert (first.show()["ended_by"], second.show()["ended_by"]) == ("reacquired", "released")


def test_without_ring_1_only_ones_own_is_shown_alive_or_ended(
    held: Held, endings: Endings, organization: Any, clock: Any
) -> None:
    blind = cast(organization, "blind", (2,))
    own, ended = Held.by(blind, "own"), Held.by(blind, "ended")
    ended.release()
    assert (own.show()["state"], ended.show()["state"]) == ("held", "ended")
    nothing = blind.get(f"leases/lease_{uuid.uuid4().hex}")
    for lease in (held, *endings.values()):
        response = blind.get(f"leases/{lease.lease_id}")
        assert response.content == nothing.content
    assert error_of(nothing)["code"] == "NOT_FOUND"


def test_another_organization_sees_nothing_alive_or_ended(held: Held, endings: Endings, stranger: Caster) -> None:
    for lease in (held, *endings.values()):
        assert error_of(stranger.get(f"leases/{lease.lease_id}"))["status"] == 404
