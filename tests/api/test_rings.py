"""What each ring may do, route by route."""

from itertools import combinations
from typing import Any

import pytest

from tests import contract
from tests.api.samples import SAMPLES, Names
from tests.conftest import Caster, cast, error_of

# The ring that an operation takes; None: any key.
RINGS: dict[str, int | None] = {
    "whoami": None,
    "doctor": 3,
    "principal_list": 1,
    "principal_create": 3,
    "principal_retire": 3,
    "key_list": 3,
    "key_create": 3,
    "key_revoke": 3,
    "key_rotate": 3,
    "event_list": None,
    "event_stream": None,
    "webhook_list": 3,
    "webhook_create": 3,
    "webhook_show": 3,
    "webhook_delete": 3,
    "webhook_pause": 3,
    "webhook_resume": 3,
    "webhook_rotate": 3,
    "webhook_test": 3,
    "webhook_replay": 3,
    "webhook_deliveries": 3,
    "webhook_delivery": 3,
    "webhook_replay_delivery": 3,
    "explain": None,
    "explain_request": None,
    "lease_acquire": 2,
    "lease_list": 1,
    "lease_show": None,
    "lease_heartbeat": 2,
    "lease_heartbeats": 2,
    "lease_release": 2,
    "lease_force_release": 3,
    "lease_status": None,
    "lease_reap": 2,
    "lease_reconcile": 2,
    "lease_reaped": 1,
    "fence_check": None,
    "handoff_list": None,
    "handoff_send": 2,
    "handoff_statistics": None,
    "handoff_show": None,
    "handoff_resolve": 2,
    "handoff_withdraw": 2,
    "handoff_complete": 2,
    "checkpoint_find": None,
    "checkpoint_post": 2,
    "checkpoint_show": None,
    "checkpoint_get": None,
    "checkpoint_save": 2,
    "task_put": 2,
    "task_claim": 2,
    "task_show": None,
    "task_complete": 2,
    "task_fail": 2,
    "task_retry": 3,
    "queue_list": 1,
    "queue_show": 1,
    "pool_list": 1,
    "pool_show": 1,
    "pool_declare": 3,
    "pool_pump": 2,
    "pool_request": 2,
    "pool_request_list": None,
    "pool_request_show": None,
    "pool_request_cancel": 2,
    "pool_run_show": None,
    "pool_heartbeat": 2,
    "pool_release": 2,
    "pool_reset": 2,
    "pool_reprovision": 3,
    "pool_health": 3,
    "pool_drain": 3,
    "pool_undrain": 3,
    "pool_repair": 3,
}
#: A webhook is told of what RING-1 sees.
BESIDES = {"webhook_create": 1}
SETS = [rings for size in (1, 2, 3) for rings in combinations((1, 2, 3), size)]


def test_every_operation_has_a_ring_and_a_sample() -> None:
    ids = {operation["operationId"] for operation in contract.operations().values()}
    assert ids == set(RINGS) == set(SAMPLES)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_key_is_let_through_by_its_ring_and_by_no_other(organization: Any, name: str) -> None:
    needed = RINGS[name]
    for rings in SETS:
        caster = cast(organization, f"with-{''.join(map(str, rings))}", rings)
        response = SAMPLES[name].send(caster, Names.of_nothing())
        if needed is None or needed in rings:
            besides = BESIDES.get(name)
            if besides is None or besides in rings:
                assert response.status_code != 403, rings
            else:
                assert error_of(response)["missing_ring"] == besides, rings
        else:
            refused = error_of(response)
            assert (refused["status"], refused["code"], refused["missing_ring"]) == (403, "FORBIDDEN", needed), rings
            assert f"RING-{needed}" in refused["message"]


@pytest.mark.parametrize("name", [name for name, ring in RINGS.items() if ring is not None])
def test_a_missing_ring_is_told_before_bad_input(organization: Any, name: str) -> None:
    sample = SAMPLES[name]
    lacks = cast(organization, "lacks", tuple({1, 2, 3} - {RINGS[name]}))
    path = sample.path(Names.of_nothing()).partition("?")[0]
    assert lacks.request(sample.method, f"{path}?nonsense=1", b"[").status_code == 403


def test_with_ring_2_alone_a_key_sees_its_own_events(agent: Caster, organization: Any) -> None:
    blind = cast(organization, "blind", (2,))
    agent.acquire("theirs")
    own = blind.acquire("own").json()["data"]
    blind.acquire("theirs")
    seen = blind.get("events").json()["data"]["events"]
    assert [event["lease_id"] for event in seen] == [own["lease_id"]]
    assert len(agent.get("events").json()["data"]["events"]) == 2


def test_with_ring_2_alone_an_event_about_ones_lease_is_seen_though_another_did_it(
    operator: Caster, organization: Any
) -> None:
    blind = cast(organization, "blind", (2,))
    held = blind.acquire().json()["data"]
    body = {"reason": "stuck", "fencing_token": held["fencing_token"]}
    operator.post(f"leases/{held['lease_id']}/force-release", body)
    types = [event["type"] for event in blind.get("events").json()["data"]["events"]]
    assert types == ["lease.acquired", "lease.force_released"]
