from typing import Any

from leasehub.events.models import Event
from leases import services
from tests.conftest import Caster, cast, error_of
from tests.leases.conftest import Endings, Held


def test_a_released_resource_is_free_at_once(held: Held, teammate: Caster) -> None:
    response = held.release()
    assert response.status_code == 200
    released = response.json()["data"]
    assert (released["lease_id"], released["was_expired"]) == (held.lease_id, False)
    taken = teammate.acquire().json()["data"]
    assert not taken["took_over_expired"]
    assert taken["fencing_token"] > held.token


def test_the_token_may_be_given_and_then_must_be_the_lease_s(held: Held) -> None:
    refused = error_of(held.release(held.token + 1))
    assert (refused["status"], refused["code"]) == (409, "STALE_TOKEN")
    assert held.show()["state"] == "held"
    assert held.release(held.token).status_code == 200


def test_a_second_release_finds_nothing(held: Held) -> None:
    held.release()
    refused = error_of(held.release())
    assert (refused["status"], refused["code"]) == (404, "NOT_FOUND")
    assert Event.objects.filter(type="lease.released").count() == 1


def test_whatever_has_ended_cannot_be_released(endings: Endings) -> None:
    for held in endings.values():
        assert error_of(held.release())["code"] == "NOT_FOUND"


def test_releasing_an_expired_lease_only_tidies_up_and_says_so(held: Held, clock: Any) -> None:
    clock.move(seconds=60)
    assert held.release().json()["data"]["was_expired"] is True
    assert held.show()["ended_by"] == "released"
    event = Event.objects.get(type="lease.released")
    assert event.data["was_expired"] is True


def test_nobody_else_releases_it_not_even_with_the_token(
    held: Held, teammate: Caster, operator: Caster, stranger: Caster
) -> None:
    for other in (teammate, operator, stranger):
        assert error_of(other.delete(f"leases/{held.lease_id}?fencing_token={held.token}"))["code"] == "NOT_FOUND"
    assert held.show()["state"] == "held"


def test_an_old_lease_cannot_release_its_successor(agent: Caster) -> None:
    first = Held.by(agent)
    second = Held.by(agent)
    assert error_of(first.release())["code"] == "NOT_FOUND"
    assert second.show()["state"] == "held"


def test_a_key_with_a_fence_of_its_own_releases_inside_it_alone(agent: Caster, organization: Any) -> None:
    fenced = cast(organization, "agent", holder_pattern=r"^ci-.*$")
    inside, outside = Held.by(agent, "inside", holder="ci-1"), Held.by(agent, "outside", holder="muse")
    assert fenced.delete(f"leases/{inside.lease_id}").status_code == 200
    assert error_of(fenced.delete(f"leases/{outside.lease_id}"))["code"] == "NOT_FOUND"
    assert outside.show()["state"] == "held"


def test_the_reaper_finds_nothing_left(held: Held, clock: Any) -> None:
    held.release()
    clock.move(seconds=60)
    assert services.reap_due() == 0
