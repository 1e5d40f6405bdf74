"""What-if and forecast for Python: the effect of a change of a slurm.conf on a log, and the starts of waiting jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tracebed.api.arguments import AnyCalibration, loaded_calibration
from tracebed.converters import workload as converters
from tracebed.converters.formats.reading import read_workload
from tracebed.converters.perturbation import Perturbation
from tracebed.ground import bounds
from tracebed.ground.errors import InputError
from tracebed.ground.outputs import FORECAST
from tracebed.ground.progress import reporter
from tracebed.ground.registry import one_of
from tracebed.machine.calendar import Calendar
from tracebed.operators.whatif import log as logs
from tracebed.operators.whatif import page, pictures, study
from tracebed.operators.whatif.change import Change
from tracebed.operators.whatif.malleable import MEASURED, MEASURED_WORDS, Malleable, resize_costs
from tracebed.operators.whatif.refused import Remedy
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.simulation.outages import outages_of
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.slurm.changes import Addition
from tracebed.slurm.live_state import ask
from tracebed.slurm.simulation.forecast import Starts
from tracebed.slurm.simulation.forecast import forecast as simulate
from tracebed.slurm.state import read_folder, state_of, waits_for
from tracebed.validation.pictures import Picture


class WhatIf(study.WhatIf):
    """A backtest, and the effect of a change or of malleable jobs: `sentences`, `classes`, `jobs`, `windows`, ..."""

    def save(self, folder: Path | str) -> Path:
        """Write the page (index.html), the document, the jobs and the pictures to a folder; return the page.

        Raises:
            InputError: the folder has other content, or cannot be written.
        """
        return page.write(self, Path(folder))

    def pictures(self) -> dict[str, Picture]:
        """Return the pictures by name, for `tb.pictures`."""
        return {name: picture for name, (_, picture) in pictures.pictures(self).items()}


def with_starts(log: converters.Workload | Path | str, real: Run | Path | str) -> converters.Workload:
    """Return jobs with the starts and ends of a real run of them, for `whatif`.

    Args:
        log: the jobs, or their file.
        real: the run, or its folder.

    Raises:
        InputError: a job is not in the run.

    Example:
        >>> import tracebed.api as tb
        >>> jobs = tb.generate("lublin99", jobs=20, seed=1, nodes=16)
        >>> log = tb.with_starts(jobs, tb.simulate(jobs, "easy"))
        >>> bool((log.table["logged_start"] >= log.table["submit_time"]).all())
        True
    """
    workload = log if isinstance(log, converters.Workload) else read_workload(log, equal_nodes=False)
    return logs.with_starts(workload, real if isinstance(real, Run) else Run.load(real))


def whatif(
    log: converters.Workload | Path | str,
    conf: Path | str | Sequence[Path | str],
    *,
    settings: Sequence[str] = (),
    add_nodes: Mapping[str, int | tuple[int, str]] | None = None,
    replacement: Path | str | None = None,
    over_limit: str = "leave-out",
    outages: Calendar | Path | str | Mapping[str, Any] | None = None,
    members: int = 16,
    perturbation: Mapping[str, float] | None = None,
    name: str = "",
    workers: int | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> WhatIf:
    """Predict a log under its slurm.conf, and under a changed one, as two ensembles.

    The first ensemble is the backtest: it is compared with the starts of the log. Members with the same number are
    pairs, with the same draws and the same perturbed input; their differences are the effect.

    Args:
        log: the log of a real cluster, or its file, in any format with logged starts; or jobs `with_starts`.
        conf: the slurm.conf of the cluster; or this file and the output of `sacctmgr dump CLUSTER`, of `sacctmgr -P
            show qos` and of `scontrol show reservation`, as far as known. They name accounts and users, so that the log
            must have its names (`keep_names`).
        settings: changes: `bf_max_job_test=1000`, `PriorityWeightAge=5000`, `Partition.gpu.MaxTime=1-00:00`,
            `Node.n[1-4].Weight=5`, `QOS.normal.MaxJobsPU=4`, `Account.phys.GrpTRES=cpu=64`.
        add_nodes: partition -> number of additional nodes, which are like most nodes of the partition; or this number
            and the name of a node that they are like.
        replacement: another slurm.conf in place of `conf`; the other changes change this one.
        over_limit: what is done with jobs whose time limit exceeds that of the changed cluster: `leave-out`, `cut` (to
            the new limit) or `split` (into a chain of jobs within it).
        outages: outages of the nodes of the cluster in the time of the log: a calendar, its file, or a model, as for
            `simulate`. The backtest and the effect have them, and the backtest is repeated without them.
        members: members of each ensemble.
        perturbation: largest changes of the input of all members but the first: `submit_s` (10), by which submissions
            move, and `limit_s` (0), to multiples of a time up to which time limits are rounded up, s.
        name: name of the log in messages; by default that of its file.
        workers: number of processes; by default that of the available cores.
        on_progress: called with the number of finished members.

    Returns:
        The result; `notes` and `not_modeled` are its assumptions. Without a change, it is the backtest alone.

    Raises:
        InputError: the log has no starts, the slurm.conf does not describe its cluster, a change is invalid, or the
            change changes nothing.

    Example:
        >>> import tracebed.api as tb
        >>> jobs = tb.generate("lublin99", jobs=200, seed=1, nodes=16)
        >>> _ = Path("slurm.conf").write_text("NodeName=n[1-16] CPUs=1\\nPartitionName=batch Nodes=ALL Default=YES\\n")
        >>> real = tb.simulate(jobs, "easy").jobs.set_index("job_id").loc[jobs.table["job_id"]]
        >>> times = {f"logged_{end}": real[end].to_numpy() for end in ("start", "end")}
        >>> log = tb.Workload(jobs.table.assign(**times), jobs.provenance)
        >>> found = tb.whatif(log, "slurm.conf", add_nodes={"batch": 8}, members=6)
        >>> found.classes[0].effect.change < 0
        True
    """
    workload = _workload(log)
    return _answer(
        workload,
        conf,
        _change(over_limit, settings, add_nodes, replacement),
        _name(log, name),
        members,
        perturbation,
        outages=outages_of(outages, workload),
        workers=workers,
        on_progress=on_progress,
    )


def whatif_each(
    log: converters.Workload | Path | str,
    conf: Path | str | Sequence[Path | str],
    changes: Sequence[Mapping[str, Any]],
    *,
    over_limit: str = "leave-out",
    outages: Calendar | Path | str | Mapping[str, Any] | None = None,
    members: int = 16,
    perturbation: Mapping[str, float] | None = None,
    name: str = "",
    workers: int | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> WhatIf:
    """Predict a log under its slurm.conf, and under several changed ones, each alone.

    The changes share the backtest and its members, so that k changes need k + 1 ensembles.

    Args:
        log: the log, as for `whatif`.
        conf: the slurm.conf of the cluster, and further files, as for `whatif`.
        changes: for each change its arguments of `whatif`: `settings`, `add_nodes`, `replacement`.
        over_limit, outages, members, perturbation, name, workers, on_progress: as for `whatif`.

    Returns:
        The backtest. Its attribute `alternatives` has an answer for each change, `of_changes` the table.

    Raises:
        InputError: as for `whatif`, or there is no change.

    Example:
        >>> import tracebed.api as tb
        >>> jobs = tb.generate("lublin99", jobs=100, seed=1, nodes=16)
        >>> _ = Path("slurm.conf").write_text("NodeName=n[1-16] CPUs=1\\nPartitionName=batch Nodes=ALL Default=YES\\n")
        >>> log = tb.with_starts(jobs, tb.simulate(jobs, "easy"))
        >>> found = tb.whatif_each(log, "slurm.conf", [{"add_nodes": {"batch": more}} for more in (4, 8)], members=2)
        >>> len(found.alternatives)
        2
    """
    if not changes:
        raise InputError("there is no change to answer", hint="give a setting or more nodes")
    workload = _workload(log)
    return _answer(
        workload,
        conf,
        [_change(over_limit, **change) for change in changes],
        _name(log, name),
        members,
        perturbation,
        outages=outages_of(outages, workload),
        workers=workers,
        on_progress=on_progress,
    )


def _change(
    over_limit: str,
    settings: Sequence[str] = (),
    add_nodes: Mapping[str, int | tuple[int, str]] | None = None,
    replacement: Path | str | None = None,
) -> Change:
    """Return a change of the arguments of `whatif`."""
    one_of("over_limit", over_limit, [*Remedy])
    return Change(
        tuple(settings),
        tuple(
            (partition, Addition(*((nodes,) if isinstance(nodes, int) else nodes)))
            for partition, nodes in (add_nodes or {}).items()
        ),
        None if replacement is None else Path(replacement),
        Remedy(over_limit),
    )


def whatif_malleable(
    log: converters.Workload | Path | str,
    conf: Path | str | Sequence[Path | str],
    malleable: str,
    *,
    calibration: AnyCalibration | None = None,
    members: int = 16,
    perturbation: Mapping[str, float] | None = None,
    name: str = "",
    workers: int | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> WhatIf:
    """Predict what malleable jobs would do to a log: some of its jobs, resized by a layer beside Slurm.

    The first ensemble is the backtest. The others have malleable jobs, which each seed draws, with each of two speedup
    models, at the costs of resizes and without costs. The first member of a seed has its number; fewer than six seeds
    have several members each. Members with the same number are pairs.

    Args:
        log: the log of a real cluster, or its file, in any format with logged starts; or jobs `with_starts`.
        conf: the slurm.conf of the cluster, and further files, as for `whatif`.
        malleable: the share of the jobs, and the policy of the layer, such as
            `share=0.3,policy=dmr,seed=1..6,interval=10,where=nodes>=4 and partition=batch`. Several shares or policies
            (`share=0..1/0.25`, `policy=dmr+pref`) are a sweep, always at the costs of resizes.
        calibration: a calibration, or its file, with the costs of resizes; by default, they are those measured on Slurm
            22.05.8.
        members: members of the backtest.
        perturbation: largest changes of the input of all members but the first, as for `whatif`.
        name: name of the log in messages; by default that of its file.
        workers: number of processes; by default that of the available cores.
        on_progress: called with the number of finished members.

    Returns:
        The result; its attribute `malleable` has a cell for each share and policy.

    Raises:
        InputError: the log has no starts, the slurm.conf does not describe its cluster, `malleable` is invalid, or no
            job can be malleable.

    Example:
        >>> import tracebed.api as tb
        >>> jobs = tb.generate("lublin99", jobs=100, seed=1, nodes=16)
        >>> lines = ["NodeName=n[1-16] CPUs=1", "PartitionName=batch Nodes=ALL Default=YES OverSubscribe=EXCLUSIVE"]
        >>> _ = Path("slurm.conf").write_text("\\n".join(lines))
        >>> log = tb.with_starts(jobs, tb.simulate(jobs, "easy"))
        >>> found = tb.whatif_malleable(log, "slurm.conf", "share=0.3,policy=dmr", members=6)
        >>> found.malleable.cells[0].policy
        'dmr'
    """
    asked, costs = Malleable.parse(malleable), _costs(calibration)
    how: dict[str, Any] = {"malleable": asked, "costs": costs, "workers": workers, "on_progress": on_progress}
    return _answer(_workload(log), conf, Change(), _name(log, name), members, perturbation, **how)


def _workload(log: converters.Workload | Path | str) -> converters.Workload:
    return log if isinstance(log, converters.Workload) else read_workload(log, equal_nodes=False)


def _name(log: converters.Workload | Path | str, name: str) -> str:
    return name or ("log" if isinstance(log, converters.Workload) else Path(log).name)


def _answer(
    workload: converters.Workload,
    conf: Path | str | Sequence[Path | str],
    change: Change | list[Change],
    name: str,
    members: int,
    perturbation: Mapping[str, float] | None,
    *,
    on_progress: Callable[[int], None] | None,
    **how: Any,
) -> WhatIf:
    """Return the answer of `study.whatif`, or about several changes that of `study.whatif_each`."""
    bounds.check("number of members", members, 2, 10_000)
    several = isinstance(change, list)
    how |= {"changes" if several else "change": change}
    found = (study.whatif_each if several else study.whatif)(
        workload,
        [Path(path) for path in ([conf] if isinstance(conf, str | Path) else conf)],
        name=name,
        members=members,
        perturbation=_perturbation(perturbation or {}),
        on_progress=reporter(f"predicting {name}", None, on_progress),
        **how,
    )
    return WhatIf(**vars(found))


def _costs(calibration: AnyCalibration | None) -> tuple[Overheads, str]:
    """Return the costs of resizes, s, and their origin in words."""
    if calibration is None:
        return MEASURED, MEASURED_WORDS
    made = loaded_calibration(calibration)
    assert made is not None
    return resize_costs(made.constants), f"of the calibration {made.name}"


def _perturbation(given: Mapping[str, float]) -> Perturbation:
    """Return the largest changes of the input of members. Raises InputError if a name is unknown."""
    usual = {"submit_s": 10.0, "limit_s": 0.0}
    for name in given:
        one_of("perturbation", name, [*usual])
    return Perturbation(**{**usual, **given})


INTERVAL = (0.05, 0.95)
"""Quantiles of the ensemble between which 80 % of the starts lie. Members differ less than the future of a cluster: on
recorded runs of Slurm, 82 % of the starts are where 90 % of further members would be (`docs/how-to/forecast.md`)."""
MEMBERS = 16
OF_JOBS = {"job_id": "id", "user": "user", "account": "account", "partition": "partition", "nodes": "fewest"}
OF_JOBS |= {"cores": "cores", "limit_s": "limit_s", "priority": "priority"}
"""Column of a forecast -> the attribute of a job."""


@dataclass(frozen=True)
class Forecast:
    """The forecast starts of the waiting jobs.

    Attributes:
        instant: the instant of the state, on the clock of the cluster.
        members: number of simulations.
        table: a row for each waiting job, the earliest start first: `job_id`, `user`, `account`, `partition`, `nodes`
            (smallest number), `cores`, `limit_s`, `priority`; `start` (median), `earliest` and `latest` (80 %
            interval) and `slurm` (Slurm's own estimate), times on the clock of the cluster; `waits`, why the job waits
            in the words of squeue, and for what; and `reason`, why there is no forecast.
        notes: what the state has that is not modeled, and what the log lacks, one sentence each.
    """

    instant: datetime
    members: int
    table: pd.DataFrame
    notes: tuple[str, ...]

    def to_csv(self, path: Path | str, *, replace: bool = False) -> None:
        """Write the table to a file.

        Raises:
            InputError: `path` exists and may not be replaced, or it cannot be written.
        """
        with FORECAST.file(Path(path), replace=replace) as file:
            self.table.to_csv(file, index=False, date_format="%Y-%m-%dT%H:%M:%S", lineterminator="\n")

    def to_json(self) -> dict[str, Any]:
        """Return plain values: times as text, missing ones as None."""
        table = self.table.copy()
        for name in ("start", "earliest", "latest", "slurm"):
            table[name] = table[name].dt.strftime("%Y-%m-%dT%H:%M:%S")
        rows = table.astype(object).where(table.notna(), None).to_dict("records")
        facts = {"instant": self.instant.isoformat(), "members": self.members, "interval": 0.8}
        return {**facts, "notes": self.notes, "jobs": rows}


def forecast(
    state: Path | str | None,
    log: converters.Workload | Path | str,
    *,
    repetitions: int = MEMBERS,
    seed: int = 0,
    arrivals: bool = True,
) -> Forecast:
    """Forecast when the waiting jobs of a Slurm cluster start.

    Each member of an ensemble simulates the cluster from its present state. Run times (as shares of time limits) and
    the jobs that will be submitted are drawn from the log.

    Args:
        state: folder with the output of Slurm's commands (config.txt, partition.txt, node.txt, job.txt, and if possible
            sprio.txt and sshare.txt); None: the commands are run now.
        log: the accounting of the cluster, with the names of users: a workload, or the path of one.
        repetitions: number of simulations.
        seed: seed of all draws.
        arrivals: whether jobs are submitted later, as in a window of the log.

    Raises:
        InputError: a file is missing or is not the output of its command, or the log has no limits.
        TestbedError: Slurm does not answer.

    Example:
        >>> tb.forecast("state", "january.parquet").table.columns[:2].tolist()  # doctest: +SKIP
        ['job_id', 'user']
    """
    if repetitions < 2:
        raise InputError(f"{repetitions} repetitions have no interval", hint="use 2 or more")
    folder = Path("slurm" if state is None else state)
    found = state_of(ask() if state is None else read_folder(folder), folder)
    history = read_workload(log, equal_nodes=False) if isinstance(log, str | Path) else log
    starts = simulate(found, history, repetitions, seed, arrivals=arrivals)
    return Forecast(_instant(found.instant), repetitions, _starts_table(starts), starts.notes)


def _starts_table(starts: Starts) -> pd.DataFrame:
    every = np.where(np.isnan(starts.starts), np.inf, starts.starts)  # a job that a simulation does not start is late
    with np.errstate(invalid="ignore"):  # by "weibull", a further member lies inside as often, however few there are
        low, middle, high = np.quantile(every, (INTERVAL[0], 0.5, INTERVAL[1]), axis=1, method="weibull")
    jobs = starts.jobs
    table = pd.DataFrame(
        {
            **{column: [getattr(job, name) for job in jobs] for column, name in OF_JOBS.items()},
            "start": _times(middle),
            "earliest": _times(low),
            "latest": _times(high),
            "slurm": _times([job.estimate if job.estimate else np.nan for job in jobs]),
            "waits": waits_for(jobs),
            "reason": list(starts.reasons),
        }
    )
    return table.sort_values("start", kind="stable", ignore_index=True)


def _times(seconds: Any) -> pd.Series[Any]:
    instants = np.asarray(seconds, dtype=np.float64)
    return pd.Series(pd.to_datetime(np.round(np.where(np.isfinite(instants), instants, np.nan)), unit="s"))


def _instant(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)
