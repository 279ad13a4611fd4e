"""A well-formed request of every operation, about objects of one's own, of others, or about none."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.conftest import Caster


@dataclass(frozen=True)
class Names:
    """What a request can name."""

    lease_id: str
    token: int
    key_id: str
    handle: str
    resource_id: str
    handoff_id: str = "hoff_" + "0" * 32
    checkpoint_id: str = "ckpt_" + "0" * 32
    subject_id: str = "nothing"
    pool: str = "nothing"
    slot_id: str = "nothing"
    request_id: str = "req_" + "0" * 32
    run_id: str = "run_" + "0" * 32
    queue: str = "nothing"
    task_id: str = "t_" + "0" * 32
    webhook_id: str = "whk_" + "0" * 32
    delivery_id: str = "dlv_" + "0" * 32

    @classmethod
    def of_nothing(cls) -> "Names":
        digits = uuid.uuid4().hex
        return cls(
            f"lease_{digits}",
            1_000_000_000_000,
            f"key_{digits}",
            f"h{digits[:12]}",
            f"r{digits[:12]}",
            f"hoff_{digits}",
            f"ckpt_{digits}",
            f"s{digits[:12]}",
            f"p{digits[:12]}",
            f"slot{digits[:12]}",
            f"req_{digits}",
            f"run_{digits}",
            f"q{digits[:12]}",
            f"t_{digits}",
            f"whk_{digits}",
            f"dlv_{digits}",
        )

    def hidden(self, content: bytes) -> bytes:
        """The answer without the names that the request itself gave."""
        for name, value in vars(self).items():
            content = content.replace(str(value).encode(), f"<{name}>".encode())
        return content


@dataclass(frozen=True)
class Sample:
    method: str
    path: Callable[[Names], str]
    body: Callable[[Names], Any] = lambda names: None

    def send(self, caster: Caster, names: Names, **headers: str) -> Any:
        return caster.request(self.method, self.path(names), self.body(names), **headers)


def resource(names: Names, **members: Any) -> dict[str, Any]:
    return {"resource_type": "deploy", "resource_id": names.resource_id, **members}


def a_beat(names: Names) -> dict[str, Any]:
    return {"fencing_token": names.token}


def on_slot(names: Names, verb: str) -> str:
    return f"pools/{names.pool}/slots/{names.slot_id}/{verb}"


def on_webhook(names: Names, verb: str = "") -> str:
    return f"webhooks/{names.webhook_id}{verb}"


SAMPLES: dict[str, Sample] = {
    "whoami": Sample("GET", lambda names: "whoami"),
    "doctor": Sample("GET", lambda names: "doctor"),
    "principal_list": Sample("GET", lambda names: "principals"),
    "principal_create": Sample(
        "POST", lambda names: "principals", lambda names: {"handle": names.handle, "kind": "agent"}
    ),
    "principal_retire": Sample("POST", lambda names: f"principals/{names.handle}/retire"),
    "key_list": Sample("GET", lambda names: "keys"),
    "key_create": Sample("POST", lambda names: "keys", lambda names: {"principal": names.handle, "rings": [3]}),
    "key_revoke": Sample("DELETE", lambda names: f"keys/{names.key_id}"),
    "key_rotate": Sample("POST", lambda names: f"keys/{names.key_id}/rotate", lambda names: {}),
    "event_stream": Sample("GET", lambda names: f"events/stream?resource=deploy/{names.resource_id}"),
    "event_list": Sample("GET", lambda names: f"events?resource=deploy/{names.resource_id}"),
    "webhook_list": Sample("GET", lambda names: "webhooks"),
    "webhook_create": Sample(
        "POST", lambda names: "webhooks", lambda names: {"url": "https://hooks.example.org/", "types": ["task.dead"]}
    ),
    "webhook_show": Sample("GET", on_webhook),
    "webhook_delete": Sample("DELETE", on_webhook),
    "webhook_pause": Sample("POST", lambda names: on_webhook(names, "/pause")),
    "webhook_resume": Sample("POST", lambda names: on_webhook(names, "/resume")),
    "webhook_rotate": Sample("POST", lambda names: on_webhook(names, "/rotate"), lambda names: {}),
    "webhook_test": Sample("POST", lambda names: on_webhook(names, "/test")),
    "webhook_replay": Sample("POST", lambda names: on_webhook(names, "/replay"), lambda names: {"after": 0}),
    "webhook_deliveries": Sample("GET", lambda names: on_webhook(names, "/deliveries")),
    "webhook_delivery": Sample("GET", lambda names: on_webhook(names, f"/deliveries/{names.delivery_id}")),
    "webhook_replay_delivery": Sample(
        "POST", lambda names: on_webhook(names, f"/deliveries/{names.delivery_id}/replay")
    ),
    "explain": Sample("GET", lambda names: f"explain?resource_type=deploy&resource_id={names.resource_id}"),
    "explain_request": Sample("GET", lambda names: f"explain/requests/{names.request_id}"),
    "lease_acquire": Sample("POST", lambda names: "leases", lambda names: resource(names, ttl_seconds=60)),
    "lease_list": Sample("GET", lambda names: f"leases?resource_id={names.resource_id}"),
    "lease_show": Sample("GET", lambda names: f"leases/{names.lease_id}"),
    "lease_heartbeat": Sample("POST", lambda names: f"leases/{names.lease_id}/heartbeat", a_beat),
    "lease_heartbeats": Sample(
        "POST",
        lambda names: "leases/heartbeats",
        lambda names: {"leases": [{"lease_id": names.lease_id, **a_beat(names)}]},
    ),
    "lease_release": Sample("DELETE", lambda names: f"leases/{names.lease_id}?fencing_token={names.token}"),
    "lease_force_release": Sample(
        "POST",
        lambda names: f"leases/{names.lease_id}/force-release",
        lambda names: {"reason": "stuck", **a_beat(names)},
    ),
    "lease_status": Sample("GET", lambda names: f"leases/status?resource_type=deploy&resource_id={names.resource_id}"),
    "lease_reap": Sample("POST", lambda names: "leases/reap", resource),
    "lease_reconcile": Sample("POST", lambda names: "leases/reconcile", lambda names: {}),
    "lease_reaped": Sample("GET", lambda names: "leases/reaped"),
    "handoff_list": Sample("GET", lambda names: "handoffs?box=sent"),
    "handoff_send": Sample(
        "POST",
        lambda names: "handoffs",
        lambda names: {
            "to_principal": names.handle,
            "subject_id": names.subject_id,
            "checkpoint_id": names.checkpoint_id,
            "parent_id": names.handoff_id,
            "lease_ids": [names.lease_id],
        },
    ),
    "handoff_statistics": Sample("GET", lambda names: "handoffs/statistics"),
    "handoff_show": Sample("GET", lambda names: f"handoffs/{names.handoff_id}"),
    "handoff_resolve": Sample(
        "POST", lambda names: f"handoffs/{names.handoff_id}/resolve", lambda names: {"status": "accepted"}
    ),
    "handoff_withdraw": Sample("POST", lambda names: f"handoffs/{names.handoff_id}/withdraw", lambda names: {}),
    "handoff_complete": Sample("POST", lambda names: f"handoffs/{names.handoff_id}/complete", lambda names: {}),
    "checkpoint_find": Sample("GET", lambda names: f"checkpoints?subject_id={names.subject_id}&kind=task_state"),
    "checkpoint_post": Sample(
        "POST",
        lambda names: "checkpoints",
        lambda names: {"subject_id": names.subject_id, "kind": "task_state", "state": {"step": 3}},
    ),
    "checkpoint_show": Sample("GET", lambda names: f"checkpoints/{names.checkpoint_id}"),
    "checkpoint_get": Sample("GET", lambda names: f"checkpoints/{names.subject_id}/task_state"),
    "checkpoint_save": Sample(
        "PUT",
        lambda names: f"checkpoints/{names.subject_id}/task_state",
        lambda names: {"state": {"step": 3}, "fence": resource(names, fencing_token=names.token)},
    ),
    "task_put": Sample("POST", lambda names: f"queues/{names.queue}/tasks", lambda names: {"payload": {"n": 1}}),
    "task_claim": Sample("POST", lambda names: "leases/hot-claim", lambda names: {"queue": names.queue}),
    "task_show": Sample("GET", lambda names: f"tasks/{names.task_id}"),
    "task_complete": Sample("POST", lambda names: f"tasks/{names.task_id}/complete", a_beat),
    "task_fail": Sample(
        "POST", lambda names: f"tasks/{names.task_id}/fail", lambda names: {"error": "broken", **a_beat(names)}
    ),
    "task_retry": Sample("POST", lambda names: f"tasks/{names.task_id}/retry"),
    "queue_list": Sample("GET", lambda names: "queues"),
    "queue_show": Sample("GET", lambda names: f"queues/{names.queue}"),
    "pool_list": Sample("GET", lambda names: "pools"),
    "pool_show": Sample("GET", lambda names: f"pools/{names.pool}"),
    "pool_declare": Sample(
        "PUT", lambda names: f"pools/{names.pool}", lambda names: {"slots": [{"id": names.slot_id}]}
    ),
    "pool_pump": Sample("POST", lambda names: f"pools/{names.pool}/pump", lambda names: {}),
    "pool_request": Sample("POST", lambda names: f"pools/{names.pool}/requests", lambda names: {"mode": "blocking"}),
    "pool_request_list": Sample("GET", lambda names: f"pools/{names.pool}/requests"),
    "pool_request_show": Sample("GET", lambda names: f"pools/{names.pool}/requests/{names.request_id}"),
    "pool_request_cancel": Sample("DELETE", lambda names: f"pools/{names.pool}/requests/{names.request_id}"),
    "pool_run_show": Sample("GET", lambda names: f"pools/{names.pool}/runs/{names.run_id}"),
    "pool_heartbeat": Sample("POST", lambda names: on_slot(names, "heartbeat"), a_beat),
    "pool_release": Sample("POST", lambda names: on_slot(names, "release"), a_beat),
    "pool_reset": Sample("POST", lambda names: on_slot(names, "reset"), a_beat),
    "pool_reprovision": Sample("POST", lambda names: on_slot(names, "reprovision"), lambda names: {}),
    "pool_health": Sample("POST", lambda names: on_slot(names, "health"), lambda names: {}),
    "pool_drain": Sample("POST", lambda names: on_slot(names, "drain"), lambda names: {}),
    "pool_undrain": Sample("POST", lambda names: on_slot(names, "undrain"), lambda names: {}),
    "pool_repair": Sample("POST", lambda names: on_slot(names, "repair"), lambda names: {}),
    "fence_check": Sample(
        "POST", lambda names: "fence/check", lambda names: resource(names, fencing_token=names.token)
    ),
}
