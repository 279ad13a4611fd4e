"""What the tests of handoffs share: a giver with a lease, and an offer of it."""

from typing import Any

import pytest

from leasehub.identity.models import Organization
from tests.browser import browser
from tests.conftest import Caster, cast

__all__ = ["browser"]


@pytest.fixture
def third(organization: Organization) -> Caster:
    """A principal of the organization that is no party."""
    return cast(organization, "third")


def send(giver: Caster, to: Caster | str, **members: Any) -> Any:
    handle = to if isinstance(to, str) else to.principal.handle
    return giver.post("handoffs", {"to_principal": handle, "subject_id": "deploy-41", **members})


def sent(giver: Caster, to: Caster | str, **members: Any) -> str:
    """The id of a new handoff."""
    response = send(giver, to, **members)
    assert response.status_code == 201, response.content
    return str(response.json()["data"]["handoff_id"])


def resolve(caster: Caster, handoff_id: str, status: str = "accepted", **members: Any) -> Any:
    if status == "rejected":
        members.setdefault("reason", "no access to the cluster")
    return caster.post(f"handoffs/{handoff_id}/resolve", {"status": status, **members})


def show(caster: Caster, handoff_id: str) -> dict[str, Any]:
    response = caster.get(f"handoffs/{handoff_id}")
    assert response.status_code == 200, response.content
    shown: dict[str, Any] = response.json()["data"]
    return shown


def events_of(caster: Caster, types: str = "") -> list[dict[str, Any]]:
    suffix = f"&types={types}" if types else ""
    found: list[dict[str, Any]] = caster.get(f"events?limit=200{suffix}").json()["data"]["events"]
    return found


@pytest.fixture
def lease(agent: Caster) -> dict[str, Any]:
    granted: dict[str, Any] = agent.acquire(purpose="release 41").json()["data"]
    return granted
