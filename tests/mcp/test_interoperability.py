"""The official client of both generations, over HTTP and through the bridge, against a real server."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leasehub.identity import services as identity
from tests.conftest import cast
from tests.servers import serving

ROOT = Path(__file__).resolve().parent.parent.parent
CONVERSATION = Path(__file__).with_name("conversation.py")
BRIDGE = ["-P", "-c", "import sys; from leasehub.cli import main; sys.exit(main())", "mcp-stdio"]
#: Where `make setup` puts the older generation, beside the newer one that the environment has.
OLDER = Path(sys.prefix) / "mcp-1"
GENERATIONS = {"2.x": "2026-07-28", "1.30": "2025-11-25"}

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]


@pytest.fixture(scope="session")
def older() -> Path:
    if not (OLDER / "mcp").is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(OLDER), "mcp==1.30.*"]
        installed = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert installed.returncode == 0, f"{' '.join(command)}: {installed.stderr[-1000:]}"
    return OLDER


@pytest.fixture
def port(db: None, tmp_path: Path) -> Iterator[int]:
    with serving(tmp_path / "log") as port:
        yield port


def converse(generation: str, where: dict[str, Any], older: Path) -> dict[str, Any]:
    path = str(older) if generation == "1.30" else ""
    ran = subprocess.run(
        [sys.executable, str(CONVERSATION), json.dumps(where)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    said: dict[str, Any] = json.loads(ran.stdout)
    return said


def test_both_generations_hold_the_same_conversation(port: int, older: Path, tmp_path: Path) -> None:
    agent = cast(identity.create_organization(name="acme"), "agent")
    url = f"http://127.0.0.1:{port}"
    over_stdio = {
        "command": sys.executable,
        "args": BRIDGE,
        "env": {"LEASEHUB_URL": url, "LEASEHUB_TOKEN": agent.secret, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
    }
    for generation, protocol in GENERATIONS.items():
        for where in ({"url": f"{url}/mcp", "token": agent.secret}, over_stdio):
            said = converse(generation, where, older)
            assert said["protocol"] == protocol
            assert {"lease_acquire", "task_claim", "pool_acquire", "handoff_offer"} <= set(said["tools"])
            assert "lease_force_release" not in said["tools"]
            held = said["granted"]
            assert (held["granted"], held["holder"] == "agent") == (True, "url" in where)
            assert said["whoami"]["holder"] == held["holder"]
            assert said["beaten"]["lease_id"] == held["lease_id"]
            assert (said["unknown"]["refused"], list(said["unknown"]["fields"])) == (True, ["force"])
            assert (said["taken"]["granted"], said["taken"]["holder"]) == (False, held["holder"])
            assert said["released"]["was_expired"] is False
            assert (said["lost"]["code"], said["lost"]["ended_by"]) == ("LEASE_LOST", "released")
