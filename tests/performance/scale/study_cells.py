"""Print the CPU time of a simulated cell of the study kassel-knl: `study_cells.py LOG OUTPUT`, LOG as for `--log`.

Every fourth of the 64 cells of one seed is simulated and measured in this process.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from tracebed.validation.experiments import runner as grid
from tracebed.validation.experiments.file import load_experiment
from tracebed.validation.experiments.workloads import make

log, output = map(Path, sys.argv[1:])
output.mkdir(exist_ok=True)
file = load_experiment("kassel-knl")
plan = grid.plan(file, file.selected({"seed": ["0"]}), output, {"knl": log})
for variant in plan.variants:
    make(variant)
cells = plan.todo[::4]
grid.simulate(cells[0])  # the imports
begun = time.process_time()
for cell in cells:
    grid.simulate(cell)
click.echo(f"{(time.process_time() - begun) / len(cells):.3f} s of CPU time a cell, mean of {len(cells)}")
