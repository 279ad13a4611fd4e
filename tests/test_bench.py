"""The bench runs: with tiny numbers, so that it says nothing about speed and cannot rot."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.both_databases import POSTGRESQL, unreachable

ROOT = Path(__file__).resolve().parent.parent
FIGURES = (
    "acquire, 8 clients, against the bare function",
    "heartbeat, 8 clients, against a conventional view",
    "refusals of one held resource",
    "99th percentile of acquire",
    "heartbeats that are HOT updates",
    "acquire over HTTP, 2,000 events and 500 leases on file against none",
    "the reaper, 500 expired among 1,000 live",
    "hot claim, 8 clients, against the bare function",
    "a claim after 1,500 claims, an old snapshot held, against one after 1,000",
    "p95 of a slot granted at once",
    "status of a pool",
    "draining a queue over 50 slots",
    "acquire through MCP, CPU time against the API",
    "a page of 50 events at the tail of 5,000 against one of 1,000",
    "an event reaches a stream, SQLite, the median",
    "while 20 streams follow each, against none",
    "events numbered a second",
    "leasehub lease heartbeat, the whole process",
    "memory of leasehub up at rest",
)


@pytest.mark.processes
@pytest.mark.skipif(unreachable() is not None, reason="the bench is on PostgreSQL")
def test_the_bench_measures_every_figure(tmp_path: Path) -> None:
    results = tmp_path / "results.md"
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--quick", "--output", str(results)],
        cwd=ROOT,
        env={**os.environ, "LEASEHUB_BENCH_POSTGRESQL": POSTGRESQL},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode == 2:
        pytest.skip(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    document = results.read_text()
    assert [figure for figure in FIGURES if figure not in document] == []
