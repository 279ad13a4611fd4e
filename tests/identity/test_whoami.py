from typing import Any

import pytest

from tests.conftest import Caster, cast


def test_a_key_learns_for_whom_it_speaks_and_what_it_may(agent: Caster) -> None:
    assert agent.get("whoami").json()["data"] == {
        "organization": "acme",
        "principal": "agent",
        "kind": "agent",
        "holder_pattern": "^[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}$",
        "rings": [1, 2],
        "key_id": agent.caller.key_id,
    }


@pytest.mark.parametrize("rings", [(1,), (2,), (3,), (2, 3), (1, 2, 3)])
def test_any_ring_may_ask(organization: Any, rings: tuple[int, ...]) -> None:
    somebody = cast(organization, "somebody", rings, holder_pattern="^ci-.*$")
    answer = somebody.get("whoami").json()["data"]
    assert (answer["rings"], answer["holder_pattern"]) == (list(rings), "^ci-.*$")


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer "])
def test_the_scheme_is_read_in_any_case(agent: Caster, scheme: str) -> None:
    assert agent.get("whoami", Authorization=f"{scheme} {agent.secret}").status_code == 200
