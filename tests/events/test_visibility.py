"""Who sees which event."""

import itertools
from typing import Any

import pytest

from leasehub.events.models import Event
from leasehub.events.queries import View
from tests.conftest import Caster, cast
from tests.events.conftest import page, types

SECRETS = ("half of the fleet runs 41", "./deploy --from web-07", "web-09 is in repair", "too late for today")


def handed_over(giver: Caster, to: Caster) -> None:
    """A handoff with everything, rejected with a reason; and one more, accepted and completed with a result."""
    body = {
        "to_principal": to.principal.handle, "subject_id": "deploy-41", "message": SECRETS[0],
        "next_action": SECRETS[1], "blockers": [SECRETS[2]],
    }  # fmt: skip
    first = giver.post("handoffs", body).json()["data"]["handoff_id"]
    to.post(f"handoffs/{first}/resolve", {"status": "rejected", "reason": SECRETS[3]})
    second = giver.post("handoffs", body).json()["data"]["handoff_id"]
    to.post(f"handoffs/{second}/resolve", {"status": "accepted"})
    to.post(f"handoffs/{second}/complete", {"result": SECRETS[2]})


HANDED_OVER = ["handoff.created", "handoff.rejected", "handoff.created", "handoff.accepted", "handoff.completed"]


@pytest.mark.parametrize("rings", [(1,), (1, 2), (1, 2, 3)])
def test_who_observes_sees_that_work_was_handed_over_but_not_what_it_carries(
    agent: Caster, teammate: Caster, organization: Any, rings: tuple[int, ...]
) -> None:
    handed_over(agent, teammate)
    observer = cast(organization, "observer", rings)
    assert types(observer) == HANDED_OVER
    told = observer.get("events").content.decode()
    assert [secret for secret in SECRETS if secret in told] == []
    (created, *_) = page(observer)["events"]
    assert created["data"]["handoff_id"].startswith("hoff_")
    assert (created["principal"], created["addressee"]) == ("agent", "teammate")


@pytest.mark.parametrize("rings", [(2,), (3,), (2, 3)])
def test_who_does_not_observe_sees_what_is_its_own_or_addressed_to_it(
    organization: Any, rings: tuple[int, ...]
) -> None:
    giver, addressee, other = (cast(organization, handle, (2,)) for handle in ("giver", "addressee", "other"))
    giver.acquire("mine")
    handed_over(giver, addressee)
    other.acquire("theirs")
    seen = {handle: cast(organization, handle, rings) for handle in ("giver", "addressee", "other")}
    assert types(seen["giver"]) == ["lease.acquired", *HANDED_OVER]
    assert types(seen["addressee"]) == HANDED_OVER
    assert [event["resource_id"] for event in page(seen["other"])["events"]] == ["theirs"]


def test_nothing_of_another_organization_is_seen(agent: Caster, stranger: Caster) -> None:
    agent.acquire()
    assert page(stranger) == {"events": [], "next": None, "cursor": "0"}
    assert page(stranger, "resource=deploy/checkout&holder=agent")["events"] == []


def test_the_late_holder_is_named_to_those_who_see_the_event(agent: Caster, organization: Any, clock: Any) -> None:
    from leases import services

    agent.acquire(holder="muse-01")
    clock.move(seconds=120)
    services.reap_due()
    observer = cast(organization, "observer", (1,))
    (reaped,) = page(observer, "types=lease.reaped")["events"]
    assert (reaped["principal"], reaped["holder"], reaped["actor"]) == ("agent", "muse-01", None)
    assert reaped["lease_id"] and reaped["fencing_token"]
    assert {"acquired_at", "heartbeat_at", "expired_at"} <= set(reaped["data"])


def test_the_database_and_the_process_agree_on_what_a_view_shows(
    agent: Caster, teammate: Caster, operator: Caster
) -> None:
    """A follower is rung, and a stream fed, by what the process knows of an event."""
    agent.acquire("a", holder="muse-01")
    teammate.acquire("a", resource_type="build", holder="muse-01")
    lease = teammate.acquire("b").json()["data"]
    body = {"reason": "stuck", "fencing_token": lease["fencing_token"]}
    operator.post(f"leases/{lease['lease_id']}/force-release", body)
    handed_over(agent, teammate)
    page(agent)
    events = list(Event.objects.order_by("pk"))
    organization = agent.principal.organization_id
    for only_of, of_types, resources, holder in itertools.product(
        [None, agent.principal.pk, teammate.principal.pk, operator.principal.pk],
        [(), ("lease.acquired",), ("handoff.created", "lease.force_released")],
        [(), (("deploy", "a"),), (("build", "a"), ("deploy", "b"))],
        ["", "muse-01", "teammate"],
    ):
        view = View(organization, only_of, of_types, resources, holder)
        assert list(view.events().order_by("pk")) == [event for event in events if view.shows(event)], view
