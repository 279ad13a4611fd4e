from typing import Any

from leases import services
from tests.conftest import Caster, cast, error_of
from tests.leases.conftest import Held
from tests.leases.test_list import walked


def test_what_the_reaper_reclaimed_newest_first(agent: Caster, teammate: Caster, clock: Any) -> None:
    made = [Held.by(agent, f"r{number}", ttl_seconds=10 + number) for number in range(5)]
    for number in range(5):
        clock.move(seconds=10 if number == 0 else 1)
        services.reap_due()
    rows = teammate.get("leases/reaped").json()["data"]["leases"]
    assert [row["resource_id"] for row in rows] == ["r4", "r3", "r2", "r1", "r0"]
    first = rows[-1]
    assert (first["lease_id"], first["fencing_token"]) == (made[0].lease_id, made[0].token)
    assert (first["principal"], first["holder"], first["expired_at"]) == ("agent", "agent", made[0].expires_at)
    assert first["acquired_at"] == first["heartbeat_at"] < first["expired_at"] <= first["reaped_at"]
    assert walked(teammate, "leases/reaped", 2) == rows


def test_what_was_released_forced_or_taken_over_is_not_in_it(
    agent: Caster, teammate: Caster, operator: Caster, clock: Any
) -> None:
    Held.by(agent, "released").release()
    forced = Held.by(agent, "forced")
    operator.post(f"leases/{forced.lease_id}/force-release", {"reason": "x", "fencing_token": forced.token})
    Held.by(agent, "taken")
    clock.move(seconds=60)
    Held.by(teammate, "taken")
    assert agent.get("leases/reaped").json()["data"] == {"leases": [], "next": None}


def test_reaped_by_hand_and_by_reconcile_are_in_it_too(agent: Caster, clock: Any) -> None:
    Held.by(agent, "by-hand")
    Held.by(agent, "by-sweep")
    clock.move(seconds=60)
    agent.post("leases/reap", {"resource_type": "deploy", "resource_id": "by-hand"})
    agent.post("leases/reconcile")
    rows = agent.get("leases/reaped").json()["data"]["leases"]
    assert [row["resource_id"] for row in rows] == ["by-sweep", "by-hand"]


def test_it_needs_ring_1_and_shows_one_organization(
    held: Held, stranger: Caster, organization: Any, clock: Any
) -> None:
    clock.move(seconds=60)
    services.reap_due()
    assert stranger.get("leases/reaped").json()["data"]["leases"] == []
    assert error_of(cast(organization, "blind", (2,)).get("leases/reaped"))["missing_ring"] == 1
