"""``python -m bench``: measures, prints the table, writes bench/results.md."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import psycopg

from bench import (
    client,
    command_line,
    events,
    full_database,
    ground,
    handoffs,
    hot_path,
    machine,
    mcp,
    memory,
    pgbench,
    pools,
    queues,
    reaper,
)
from bench.figure import QUICK, Figure, LeftOut, Plan, Row

PARTS = {
    "hot-path": hot_path.figures,
    "full-database": full_database.figures,
    "reaper": reaper.figures,
    "queues": queues.figures,
    "handoffs": handoffs.figures,
    "pools": pools.figures,
    "mcp": mcp.figures,
    "events": events.figures,
    "command-line": command_line.figures,
    "client": client.figures,
    "memory": memory.figures,
}
RESULTS = Path(__file__).resolve().parent / "results.md"
COLUMNS = ("figure", "value", "rounds", "goal", "", "LeaseHub", "beside")


def main() -> int:
    options = _options()
    try:
        pgbench.program()
        psycopg.connect(ground.POSTGRESQL, connect_timeout=3).close()
    except (pgbench.NotInstalled, psycopg.Error) as error:
        print(f"The bench needs PostgreSQL at LEASEHUB_BENCH_POSTGRESQL ({ground.POSTGRESQL}): {error}")
        return 2
    plan = QUICK if options.quick else Plan()
    load_before = os.getloadavg()[0]
    rows: list[Row] = []
    with ground.prepared() as base:
        for part in options.only or PARTS:
            for row in PARTS[part](plan, base):
                print(_line(row), flush=True)
                rows.append(row)
        facts = machine.description(base, load_before=load_before)
    options.output.write_text(_document(rows, facts, quick=options.quick))
    missed = [row.what for row in rows if isinstance(row, Figure) and row.verdict == "MISSED"]
    print(f"\n{len(rows)} figures, {len(missed)} missed their goal; written to {options.output}")
    # Tiny numbers say nothing about speed.
    return 1 if missed and not options.quick else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run: one round, tiny numbers, no verdict")
    parser.add_argument("--only", action="append", choices=PARTS, help="this part alone; may be given again")
    parser.add_argument("--output", type=Path, default=RESULTS, help="the file to write (default: %(default)s)")
    return parser.parse_args()


def _line(row: Row) -> str:
    if isinstance(row, LeftOut):
        return f"!! LEFT OUT: {row.what}: {row.reason}"
    goal = f"  goal {row.goal}: {row.verdict}" if row.goal else ""
    sides = "; ".join(filter(None, (row.ours, row.beside)))
    return f"{row.value:9.2f}{row.unit:4} {row.what}{goal}  [{sides}]"


def _cells(row: Row) -> Sequence[str]:
    if isinstance(row, LeftOut):
        return (row.what, "**LEFT OUT**", "", "", "", row.reason, "")
    low, high = min(row.values), max(row.values)
    spread = f"{low:.2f} to {high:.2f}" if len(row.values) > 1 else ""
    return (row.what, f"**{row.value:.2f}{row.unit}**", spread, str(row.goal or ""), row.verdict, row.ours, row.beside)


def _document(rows: list[Row], facts: list[str], *, quick: bool) -> str:
    heading = ["# Speed", ""]
    if quick:
        heading += ["A smoke run with tiny numbers: it says that the bench works, and nothing about speed.", ""]
    heading += [
        "Written by `make bench`. Each value is the median over rounds in which both sides took turns on the same",
        "PostgreSQL; the two last columns are the medians of either side, to be compared within a row alone.",
        "",
        *(f"- {fact}" for fact in facts),
        "",
    ]
    table = [COLUMNS, ["---"] * len(COLUMNS), *(_cells(row) for row in rows)]
    return "\n".join([*heading, *(f"| {' | '.join(cells)} |" for cells in table), ""])


if __name__ == "__main__":
    sys.exit(main())
