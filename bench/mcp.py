"""What a tool call costs beside the same call of the API: CPU time of the web process."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

from bench.figure import Goal, Plan, Row, milliseconds, ratio
from bench.ground import Ground


def _key_of_somebody_new(base: Ground) -> str:
    """Whom nothing waits for: the handoffs that other figures have sent would be told with every result."""
    from leasehub.identity import services

    principal = services.create_principal(organization=base.organization, handle="agent")
    _, secret = services.issue_key(principal=principal, rings=(1, 2))
    return secret


def figures(plan: Plan, base: Ground) -> Iterator[Row]:
    ran = subprocess.run(
        [sys.executable, "-m", "bench.mcp_calls", _key_of_somebody_new(base), str(plan.rounds), str(plan.tool_calls)],
        env={**os.environ, **base.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode != 0:
        raise RuntimeError(f"the calls failed: {ran.stdout[-1000:]} {ran.stderr[-2000:]}")
    for verb, seen in json.loads(ran.stdout).items():
        yield ratio(
            f"{verb} through MCP, CPU time against the API", seen, "MCP", "HTTP", Goal(1.5, at_least=False),
            shown=milliseconds,
        )  # fmt: skip
