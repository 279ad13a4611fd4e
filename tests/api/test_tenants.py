"""What belongs to another organization answers like what does not exist, byte for byte."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from django.db import transaction

from leases import services
from tests import contract
from tests.api.samples import SAMPLES, Names, Sample
from tests.conftest import Caster, cast
from tests.leases.conftest import Held

# These make something of one's own, under whatever name: their answers have new ids and times in them.
MAKERS = {
    "lease_acquire",
    "principal_create",
    "key_create",
    "checkpoint_post",
    "pool_declare",
    "task_put",
    "webhook_create",
}
PATH_PARAMETERS = {"lease_id", "key_id", "handle", "handoff_id", "checkpoint_id", "subject_id", "kind"} | {
    "pool",
    "slot_id",
    "request_id",
    "run_id",
    "queue",
    "task_id",
    "webhook_id",
    "delivery_id",
}
# Its answer tells how long things took just now.
TIMED = {"doctor"}
FIGURES = re.compile(rb"[-+]?[\d.]+")
VOLATILE = re.compile(
    rb"(lease_|key_|ckpt_|t_|whk_)[0-9a-f]{32}|whsec_[\w+/=]+|lh_\w+|\d{13,}|\d{4}-\d\d-\d\dT[\d:.]+Z"
)


@pytest.fixture
def theirs(agent: Caster, teammate: Caster, operator: Caster, clock: Any) -> dict[str, Names]:
    """What another organization has, by the state that it is in."""
    leases = {
        state: Held.by(
            agent, f"theirs-{state}", ttl_seconds=10 if state in ("unknown", "reaped") else 600, purpose="secret"
        )
        for state in ("reaped", "unknown", "held", "released")
    }
    leases["released"].release()
    clock.move(seconds=10)
    agent.post("leases/reap", {"resource_type": "deploy", "resource_id": "theirs-reaped"})
    saved = agent.put("checkpoints/theirs-subject/task_state", {"state": "secret"}).json()["data"]
    sent = agent.post(
        "handoffs", {"to_principal": "teammate", "subject_id": "theirs-subject", "message": "secret"}
    ).json()["data"]
    declared = {"slots": [{"id": "theirs-slot-1"}, {"id": "theirs-slot-2"}], "provision": "secret", "health": "secret"}
    operator.put("pools/theirs-pool", declared)
    waiting = agent.post("pools/theirs-pool/requests", {"mode": "async", "holder": "agent"}).json()["data"]
    run = operator.post("pools/theirs-pool/slots/theirs-slot-2/reprovision", {"wait_seconds": 0}).json()["data"]
    task = agent.post("queues/theirs-queue/tasks", {"payload": "secret"}).json()["data"]
    webhook = operator.post("webhooks", {"url": "https://hooks.example.org/secret"}).json()["data"]
    delivery = operator.post(f"webhooks/{webhook['webhook_id']}/test").json()["data"]
    return {
        state: Names(
            held.lease_id,
            held.token,
            teammate.caller.key_id,
            "teammate",
            held.resource_id,
            sent["handoff_id"],
            saved["checkpoint_id"],
            "theirs-subject",
            "theirs-pool",
            "theirs-slot-1",
            waiting["request_id"],
            run["run_id"],
            "theirs-queue",
            task["task_id"],
            webhook["webhook_id"],
            delivery["delivery_id"],
        )
        for state, held in leases.items()
    }


def foreign_names(theirs: dict[str, Names]) -> Iterator[Names]:
    """Everything foreign, and each foreign name among names of nothing."""
    yield from theirs.values()
    for name, value in vars(theirs["held"]).items():
        yield replace(Names.of_nothing(), **{name: value})


def undone(sample: Sample, caster: Caster, names: Names) -> tuple[int, bytes]:
    """The answer without the names that were asked for, as if it had not been asked."""
    with transaction.atomic():
        response = sample.send(caster, names)
        transaction.set_rollback(True)
    return response.status_code, names.hidden(response.content)


@pytest.mark.parametrize("name", SAMPLES)
def test_another_organization_s_things_are_like_nothing(name: str, theirs: dict[str, Names], stranger: Caster) -> None:
    sample = SAMPLES[name]
    # The first use of a key is written down: here, and not between two answers that are compared.
    stranger.get("whoami")
    nothing = undone(sample, stranger, Names.of_nothing())
    for names in foreign_names(theirs):
        status, told = undone(sample, stranger, names)
        if name in TIMED:
            assert (status, FIGURES.sub(b"~", told)) == (nothing[0], FIGURES.sub(b"~", nothing[1])), names
        elif name in MAKERS:
            told, expected = VOLATILE.sub(b"~", told), VOLATILE.sub(b"~", nothing[1])
            assert (status, told) == (nothing[0], expected), names
        else:
            assert (status, told) == nothing, names
        # A webhook has members of that name.
        told = re.sub(rb'"\w*secret\w*":', b"", told)
        for known in (b"secret", b"acme", *(str(value).encode() for value in vars(names).values())):
            assert known not in told
    assert_nothing_changed(theirs)


def assert_nothing_changed(theirs: dict[str, Names]) -> None:
    from leasehub.identity.models import ApiKey, Principal
    from leases.models import Resource

    assert Resource.objects.get(resource_id=theirs["held"].resource_id, organization__name="acme").lease_id is not None
    assert (
        Resource.objects.get(resource_id=theirs["unknown"].resource_id, organization__name="acme").lease_id is not None
    )
    assert (
        not ApiKey.objects.exclude(revoked_at=None, expires_at=None)
        .filter(principal__organization__name="acme")
        .exists()
    )
    assert not Principal.objects.exclude(retired_at=None).filter(organization__name="acme").exists()


def test_the_matrix_is_not_empty_the_owner_is_answered_otherwise(theirs: dict[str, Names], organization: Any) -> None:
    owner = cast(organization, "agent", (1, 2, 3))
    random = Names.of_nothing()
    differs = {
        name
        for name, sample in SAMPLES.items()
        for names in theirs.values()
        if undone(sample, owner, names) != undone(sample, owner, random)
    }
    assert differs >= {
        "lease_show", "lease_heartbeat", "lease_heartbeats", "lease_release", "lease_force_release", "lease_status",
        "lease_reap", "lease_list", "fence_check", "key_revoke", "key_rotate", "principal_retire", "event_list",
        "handoff_show", "handoff_resolve", "handoff_withdraw", "checkpoint_find", "checkpoint_show", "checkpoint_get",
        "pool_show", "pool_request", "pool_request_show", "pool_request_cancel", "pool_request_list", "pool_run_show",
        "webhook_show", "webhook_delete", "webhook_rotate", "webhook_deliveries", "webhook_delivery",
        "task_claim", "task_show", "queue_show", "pool_drain", "pool_repair", "pool_heartbeat", "pool_pump",
    }  # fmt: skip


def test_every_path_parameter_is_in_the_matrix() -> None:
    found = {name for _, path in contract.operations() for name in re.findall(r"\{(\w+)\}", path)}
    assert found == PATH_PARAMETERS


def test_a_handle_means_the_principal_of_ones_own_organization(agent: Caster, stranger: Caster) -> None:
    made = stranger.post("keys", {"principal": "agent"}).json()["data"]
    twin = Caster(agent.principal, made["api_key"])
    assert twin.get("whoami").json()["data"]["organization"] == "other"
    held = Held.by(agent)
    assert twin.post(f"leases/{held.lease_id}/heartbeat", {"fencing_token": held.token}).status_code == 404
    assert services.reap_due() == 0
