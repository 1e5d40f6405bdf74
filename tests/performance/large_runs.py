"""Workloads of millions of jobs: for benchmarks of the memory of whole commands.

python -m tests.performance.large_runs easy 10000000 w.parquet    # a cleaned log of Eagle's kind at a load of 0.86
python -m tests.performance.large_runs pref 2000000 w.parquet     # malleable jobs on 1,000 nodes at a load of 0.85
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv

import tracebed.api as tb
from tests.recorders import growth
from tracebed.converters.workload import Provenance, System, Workload

DATA = Path(os.environ.get("TRACEBED_REFERENCE_DATA") or Path(__file__).parents[3] / "shared" / "data")
SAMPLE = DATA / "logs" / "eagle_sample_1000.csv"
STRETCHED = 3.3
"""Factor of the times between submissions. Rows drawn from the sample at Eagle's rate are a load of 2.8."""


def eagle_log(sample: Path, count: int, path: Path, stretched: float = 1.0) -> Path:
    """Write a log of `count` rows drawn from the sample, 11 million in four years at Eagle's rate, ids in pairs."""
    rows = pd.read_csv(sample, dtype=str)
    rng = np.random.default_rng(1)
    drawn = rng.integers(0, len(rows), count)
    span = int(stretched * 4 * 365 * 86_400 * count / 11_000_000)
    shift = np.sort(rng.integers(0, span, count)).astype("timedelta64[s]")
    columns: dict[str, Any] = {}
    for name in rows.columns:
        if name == "job_id":
            columns[name] = pa.array(1_000_000 + np.arange(count) // 2)
        elif name.endswith("_time") and name != "run_time":
            columns[name] = pa.array(pd.to_datetime(rows[name]).to_numpy("datetime64[s]")[drawn] + shift)
        else:
            texts = pa.array(rows[name].to_list(), pa.string())
            columns[name] = pa.DictionaryArray.from_arrays(pa.array(drawn), texts).cast(pa.string())
    with pa.output_stream(str(path), compression="detect") as file:
        pyarrow.csv.write_csv(pa.table(columns), file)
    return path


def make(policy: str, count: int, path: Path, sample: Path = SAMPLE) -> Path:
    """Write the workload of a policy, `easy` or `pref`."""
    if policy == "pref":
        made = growth.workload(count, 1_000)
        return tb.write(Workload(made.columns, Provenance(system=System(1_000, 1))), path) or path
    program = Path(sys.executable).with_name("tracebed")
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        log = eagle_log(sample, count, Path(folder) / "eagle.csv", STRETCHED)
        subprocess.run([program, "clean", log, "--recipe", "eagle", "-o", path], check=True, capture_output=True)
    return path


if __name__ == "__main__":
    make(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
