"""What-if and forecast for Python: the effect of a change of a slurm.conf on a log, and the starts of waiting jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from tracebed.api.arguments import AnyCalibration, loaded_calibration
from tracebed.converters import workload as converters
from tracebed.converters.formats.reading import read_workload
from tracebed.converters.perturbation import Perturbation
from tracebed.ground import bounds
from tracebed.ground.errors import InputError
from tracebed.ground.progress import reporter
from tracebed.ground.registry import one_of
from tracebed.machine.calendar import Calendar
from tracebed.operators import forecasts
from tracebed.operators.forecasts import interval_of, times_of
from tracebed.operators.prospective_job import ID as NOT_SUBMITTED
from tracebed.operators.prospective_job import with_job
from tracebed.operators.whatif import log as logs
from tracebed.operators.whatif import study
from tracebed.operators.whatif.change import Change
from tracebed.operators.whatif.malleable import MEASURED, MEASURED_WORDS, Malleable, resize_costs
from tracebed.operators.whatif.refused import Remedy
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.simulation.outages import outages_of
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.slurm.changes import Addition
from tracebed.slurm.gres import gres_of
from tracebed.slurm.live_state import ask
from tracebed.slurm.simulation.forecast import Starts
from tracebed.slurm.simulation.forecast import forecast as simulate
from tracebed.slurm.state import ClusterState, read_folder, state_of, waits_for

if TYPE_CHECKING:
    from tracebed.operators.judgment import Judgment
    from tracebed.validation.pictures import Picture


class WhatIf(study.WhatIf):
    """A backtest, and the effect of a change or of malleable jobs: `sentences`, `classes`, `jobs`, `windows`, ..."""

    def save(self, folder: Path | str) -> Path:
        """Write the page (index.html), the document, the jobs and the pictures to a folder; return the page.

        Raises:
            InputError: the folder has other content, or cannot be written.
        """
        from tracebed.operators.whatif import page  # Matplotlib, for pages and pictures only

        return page.write(self, Path(folder))

    def pictures(self) -> dict[str, Picture]:
        """Return the pictures by name, for `tb.pictures`."""
        from tracebed.operators.whatif import pictures

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


MEMBERS = 16
OF_JOBS = {"job_id": "id", "user": "user", "account": "account", "partition": "partition", "nodes": "fewest"}
OF_JOBS |= {"cores": "cores", "limit_s": "limit_s", "priority": "priority"}
"""Column of a forecast -> the attribute of a job."""


class Forecast(forecasts.Forecast):
    """The forecast starts of the waiting jobs: `table`, `starts`, `sentence`, `reservations`, `only`, `to_csv`, ..."""

    def page(self, path: Path | str) -> Path:
        """Write a page (.html): how the queue drains, reservations, starts by partition, and the jobs; return its path.

        Raises:
            InputError: the name does not end in .html, or the file cannot be written or replaced.
        """
        from tracebed.operators import forecast_page
        from tracebed.validation.report.html import write_page

        return write_page(forecast_page.render(self), Path(path))

    def pictures(self) -> dict[str, Picture]:
        """Return the pictures by name, for `tb.pictures`."""
        from tracebed.operators import forecast_page

        return forecast_page.pictures(self)


def forecast(
    state: Path | str | None,
    log: converters.Workload | Path | str,
    *,
    repetitions: int = MEMBERS,
    seed: int = 0,
    arrivals: bool = True,
    would_start: str = "",
    on_progress: Callable[[int], None] | None = None,
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
        would_start: forecast only a job that is not submitted yet, such as `nodes=4,partition=gpu,time=12:00:00`. It is
            the last of the queue; with `user=NAME`, it has the priority of a new job of this user. Further keys:
            `cores` (on all nodes), `gres` and `memory` (on each node), `features`, `account`, `qos`.
        on_progress: called with the number of finished simulations.

    Raises:
        InputError: a file is missing or is not the output of its command, the log has no limits, or `would_start` is
            invalid.
        TestbedError: Slurm does not answer.

    Example:
        >>> tb.forecast("state", "january.parquet").table.columns[:2].tolist()  # doctest: +SKIP
        ['job_id', 'user']
    """
    if repetitions < 2:
        raise InputError(f"{repetitions} repetitions have no interval", hint="use 2 or more")
    folder = Path("slurm" if state is None else state)
    found = state_of(ask() if state is None else read_folder(folder), folder)
    found = with_job(found, would_start) if would_start else found
    done = reporter("simulating", repetitions, on_progress)
    made = _forecast(found, _workload(log), repetitions, seed, arrivals=arrivals, on_progress=done)
    return made.only({"job": [NOT_SUBMITTED]}) if would_start else made


