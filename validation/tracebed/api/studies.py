"""Studies: grids of simulations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from tracebed.api.checks import check_size
from tracebed.errors import InputError
from tracebed.files import locked_folder


def repeat(
    campaign: Path | str, output: Path | str, *, on_progress: Callable[[float], None] | None = None
) -> pd.DataFrame:
    """Carry out a campaign: replay its cells several times each, in random order. Resumes where it was stopped.

    Args:
        campaign: the campaign file.
        output: folder of the campaign.
        on_progress: called from time to time with the number of repetitions done in this call.

    Returns:
        a row per repetition that has a run, in the order of execution: `cell`, `repetition`, `session`, `started`,
        `seconds` (wall), `state`, `health`, `causes`, `signals` (of the outcome), and metrics.

    Raises:
        InputError: the campaign is not valid, or `output` has another campaign.
        KeyboardInterrupt: a signal ended a repetition. The next call continues.

    Example:
        >>> from pathlib import Path
        >>> import tracebed.api as tb
        >>> w = tb.scale(tb.generate("cirne", jobs=5, nodes=16, seed=3), nodes=4)
        >>> _ = tb.write(w, "w.parquet")
        >>> text = "repetitions: 2\\nsettle_s: 0\\ncells:\\n  a: {workload: w.parquet, policy: easy, "
        >>> _ = Path("campaign.yaml").write_text(text + "inventory: emulated-4, speed: 1e6}")
        >>> list(tb.repeat("campaign.yaml", "campaign")["repetition"])
        [1, 2]
    """
    from tracebed.validation.experiments.real import runner, store
    from tracebed.validation.experiments.real.campaign import load_campaign
    from tracebed.validation.experiments.views.statistics import summarize

    loaded, folder = load_campaign(campaign), Path(output)
    with store.locked(folder):
        plan = runner.plan(loaded, folder)
        runner.repeat(loaded, plan, folder, lambda done, _: on_progress(done) if on_progress else None)
    return summarize(folder).runs


def sweep(
    study: Path | str,
    *,
    logs: Mapping[str, Path | str] | None = None,
    only: Mapping[str, Sequence[str]] | None = None,
    output: Path | str = "sweeps",
    workers: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """Compute a study: every point of its grid, simulated once. A stopped sweep resumes where it stopped.

    Args:
        study: name of a study that tracebed ships (`tracebed sweep --list`), or path of a study file.
        logs: workload of the study -> path of its log.
        only: key of a point -> the values to compute.
        output: folder of the results.
        workers: simulations at a time; by default one per core.
        on_progress: called with the number of computed cells, and of all that were to compute.

    Returns:
        a row per point: its keys (workload, policy, share, seed, ...) and the metrics of its run.

    Raises:
        InputError: the study is not valid, a log is missing, or no point could be computed.

    Example:
        >>> from pathlib import Path
        >>> import tracebed.api as tb
        >>> text = "workloads: {small: {model: cirne, options: {jobs: 20, nodes: 16}}}\\npolicies: [fcfs, easy]\\n"
        >>> _ = Path("study.yaml").write_text(text)
        >>> sorted(tb.sweep("study.yaml", workers=1)["policy"])
        ['easy', 'fcfs']
    """
    from tracebed.validation.experiments.file import load_study
    from tracebed.validation.experiments.simulated import grid as sweeping
    from tracebed.validation.experiments.simulated.pools import LocalPool

    if workers is not None:
        check_size("workers", workers)
    file, folder = load_study(str(study)), Path(output)
    points = file.selected({key: list(values) for key, values in (only or {}).items()})
    paths = {name: Path(path) for name, path in (logs or {}).items()}
    with locked_folder(folder, "sweep", mark="cells"), LocalPool(workers) as pool:
        plan = sweeping.plan(file, points, folder, paths)
        done = sweeping.sweep(file, plan, folder, pool, on_progress)
    for reason, failed in done.failed.items():
        if not len(done.table):
            raise InputError(f"no point could be computed: {reason}", where=str(study), hint=f"{len(failed):,} points")
    return done.table
