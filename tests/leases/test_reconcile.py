from typing import Any

from leasehub.events.models import Event
from tests.conftest import Caster, cast
from tests.leases.conftest import Held


def names(rows: list[dict[str, Any]]) -> list[str]:
    return [row["resource_id"] for row in rows]


def test_the_dead_inside_the_fence_are_reaped_and_the_foreign_never_touched(organization: Any, clock: Any) -> None:
    ci = cast(organization, "ci", holder_pattern=r"^ci-.*$")
    muse = cast(organization, "muse")
    Held.by(ci, "ci-dead", holder="ci-1")
    Held.by(muse, "muse-dead", holder="muse-1")
    # Another principal's, inside the fence.
    Held.by(muse, "muse-as-ci", holder="ci-2")
    clock.move(seconds=60)
    Held.by(ci, "ci-alive", holder="ci-1")
    Held.by(muse, "muse-alive", holder="muse-1")
    response = ci.post("leases/reconcile")
    report = response.json()["data"]
    assert response.status_code == 200
    assert names(report["held"]) == ["ci-alive"]
    assert names(report["reaped"]) == ["ci-dead", "muse-as-ci"]
    assert names(report["foreign"]) == ["muse-dead", "muse-alive"]
    assert report["truncated"] is False
    assert [row["state"] for row in report["foreign"]] == ["unknown", "held"]
    assert sorted(Event.objects.filter(type="lease.reaped").values_list("resource_id", flat=True)) == [
        "ci-dead",
        "muse-as-ci",
    ]


def test_a_second_sweep_finds_nothing_to_reap(held: Held, clock: Any) -> None:
    clock.move(seconds=60)
    assert names(held.agent.post("leases/reconcile").json()["data"]["reaped"]) == ["checkout"]
    again = held.agent.post("leases/reconcile").json()["data"]
    assert (again["held"], again["reaped"], again["foreign"]) == ([], [], [])


def test_another_organization_does_not_appear(held: Held, stranger: Caster, clock: Any) -> None:
    clock.move(seconds=60)
    report = stranger.post("leases/reconcile").json()["data"]
    assert (report["held"], report["reaped"], report["foreign"]) == ([], [], [])
    assert held.show()["state"] == "unknown"


def test_without_ring_1_the_sweep_sees_its_own_alone(held: Held, organization: Any, clock: Any) -> None:
    blind = cast(organization, "blind", (2,))
    Held.by(blind, "own")
    clock.move(seconds=60)
    report = blind.post("leases/reconcile").json()["data"]
    assert names(report["reaped"]) == ["own"]
    assert report["foreign"] == []
    assert held.show()["state"] == "unknown"
