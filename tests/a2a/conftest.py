"""What the tests of the A2A door share: a call, and what it is refused with."""

import json
import uuid
from dataclasses import dataclass
from typing import Any

import pytest
from django.test import Client

from tests.conftest import Caster


@dataclass
class Agent:
    """Somebody who speaks A2A with a key."""

    secret: str
    version: str = "1.0"

    def post(self, content: bytes, **headers: str) -> Any:
        sent = {"Authorization": f"Bearer {self.secret}", "A2A-Version": self.version, **headers}
        return Client(headers=sent).generic("POST", "/a2a", content, content_type="application/json")

    def answer(self, method: str, **params: Any) -> dict[str, Any]:
        body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
        response = self.post(json.dumps(body).encode())
        assert response.status_code == 200, response.content
        answered: dict[str, Any] = response.json()
        assert (answered["jsonrpc"], answered["id"]) == ("2.0", 7)
        assert ("result" in answered) != ("error" in answered)
        return answered

    def call(self, method: str, **params: Any) -> Any:
        answered = self.answer(method, **params)
        assert "result" in answered, answered
        return answered["result"]

    def refusal(self, method: str, **params: Any) -> tuple[int, str]:
        """The code, and the reason or what is wrong in the details."""
        error = self.answer(method, **params)["error"]
        assert isinstance(error["message"], str) and error["message"]
        told = ""
        for detail in error["data"]:
            assert detail["@type"].startswith("type.googleapis.com/google.rpc.")
            wrong = [violation["field"] for violation in detail.get("fieldViolations", [])]
            told = detail.get("reason") or " ".join(wrong)
        return error["code"], told

    def send(self, to: str = "teammate", text: str = "Go on.", **more: Any) -> dict[str, Any]:
        task: dict[str, Any] = self.call("SendMessage", **sending(to, text, **more))["task"]
        return task


def sending(to: str | None = "teammate", text: str = "Go on.", **more: Any) -> dict[str, Any]:
    """The parameters of SendMessage; ``more`` are members of the message."""
    message = {
        "messageId": f"m-{uuid.uuid4().hex}",
        "role": "ROLE_USER",
        "parts": [{"text": text}],
        "metadata": {} if to is None else {"to_principal": to},
        **more,
    }
    return {"message": message}


@pytest.fixture
def sender(agent: Caster) -> Agent:
    return Agent(agent.secret)


@pytest.fixture
def foreigner(stranger: Caster) -> Agent:
    return Agent(stranger.secret)