def collect_state(folder: Path | str) -> Path:
    """Save the present state of the Slurm cluster, for `judge_forecasts`; return its folder, named by its instant.

    Args:
        folder: folder of the states; it is made if it does not exist.

    Raises:
        InputError: Slurm is not installed, a state of this second exists, or the folder cannot be written.
        TestbedError: Slurm does not answer.

    Example:
        >>> tb.collect_state("states")  # doctest: +SKIP
        PosixPath('states/2026-01-31T12-00-00')
    """
    from tracebed.operators import judgment

    return judgment.collect(Path(folder), ask())


def judge_forecasts(
    folder: Path | str,
    log: converters.Workload | Path | str,
    *,
    repetitions: int = MEMBERS,
    seed: int = 0,
    on_progress: Callable[[int], None] | None = None,
) -> Judgment:
    """Forecast each of the collected states, and compare the forecasts and Slurm's own estimates with what happened.

    A forecast learns only from jobs that had ended before its state. The starts are those of the log, and those of jobs
    that run in a later state. The last state has no forecast.

    Args:
        folder: folder of states (`collect_state`).
        log: the accounting of the cluster, with the names of users, from a month before the first state on until the
            last state or later.
        repetitions: number of simulations of a state.
        seed: seed of all draws.
        on_progress: called with the number of finished states.

    Raises:
        InputError: there are fewer than two states, a state is incomplete, the log has no date, or no job of the log
            had ended before a state.

    Example:
        >>> tb.judge_forecasts("states", "accounting").figures()[0]["inside"]  # doctest: +SKIP
        0.83
    """
    from tracebed.operators import judgment

    bounds.check("number of repetitions", repetitions, 2, 10_000)
    states, history = judgment.collected(Path(folder)), _workload(log)
    happened, ended = judgment.Happened(history, states), judgment.ends_of(history)
    done = reporter("forecasting the states", len(states) - 1, on_progress)
    tables, notes = [], dict[str, None]()
    for number, state in enumerate(states[:-1]):
        own = _forecast(state, judgment.before(history, ended, state.instant), repetitions, seed + number)
        real = [happened.after(state.instant, job) for job in own.table["job_id"]]
        tables.append(own.table.assign(instant=pd.Timestamp(own.instant), real=times_of(real)))
        notes.update(dict.fromkeys(own.notes))
        done(number + 1)
    return judgment.Judgment(pd.concat(tables, ignore_index=True), len(tables), tuple(notes))


def _forecast(state: ClusterState, log: converters.Workload, repetitions: int, seed: int, **options: Any) -> Forecast:
    starts = simulate(state, log, repetitions, seed, **options)
    table = _starts_table(starts)
    order = table.pop("order").to_numpy(dtype=int)
    ends = starts.starts[~np.isnan(starts.starts)]
    booked = _reservations(state, float(ends.max()) if ends.size else state.instant)
    return Forecast(_instant(state.instant), repetitions, table, starts.notes, starts.starts[order], booked)


def _reservations(state: ClusterState, last: float) -> pd.DataFrame:
    """Return the reservations that begin until an instant and have not ended."""
    rows = [
        {"name": each.name, "begin": _instant(begin), "end": _instant(end), "nodes": each.nodes}
        for each in state.reservations or ()
        for begin, end in each.until(int(last))
        if begin <= last and end > state.instant
    ]
    table = pd.DataFrame(rows, columns=["name", "begin", "end", "nodes"])
    return table.sort_values("begin", kind="stable", ignore_index=True)


def _starts_table(starts: Starts) -> pd.DataFrame:
    every = np.where(np.isnan(starts.starts), np.inf, starts.starts)  # a job that a simulation does not start is late
    low, middle, high = interval_of(every)
    jobs = starts.jobs
    table = pd.DataFrame(
        {
            **{column: [getattr(job, name) for job in jobs] for column, name in OF_JOBS.items()},
            "start": times_of(middle),
            "earliest": times_of(low),
            "latest": times_of(high),
            "slurm": times_of([job.estimate if job.estimate else np.nan for job in jobs]),
            "waits": waits_for(jobs),
            "reason": list(starts.reasons),
            "gpus": [gres_of(job.gres).get("gpu", 0) * job.fewest for job in jobs],
            "order": range(len(jobs)),
        }
    )
    return table.sort_values("start", kind="stable", ignore_index=True)


def _instant(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)
