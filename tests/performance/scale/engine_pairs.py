"""CPU time of both engines for each option that the engine covers, in pairs; prints the median ratio.

tracebed clean LOG --recipe ricc-sept -o ricc.parquet
python tests/performance/scale/engine_pairs.py ricc.parquet --pairs 3
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from tracebed.converters.formats.reading import read_workload
from tracebed.converters.malleability import to_malleable
from tracebed.converters.workload import Workload
from tracebed.machine.nodes import nodes_of
from tracebed.orchestrator.simulation.prediction import predict

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "dmr": ("dmr", {}),
    "pref, promise=direct": ("pref", {"policy_parameters": {"promise": "direct"}}),
    "pref, promise=steal": ("pref", {"policy_parameters": {"promise": "steal"}}),
    "easy, largest-slowdown-first": ("easy", {"priority": "largest-slowdown-first"}),
    "easy, shortest-first": ("easy", {"priority": "shortest-first"}),
    "easy, aging": ("easy", {"priority": "aging"}),
}
"""Name -> policy and options of `predict`."""


def cpu_s(workload: Workload, policy: str, options: dict[str, Any], engine: str) -> float:
    """Return the CPU time of a prediction, s."""
    begin = time.process_time()
    predict(workload, nodes_of(workload.provenance.system), policy, **options, engine=engine)
    return time.process_time() - begin


def main() -> int:
    """Print one line a case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", type=Path)
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    workload = to_malleable(read_workload(options.workload), 1.0, 0)
    for name, (policy, chosen) in CASES.items():
        pairs = [
            [cpu_s(workload, policy, chosen, engine) for engine in ("compiled", "python")] for _ in range(options.pairs)
        ]
        compiled, python = (median(times) for times in zip(*pairs, strict=True))
        ratio = median(slow / fast for fast, slow in pairs)
        sys.stdout.write(f"{name}: compiled {compiled:.2f} s, Python {python:.2f} s, ratio {ratio:.1f}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
