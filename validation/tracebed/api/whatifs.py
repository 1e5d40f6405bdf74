"""What if: the effect of a change of a slurm.conf on a log, beside the error of the model on this log."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tracebed.api.progress import reporter
from tracebed.converters import workload as converters
from tracebed.converters.formats.reading import read_workload
from tracebed.converters.perturbation import Perturbation
from tracebed.ground import bounds
from tracebed.ground.registry import one_of
from tracebed.operators.whatif import log as logs
from tracebed.operators.whatif import page, study
from tracebed.operators.whatif.change import Change
from tracebed.operators.whatif.refused import Remedy
from tracebed.orchestrator.run import Run
from tracebed.slurm.changes import Addition

__all__ = ["WhatIf", "whatif", "with_starts"]


class WhatIf(study.WhatIf):
    """A backtest and the effect of a change: `sentences`, `classes`, `jobs`, `windows`, `courses`."""

    def save(self, folder: Path | str) -> Path:
        """Write the page (index.html), the document, the jobs and the pictures to a folder; return the page.

        Raises:
            InputError: the folder has other content, or cannot be written.
        """
        return page.write(self, Path(folder))


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
    members: int = 16,
    submit_s: float = 10.0,
    limit_s: float = 0.0,
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
            `Node.n[1-4].Weight=5`.
        add_nodes: partition -> number of additional nodes, which are like most nodes of the partition; or this number
            and the name of a node that they are like.
        replacement: another slurm.conf in place of `conf`; the other changes change this one.
        over_limit: what is done with jobs whose time limit exceeds that of the changed cluster: `leave-out`, `cut` (to
            the new limit) or `split` (into a chain of jobs within it).
        members: members of each ensemble.
        submit_s: the submissions of each member but the first move by at most this time, s.
        limit_s: time limits are rounded up to multiples of a time drawn up to this one, s.
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
    bounds.check("number of members", members, 2, 10_000)
    one_of("over_limit", over_limit, [*Remedy])
    workload = log if isinstance(log, converters.Workload) else read_workload(log, equal_nodes=False)
    own = name or ("log" if isinstance(log, converters.Workload) else Path(log).name)
    found = study.whatif(
        workload,
        [Path(each) for each in ([conf] if isinstance(conf, str | Path) else conf)],
        Change(
            tuple(settings),
            tuple(
                (partition, Addition(*((nodes,) if isinstance(nodes, int) else nodes)))
                for partition, nodes in (add_nodes or {}).items()
            ),
            None if replacement is None else Path(replacement),
        ),
        name=own,
        remedy=Remedy(over_limit),
        members=members,
        perturbation=Perturbation(submit_s, limit_s),
        workers=workers,
        on_progress=reporter(f"predicting {own}", None, on_progress),
    )
    return WhatIf(**vars(found))
