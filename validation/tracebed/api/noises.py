"""The noise of repeated real runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tracebed.api.results import AnyRun
from tracebed.orchestrator import run as orchestrator
from tracebed.validation.experiments.store import run_folders
from tracebed.validation.metrics import TAU
from tracebed.validation.verdict.noise import CellNoise, NoiseFloor, noise_floor, repeats_for
from tracebed.validation.verdict.rejudging import NO_JOURNAL
from tracebed.validation.verdict.tolerances import Tolerances

__all__ = ["NO_JOURNAL", "CellNoise", "NoiseFloor", "Tolerances", "noise", "repeats_for"]


def noise(runs: AnyRun | Mapping[str, AnyRun] | Sequence[AnyRun], *, tau: float = TAU) -> NoiseFloor:
    """Return the variation of the metrics over repetitions of real runs.

    Args:
        runs: the repetitions of one or several workloads and policies on one testbed; each a run, its folder, or a
            folder of repetitions or of an experiment.
        tau: threshold of the bounded slowdown, s.

    Returns:
        The noise floor: `cells` (mean, standard deviation and coefficient of variation of each metric in each cell),
        `left_out` (unhealthy and repeated runs), and `profile`, which `NoiseProfile.save` writes to a file; None for
        too few repetitions.

    Raises:
        InputError: a run cannot be read or is a prediction, the testbeds differ, or no run is usable.

    Example:
        >>> import tracebed.api as tb
        >>> w = tb.scale(tb.generate("cirne", jobs=5, nodes=16, seed=3), nodes=4)
        >>> runs = [tb.replay(w, "easy", "emulated-4", speed=1e6) for _ in range(2)]
        >>> {item.repetitions for item in tb.noise(runs).cells}
        {2}
    """
    if isinstance(runs, orchestrator.Run | Path | str):
        runs = [runs]
    if not isinstance(runs, Mapping):
        runs = {str(run) if isinstance(run, Path | str) else f"run {n}": run for n, run in enumerate(runs, 1)}
    found: dict[str, orchestrator.Run] = {}
    for name, run in runs.items():
        if isinstance(run, orchestrator.Run):
            found[name] = run
            continue
        for folder in run_folders(Path(run), campaign=True):
            found[name if folder == Path(run) else str(folder)] = orchestrator.Run.load(folder)
    return noise_floor(found, tau)
