"""Logs and workloads: cleaned by recipes with an audit of each step, and described."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from tracebed.converters import description, schema
from tracebed.converters.cleaning import steps
from tracebed.converters.cleaning.audit import Cleaned, records_of
from tracebed.converters.description import partition_facts
from tracebed.converters.formats.reading import read_raw
from tracebed.converters.formats.reading import read_workload as read
from tracebed.converters.log import Log
from tracebed.converters.workload import System, Workload
from tracebed.ground.errors import tolerate
from tracebed.machine.machine import Machine


def cleaning_steps() -> dict[str, Callable[..., Any]]:
    """Return the cleaning steps by name: functions of the records and of their own keywords.

    Example:
        >>> "drop_short" in cleaning_steps()
        True
    """
    return dict(steps.STEPS)


def clean(files: Path | str | Sequence[Path | str], recipe: Path | str, **options: Any) -> Workload:
    """Make a clean workload of a raw log, by a recipe of named steps.

    Args:
        files: a file, a folder of files, or several of them, of one log.
        recipe: name of a recipe (`tracebed clean --list` lists them), or path of a recipe file.
        options: as for `clean_with_audit`.

    Raises:
        InputError: the log or the recipe cannot be read, or no job is left.

    Example:
        >>> from pathlib import Path
        >>> import tracebed.api as tb
        >>> _ = tb.write(tb.generate("cirne", jobs=30, nodes=16, seed=1), "raw.swf", replace=True)
        >>> _ = Path("recipe.yaml").write_text("steps: [{drop_short: {shorter: 60}}]")
        >>> bool(tb.clean("raw.swf", "recipe.yaml").table["run_time"].min() >= 60)
        True
    """
    return clean_with_audit(files, recipe, **options).workload


def clean_with_audit(
    files: Path | str | Sequence[Path | str],
    recipe: Path | str,
    *,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    without: Sequence[str] = (),
    only: Mapping[str, Sequence[str]] | None = None,
    system: System | None = None,
    explain: bool = False,
    **options: Any,
) -> Cleaned:
    """Clean a raw log as `clean` does, and return the audit, too.

    Args:
        files, recipe: as in `clean`.
        settings: step -> parameter -> value, in place of those of the recipe.
        without: steps of the recipe to leave out.
        only: `partition` or `queue` -> the names whose jobs are kept; by default those of the recipe.
        options: options of the reader.
        system: the machine, in place of that of the recipe.
        explain: list every touched record with the reason, in `touched`.

    Returns:
        `workload`; `audit`, an entry per step with jobs and node hours before and after; and `touched`, a frame with
        a row per touched record (record, job_id, submit_time in s, step, action, reason).

    Raises:
        InputError: as for `clean`.

    Example:
        >>> from pathlib import Path
        >>> import tracebed.api as tb
        >>> _ = tb.write(tb.generate("cirne", jobs=30, nodes=16, seed=1), "raw.swf", replace=True)
        >>> _ = Path("recipe.yaml").write_text("steps: [{drop_short: {shorter: 60}}]")
        >>> done = tb.clean_with_audit("raw.swf", "recipe.yaml", explain=True)
        >>> done.audit[0].dropped == len(done.touched)
        True
    """
    from tracebed.converters.cleaning.audit import clean as clean_log
    from tracebed.converters.cleaning.recipes import load_recipe  # imports pydantic, which is slow
    from tracebed.converters.pooling import check_machine, pooled

    chosen = load_recipe(str(recipe))
    for step in without:
        chosen = chosen.without(step)
    chosen = chosen.with_settings(settings or {})
    if only:
        chosen = chosen.only(only)
    paths = [Path(path) for path in ([files] if isinstance(files, str | Path) else files)]
    done = clean_log(  # without a name for the log, which would keep a large one in memory
        read_raw(paths, **(chosen.read | options)), chosen.steps, system=system or chosen.system, explain=explain
    )
    tolerate(pooled(done.workload), where=str(paths[0]))
    if system is not None:
        check_machine(done.workload, str(paths[0]))
    expected = chosen.expect.get("jobs")
    records = done.audit[0].jobs_before if done.audit else len(done.workload)
    if expected not in (None, len(done.workload)) and chosen.expect.get("records") == records:
        tolerate({f"{len(done.workload):,} jobs are left, where the recipe {chosen.name} expects {expected:,}": 1})
    return done


def audit(workload: Workload) -> pd.DataFrame:
    """Return how a workload was made: a row per step of its provenance, in order.

    Args:
        workload: the workload.

    Returns:
        columns `step`, `parameters` (as text), `seed`, `version` (of tracebed), and one for each count of any step
        (jobs before, dropped, ...), 0 where a step does not count it.

    Example:
        >>> import tracebed.api as tb
        >>> w = tb.scale(tb.generate("cirne", jobs=30, nodes=16), nodes=4)
        >>> list(tb.audit(w)["step"])
        ['cirne', 'scale']
    """
    rows = [
        {
            "step": step.name,
            "parameters": ", ".join(f"{name}={value}" for name, value in step.parameters.items()),
            "seed": step.seed,
            "version": step.version,
            **step.counts,
        }
        for step in workload.provenance.steps
    ]
    table = pd.DataFrame(rows)
    counts = [name for step in workload.provenance.steps for name in step.counts]
    return table.astype({"seed": "Int64"} if rows else {}).fillna(dict.fromkeys(counts, 0))


def describe(workload: Workload | Path | str, machine: Machine | None = None) -> dict[str, Any]:
    """Return the statistics of a workload: sizes, run times, load, occupation, arrivals and demand.

    Args:
        workload: a workload, or the path of one.
        machine: the machine (see `read_machine`), for the demand by partition and by class of nodes.

    Returns:
        plain values, as `tracebed describe --json` prints them; None for what the workload does not know. Times are in
        s, work in node, core and GPU hours, demands as shares of what the machine has. `unserved` are the reasons why
        jobs cannot run on the machine, with the number of jobs and the first job of each.

    Example:
        >>> import tracebed.api as tb
        >>> tb.describe(tb.generate("cirne", jobs=30, nodes=16))["jobs"]
        30
    """
    loaded = read(workload, equal_nodes=machine is None) if isinstance(workload, str | Path) else workload
    return _described(loaded, machine)


def describe_log(path: Path | str, system: System | Machine | None = None, **options: Any) -> dict[str, Any]:
    """Return the statistics of a file as `describe` does. Each record of a raw log counts as a job, before cleaning.

    Args:
        path: the file, or a folder of files of one log.
        system: the system; or the machine, which gives the sizes of the partitions and the classes of nodes. None:
            that of the file.
        options: `format`, the name of the format, and options of the reader.

    Raises:
        InputError: a file cannot be read.
    """
    found = read_raw([Path(path)], **options)
    return _described(records_of(found) if isinstance(found, Log) else found, system)


def _described(workload: Workload, system: System | Machine | None) -> dict[str, Any]:
    """Return the statistics of a workload, also by partition and by class of nodes, for a machine."""
    if isinstance(system, System):
        workload = workload.with_provenance(system=system)
    if not isinstance(system, Machine):
        facts = description.describe(workload)
        return facts | {"by_partition": partition_facts(workload), "node_classes": [], "unserved": []}
    from tracebed.machine.demand import capacities, class_demand

    classes, unserved = class_demand(workload, system)
    by_partition = partition_facts(workload, capacities(system))
    return description.describe(workload) | {
        **{"by_partition": by_partition, "node_classes": classes, "unserved": unserved},
    }


def workload_summary(workload: Workload) -> dict[str, Any]:
    """Return the main statistics of a workload.

    Args:
        workload: the workload.

    Returns:
        `jobs`, `malleable_jobs`, `nodes`, `cores_per_node`, `span_s` (first to last submission), `median_run_time_s`,
        `longest_run_time_s` and `offered_load`; None for what the workload does not know.

    Example:
        >>> import tracebed.api as tb
        >>> tb.workload_summary(tb.generate("cirne", jobs=30, nodes=16))["nodes"]
        16
    """
    system = workload.provenance.system
    run = description.quantiles(workload.floats("run_time"))
    return {
        "jobs": len(workload),
        "malleable_jobs": int((workload.column("kind") == "malleable").sum()),
        "nodes": system.nodes,
        "cores_per_node": system.cores_per_node,
        "span_s": workload.span,
        "median_run_time_s": run["median"],
        "longest_run_time_s": run["max"],
        "offered_load": workload.offered_load,
    }


def dictionary(workload: Workload) -> list[dict[str, Any]]:
    """Return the columns of workloads: `column`, `type`, `meaning`, `default`, and `known`, the number of jobs.

    Args:
        workload: the workload. Columns without a default are those of its table.

    Example:
        >>> import tracebed.api as tb
        >>> dictionary(tb.generate("cirne", jobs=30, nodes=16))[0]["column"]
        'job_id'
    """
    return schema.dictionary(workload.table)
