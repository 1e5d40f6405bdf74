"""Whether a change of the structure moved anything: digests of runs, schemas, pages and commands, before and after.

python -m tests.goldens write before.json     # in the checkout before the change
python -m tests.goldens check before.json     # in the one after it: lists what differs, exit status 1

A digest is one of values, not of files: tables are written as CSV with all digits of a float, so another version of
Parquet or another order of metadata moves nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import click
import pandas as pd

import tracebed.api as tb
from tests.oracles import engines, evolving_cases, slurm_cases
from tests.oracles.evolving import ReferenceSimulation
from tests.oracles.slurm_simulation.simulator import Simulation
from tracebed.cli import tracebed
from tracebed.orchestrator.run import TABLES
from tracebed.orchestrator.simulation.prediction import predict

ROOT = Path(__file__).resolve().parents[1]
CASES = 150
"""Drawn cases of each simulator."""
FILES = ("docs/board.json", "docs/explanation/papers/ledgers/*.json", "validation/tracebed/validation/schemas/*.json")
MODELS = ("cirne", "lublin99", "feitelson96", "deadline-heavy")


def digest(text: str) -> str:
    """Return the first digits of the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def table_text(table: pd.DataFrame) -> str:
    """Return a table as CSV with all digits."""
    return table.to_csv(index=False, float_format="%r")


def goldens() -> Iterator[tuple[str, str]]:
    """Yield the name and the digest of each golden."""
    for engine in ("compiled", "python"):
        for seed in range(CASES):
            run = predict(**engines.case(seed), engine=engine)
            yield f"run {seed}, {engine}", digest("".join(table_text(getattr(run, name)) for name in TABLES))
    for seed in range(CASES):
        inputs, policy = slurm_cases.drawn(seed)
        outcome = Simulation(inputs, policy).run() if inputs.requests else None
        named = ((field.name, getattr(outcome, field.name)) for field in fields(outcome)) if outcome else ()
        values = [value for name, value in named if name not in ("resizes", "switched")]  # no layer, and no node is off
        yield f"Slurm {seed}", digest(repr([[*each] for each in values]))
    for seed in range(CASES // 5):
        simulation = ReferenceSimulation(*evolving_cases.case(seed))
        yield f"evolving {seed}", digest(repr(evolving_cases.fields_of(simulation.run())))
    for model in MODELS:
        workload = tb.generate(model, jobs=200, seed=1)
        yield f"model {model}", digest(table_text(workload.table))
    for pattern in FILES:
        for path in sorted(ROOT.glob(pattern)):
            yield str(path.relative_to(ROOT)), digest(path.read_text(encoding="utf-8"))
    for name, command in commands("tracebed", tracebed, click.Context(tracebed, info_name="tracebed")):
        yield name, digest(command)
    yield "tracebed.api", digest(" ".join(sorted(tb.__all__)))


def commands(name: str, command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    """Yield the help of a command and of the commands below."""
    yield name, command.get_help(context)
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            below = command.get_command(context, each)
            assert below is not None
            yield from commands(f"{name} {each}", below, click.Context(below, parent=context, info_name=each))


def main() -> int:
    """Write the goldens, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("write", "check"))
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    now = dict(goldens())
    if options.action == "write":
        options.file.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
        print(f"{len(now):,} goldens written")  # noqa: T201
        return 0
    before = json.loads(options.file.read_text(encoding="utf-8"))
    moved = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    print(f"{len(now):,} goldens, {len(moved)} moved" + "".join(f"\n  {name}" for name in moved))  # noqa: T201
    return bool(moved)


if __name__ == "__main__":
    sys.exit(main())
