from typing import Any

import pytest

from leasehub.identity.models import Principal
from tests.conftest import Caster, cast, error_of


@pytest.mark.parametrize("kind", ["agent", "service", "human"])
def test_an_operator_makes_a_principal(operator: Caster, kind: str) -> None:
    response = operator.post("principals", {"handle": "muse-04", "kind": kind, "display_name": "Muse"})
    made = response.json()["data"]
    assert response.status_code == 201
    assert (made["handle"], made["kind"], made["display_name"], made["retired_at"]) == ("muse-04", kind, "Muse", None)
    assert made in operator.get("principals").json()["data"]["principals"]


def test_a_handle_is_unique_in_its_organization_and_free_in_another(operator: Caster, stranger: Caster) -> None:
    body = {"handle": "muse", "kind": "agent"}
    assert operator.post("principals", body).status_code == 201
    refused = error_of(operator.post("principals", body))
    assert (refused["status"], refused["code"]) == (409, "CONFLICT")
    assert stranger.post("principals", body).status_code == 201


def test_the_list_is_paged_and_shows_one_organization(agent: Caster, operator: Caster, stranger: Caster) -> None:
    for number in range(3):
        operator.post("principals", {"handle": f"p{number}", "kind": "agent"})
    page = agent.get("principals?limit=3").json()["data"]
    rest = agent.get(f"principals?limit=3&after={page['next']}").json()["data"]
    handles = [row["handle"] for row in page["principals"] + rest["principals"]]
    assert handles == ["agent", "operator", "p0", "p1", "p2"]
    assert rest["next"] is None


def test_a_retired_principal_keeps_its_history_and_loses_its_keys(operator: Caster, agent: Caster) -> None:
    lease = agent.acquire().json()["data"]
    response = operator.post("principals/agent/retire")
    assert response.status_code == 200
    retired_at = response.json()["data"]["retired_at"]
    assert agent.get("whoami").status_code == 401
    assert operator.get(f"leases/{lease['lease_id']}").json()["data"]["principal"] == "agent"
    # Repeatable: the first time stays.
    assert operator.post("principals/agent/retire").json()["data"]["retired_at"] == retired_at


def test_retiring_one_leaves_the_others(operator: Caster, agent: Caster, teammate: Caster) -> None:
    operator.post("principals/agent/retire")
    assert teammate.get("whoami").status_code == 200


def test_an_operator_cannot_retire_itself_nor_somebody_who_is_not_there(operator: Caster, stranger: Caster) -> None:
    refused = error_of(operator.post("principals/operator/retire"))
    assert (refused["status"], list(refused["fields"])) == (400, ["handle"])
    assert error_of(operator.post("principals/nobody/retire"))["code"] == "NOT_FOUND"
    assert error_of(operator.post("principals/stranger/retire"))["code"] == "NOT_FOUND"
    assert not Principal.objects.exclude(retired_at=None).exists()


def test_no_key_is_made_for_a_retired_principal(operator: Caster, agent: Caster, organization: Any) -> None:
    operator.post("principals/agent/retire")
    assert error_of(operator.post("keys", {"principal": "agent"}))["code"] == "NOT_FOUND"
    assert cast(organization, "another").get("whoami").status_code == 200
