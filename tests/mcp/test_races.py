"""Many sessions want one resource at once: one wins each round."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections

from leasehub.identity import services as identity
from tests.conftest import cast
from tests.mcp.conftest import Session
from tests.rounds import rounds

CONTENDERS = 16


@pytest.mark.django_db(transaction=True)
def test_one_of_sixteen_sessions_wins_each_round() -> None:
    agent = cast(identity.create_organization(name="acme"), "agent")
    sessions = [Session(agent, f"agent.{n}") for n in range(CONTENDERS)]
    together = threading.Barrier(CONTENDERS)
    many = rounds(3, full=50)

    def contend(session: Session) -> list[dict[str, Any] | None]:
        """What it was granted in each round."""
        won: list[dict[str, Any] | None] = []
        try:
            for _ in range(many):
                together.wait(120)
                answer = session.acquire("contended", ttl_seconds=60)
                won.append(answer if answer["granted"] else None)
                together.wait(120)
                if answer["granted"]:
                    named = {"lease_id": answer["lease_id"], "fencing_token": answer["fencing_token"]}
                    session.call("lease_release", **named)
        finally:
            connections.close_all()
        return won

    with ThreadPoolExecutor(CONTENDERS) as threads:
        by_session = list(threads.map(contend, sessions))
    winners = [[grant for grant in granted if grant] for granted in zip(*by_session, strict=True)]
    assert [len(won) for won in winners] == [1] * many
    tokens = [won[0]["fencing_token"] for won in winners]
    assert tokens == sorted(set(tokens)), json.dumps(tokens)
