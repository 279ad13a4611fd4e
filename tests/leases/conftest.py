"""Leases that are held, and one that ended in each way there is."""

from dataclasses import dataclass
from typing import Any

import pytest

from leases import services
from tests.conftest import Caster


@dataclass
class Held:
    """A lease as its holder knows it."""

    agent: Caster
    resource_id: str
    lease_id: str
    token: int
    expires_at: str

    @classmethod
    def by(cls, agent: Caster, resource_id: str = "checkout", **members: Any) -> "Held":
        granted = agent.acquire(resource_id, **members).json()["data"]
        return cls(agent, resource_id, granted["lease_id"], granted["fencing_token"], granted["expires_at"])

    def beat(self, **members: Any) -> Any:
        return self.agent.post(f"leases/{self.lease_id}/heartbeat", {"fencing_token": self.token, **members})

    def release(self, fencing_token: int | None = None) -> Any:
        query = "" if fencing_token is None else f"?fencing_token={fencing_token}"
        return self.agent.delete(f"leases/{self.lease_id}{query}")

    def show(self) -> Any:
        return self.agent.get(f"leases/{self.lease_id}").json()["data"]


@pytest.fixture
def held(agent: Caster) -> Held:
    return Held.by(agent)


Endings = dict[str, Held]


@pytest.fixture
def endings(agent: Caster, teammate: Caster, operator: Caster, clock: Any) -> Endings:
    """By the word that says how each ended; the clock stands a minute after the first ones."""
    made = {
        name: Held.by(agent, name, **({"max_lifetime_seconds": 30} if name == "max_lifetime" else {}))
        for name in ("released", "force_released", "reacquired", "taken_over", "reaped", "max_lifetime")
    }
    made["released"].release()
    forced = made["force_released"]
    operator.post(f"leases/{forced.lease_id}/force-release", {"reason": "stuck", "fencing_token": forced.token})
    agent.acquire("reacquired")
    clock.move(seconds=60)
    teammate.acquire("taken_over")
    services.reap_due()
    return made
