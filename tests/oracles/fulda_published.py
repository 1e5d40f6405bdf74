"""The published figures of 270 runs of a program whose nodes are off at night, from `tests/fulda_runs`.

Schäfer et al. (EESP at SC26, "Saving Energy Costs and Time on Supercomputers"); see the README of that folder.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

FILE = Path(__file__).parents[1] / "fulda_runs" / "run_metrics.csv"
KEY = ["cluster", "mal", "seed", "scheduler", "policy"]
MACHINES = {"cori_haswell": "cori-haswell-fulda", "cori_knl": "cori-knl-fulda", "theta": "theta-fulda"}
"""Value of `cluster` -> the shipped machine."""


def published() -> pd.DataFrame:
    """Return the figures of the runs, one row each, in the order of the file.

    The columns `KEY` name the run: `mal` is a whole number, the others are text. The other columns are numbers.
    """
    return pd.read_csv(FILE)
