"""The workloads of an experiment: read, cleaned or generated once, checked, and kept in the output folder."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tracebed import converters
from tracebed.converters.formats.reading import read_workload
from tracebed.converters.formats.tools.files import paths_at
from tracebed.converters.formats.writing import write_workload
from tracebed.converters.malleability import Thresholds, to_malleable
from tracebed.converters.models.registry import draw
from tracebed.converters.perturbation import Perturbation, perturbed
from tracebed.converters.scaling import scale
from tracebed.converters.workload import Step, System, Workload
from tracebed.ground.errors import InputError, tolerate
from tracebed.ground.files import locked_folder, replacing, sha256_of
from tracebed.ground.version import version
from tracebed.orchestrator.scheduling.state import Policy, shares
from tracebed.validation.experiments.experiment import Experiment, Point
from tracebed.validation.experiments.experiment_schema import OF_WORKLOADS, JobsSpec, LogSpec, WorkloadSpec
from tracebed.validation.experiments.file import ExperimentFile


@dataclass(frozen=True)
class Prepared:
    """A workload in the output folder, ready for simulation."""

    path: Path
    sha256: str  # hash of the jobs
    jobs: int
    system: System


@dataclass(frozen=True)
class Variant:
    """A variant of a prepared workload, to be kept at `path`: with malleable jobs, small random changes, or both."""

    base: Path
    path: Path
    nodes: int | None  # number of nodes of the machine
    share: float
    seed: int
    thresholds: Thresholds
    perturbation_seed: int  # number of the random change; 0: none
    perturbation: Perturbation


def fingerprint(workload: Workload) -> str:
    """Return a hash of the sizes and times of the jobs, independent of names and file format."""
    # SHA-256 over nodes, submit times, run times and time limits as little-endian 64-bit integers (times in ms, -1 if
    # unknown), one column after the other, in submit order.
    digest = hashlib.sha256(workload.ints("nodes").astype("<i8").tobytes())
    for name in ("submit_time", "run_time", "time_limit"):
        times = workload.floats(name)
        digest.update(np.where(np.isnan(times), -1.0, np.rint(times * 1000)).astype("<i8").tobytes())
    return digest.hexdigest()


@cache
def code_of(path: Path) -> str:
    """Return a hash of the source code at a path. Under development, code changes without a new version."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.suffix in (".py", ".c"))
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(path.parent)}\n".encode() + file.read_bytes())
    return digest.hexdigest()


@cache
def version_of_tracebed() -> str:
    """Return the installed version, for the hashes of cells. Reading it for each of 100,000 cells takes minutes."""
    return version()


def _code_version() -> list[str]:
    """Return the version of tracebed and a hash of the code of the converters."""
    return [version_of_tracebed(), code_of(Path(converters.__file__).parent)]


class Bases:
    """The prepared workloads of an experiment, kept in `output`. Each is prepared once; models for each seed."""

    def __init__(self, file: ExperimentFile, logs: Mapping[str, Path], output: Path) -> None:
        self._file, self._logs, self._folder = file, logs, output / "workloads"
        self._prepared: dict[tuple[str, int], Prepared] = {}

    def of(self, point: Point) -> Prepared:
        """Return the prepared workload of a point. Raises InputError as `prepare`."""
        key = point.workload, point.seed if self._file.experiment.workloads[point.workload].model else 0
        if key not in self._prepared:
            self._prepared[key] = prepare(self._file, *key, self._logs, self._folder)
        return self._prepared[key]


def prepare(file: ExperimentFile, name: str, seed: int, logs: Mapping[str, Path], folder: Path) -> Prepared:
    """Return a workload of the experiment. The workload is created once and kept in `folder`."""
    spec = file.experiment.workloads[name]
    paths = _sources(file, name, spec, logs)
    state: Any = [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in paths]
    seed = seed if spec.model is not None and "seed" not in spec.options else 0
    key = json.dumps([name, spec.model_dump(), seed, state, _code_version()], sort_keys=True)
    target = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.parquet"
    try:
        if not is_kept(target):
            workload = _new_workload(file, name, spec, seed, paths)
            if not folder.parent.exists() or not any(folder.parent.iterdir()):  # not locked: before a dry run
                with locked_folder(folder.parent, "experiment"):
                    folder.mkdir()
            folder.mkdir(exist_ok=True)
            _write(workload, target)
        workload = read_workload(target)
        own = workload.provenance.system
        if spec.on is not None:
            own = System(len(spec.on.nodes), max(node.cores for node in spec.on.nodes), grid=spec.on.grid)
        grid = own.grid if spec.nodes in (None, own.nodes) else ""
        system = System(spec.nodes or own.nodes, spec.cores_per_node or own.cores_per_node, grid=grid)
    except InputError as error:
        if error.where is not None:
            raise
        where = file.source.error("", "workloads", name).where  # an invalid value in the experiment
        raise InputError(error.what, where=where, hint=error.hint) from error
    if system.nodes is None:
        raise file.source.error(f"the size of the system of {name!r} is unknown; add `nodes`", "workloads", name)
    return Prepared(target, workload.sha256, len(workload), system)


def variant_of(experiment: Experiment, point: Point, base: Prepared, policy: Policy) -> Variant | None:
    """Return the variant of the workload for a point, or None for the workload itself."""
    # A policy that neither resizes jobs nor shares nodes treats all jobs as rigid, so its cells use the workload
    # itself. If all or none of the jobs become malleable, the seed has no effect. Random changes apply to every policy.
    share, seed = 0.0, 0
    if point.share and (policy.malleable or shares(policy)):
        share, seed = point.share, point.seed if point.share < 1.0 else 0
    if not share and not point.perturbation:
        return None
    thresholds = experiment.malleable.thresholds if experiment.malleable else Thresholds()
    return variant(base, share, seed, thresholds, point.perturbation, experiment.perturbation.largest)


def variant(
    base: Prepared,
    share: float,
    seed: int,
    thresholds: Thresholds,
    perturbation_seed: int = 0,
    perturbation: Perturbation | None = None,
) -> Variant:
    """Return the variant of a prepared workload; `make` writes it."""
    perturbation = perturbation or Perturbation()
    changes = [perturbation_seed, vars(perturbation)] if perturbation_seed else []
    key = json.dumps([base.sha256, base.system.nodes, share, seed, vars(thresholds), *changes, _code_version()])
    name = f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.parquet"
    path = base.path.with_name(name)
    return Variant(base.path, path, base.system.nodes, share, seed, thresholds, perturbation_seed, perturbation)


def make(variant: Variant) -> Path:
    """Create the workload of a variant, and return its path."""
    base = read_workload(variant.base)
    made = base
    if variant.share:
        made = to_malleable(base, variant.share, variant.seed, nodes=variant.nodes, thresholds=variant.thresholds)
    if variant.perturbation_seed:
        made = perturbed(made, variant.perturbation_seed, variant.perturbation)
    _write(made, variant.path)
    return variant.path


def is_kept(path: Path) -> bool:
    """Return whether `path` has a workload with a valid checksum. Warn about a damaged workload."""
    if not path.exists() or not _checksum_path(path).exists():
        return False
    if _checksum_path(path).read_bytes() == _checksum_line(path):
        return True
    tolerate({"damaged: does not match its checksum; the workload is created again": 1}, where=str(path))
    return False


def _write(workload: Workload, path: Path) -> None:
    """Write a workload, then its checksum, which marks the workload as complete."""
    _checksum_path(path).unlink(missing_ok=True)
    write_workload(workload, path, replace=True)
    with replacing(_checksum_path(path)) as stream:
        stream.write(_checksum_line(path))


def _checksum_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _checksum_line(path: Path) -> bytes:
    """Return the line that `sha256sum` prints for a file."""
    return f"{sha256_of(path)}  {path.name}\n".encode()


def _sources(file: ExperimentFile, name: str, spec: WorkloadSpec, logs: Mapping[str, Path]) -> list[Path]:
    """Return the source files of a workload; an empty list for a model."""
    if spec.file is not None:
        path = file.folder / spec.file
        if not path.exists():
            raise file.source.error(f"file {path} does not exist", "workloads", name, "file")
        return paths_at(path)
    if spec.log is None:
        return []
    path = logs[name] if name in logs else file.folder / spec.log.path if spec.log.path else Path()
    if path == Path():
        where = f"; download the log from {spec.log.source}" if spec.log.source else ""
        option = "--log PATH" if len(_logs(file)) == 1 else f"--log {name}=PATH"
        raise InputError(
            f"workload {name!r} requires a public log, which is not shipped with tracebed{where}",
            where=file.source.where,
            hint=f"give the path of the log with {option}",
        )
    if not path.exists():
        raise InputError("the log does not exist", where=str(path), hint="check the path")
    return paths_at(path)


def _logs(file: ExperimentFile) -> list[str]:
    return [name for name, spec in file.experiment.workloads.items() if spec.log is not None]


def logs_of(file: ExperimentFile, texts: tuple[str, ...]) -> dict[str, Path]:
    """Return the paths given by `--log PATH` or `--log NAME=PATH`, by name of the workload.

    Raises:
        InputError: the experiment has no log of this name, or has several logs and the name is missing; or there is no
            such path.
    """
    return named_logs(file.name, _logs(file), texts)


def named_logs(experiment: str, wanted: Sequence[str], texts: Sequence[str]) -> dict[str, Path]:
    """Return the paths of `wanted` logs of an experiment as `logs_of`, and raise InputError likewise."""
    paths: dict[str, Path] = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals and len(wanted) == 1:
            name, path = wanted[0], text
        if name not in wanted:
            have = ", ".join(f"{name}=PATH" for name in wanted)
            hint = f"use --log {have}" if wanted else "omit --log"
            raise InputError(f"--log {text!r} matches no log of the experiment {experiment}", hint=hint)
        if not Path(path).exists():
            raise InputError(f"the log of --log {text} does not exist", where=path, hint="give the path of the log")
        paths[name] = Path(path)
    return paths


def _new_workload(file: ExperimentFile, name: str, spec: WorkloadSpec, seed: int, paths: list[Path]) -> Workload:
    if spec.model is not None:
        workload = _generated(file, name, spec, seed)
    elif spec.log is not None:
        workload = _cleaned(spec.log, paths)
    else:
        workload = read_workload(Path(os.path.commonpath(paths)))
    if spec.scale is not None:
        workload = scale(workload, **spec.scale.model_dump())
    return workload if spec.limits is None else _limited(workload, spec.limits)


def _limited(workload: Workload, limits: float | str) -> Workload:
    """Return the workload with exact limits, or with limits times a factor."""
    exact = limits == "exact"
    changed = workload.floats("run_time") if exact else workload.floats("time_limit") * float(limits)
    step = Step("limits", {"limits": limits}, {"jobs": len(workload)})
    return workload.with_step(step, workload.table.assign(time_limit=changed))


def _generated(file: ExperimentFile, name: str, spec: WorkloadSpec, seed: int) -> Workload:
    from tracebed.converters.models.registry import MODELS

    assert spec.model is not None
    taken = inspect.signature(MODELS.load(spec.model)).parameters
    for option in spec.options:
        if option not in taken:
            has = ", ".join(taken)
            raise file.source.error(
                f"model {spec.model} has no option {option!r}; use {has}", "workloads", name, "options", option
            )
    try:
        return draw(spec.model, **({"seed": seed} | spec.options))
    except (TypeError, ValueError) as error:
        raise file.source.error(f"model {spec.model}: {error}", "workloads", name, "options") from error


def _cleaned(log: LogSpec, paths: list[Path]) -> Workload:
    """Return the cleaned log. Raises InputError if its jobs are not those of the experiment."""
    from tracebed.converters.cleaning.audit import clean
    from tracebed.converters.cleaning.recipes import load_recipe
    from tracebed.converters.formats.reading import read_raw

    where = os.path.commonpath(paths)  # the file, or the folder of the files
    if log.recipe is None:
        workload = read_workload(where, **log.options)
    else:
        recipe = load_recipe(log.recipe).with_settings(log.settings)
        raw = read_raw(paths, **(recipe.read | log.options))
        workload = clean(raw, recipe.steps, system=recipe.system).workload
    another = "download the log of the experiment, or copy the experiment (--show) and adapt `jobs` and `fingerprint`"
    if log.jobs and len(workload) not in log.jobs:
        numbers = " or ".join(f"{jobs:,}" for jobs in log.jobs)
        raise InputError(f"the cleaned log has {len(workload):,} jobs, not {numbers}", where=where, hint=another)
    if log.fingerprint not in (None, found := fingerprint(workload)):
        what = f"the jobs differ from those of the experiment: the fingerprint is {found}, not {log.fingerprint}"
        raise InputError(what, where=where, hint=another)
    return workload


OF_SELECTION = ("drop_copies",)  # steps of cleaning named `drop_` that choose records, and lose no run time


def needs_characteristics(experiment: Experiment) -> bool:
    """Return whether a claim of an experiment is about its workloads."""
    names = {*OF_WORKLOADS, *experiment.shares_of_jobs}
    return any(claim.figure in names for claim in experiment.published)


def with_characteristics(experiment: Experiment, table: pd.DataFrame, workloads: Mapping[str, Path]) -> pd.DataFrame:
    """Return the table, a row per point and window, with the figures of the workload of each `cell`."""
    paths = [workloads[cell] for cell in table["cell"]]
    figures = {path: of_workload(read_workload(path), experiment.shares_of_jobs) for path in dict.fromkeys(paths)}
    return table.join(pd.DataFrame([figures[path] for path in paths], index=table.index))


def of_workload(workload: Workload, shares: Mapping[str, JobsSpec]) -> dict[str, float]:
    """Return the figures of a workload, NaN if one is undefined: `OF_WORKLOADS`, and the shares of its jobs by name."""
    submit = workload.floats("submit_time")
    hours = float(np.ptp(submit)) / 3600.0 if len(workload) else 0.0
    cleaning = [step for step in workload.provenance.steps if step.name.startswith("clean ")]
    records = float(cleaning[0].counts["jobs before"]) if cleaning else float(len(workload))
    kept = 1.0
    for step in cleaning:
        name = step.name.removeprefix("clean ")
        if name.startswith("drop_") and name not in OF_SELECTION:
            kept *= step.parameters["node_hours_after"] / step.parameters["node_hours_before"]
    return {
        "workload_jobs": float(len(workload)),
        "workload_jobs_per_hour": len(workload) / hours if hours else np.nan,
        "workload_records": records,
        "workload_removed": records - len(workload),
        "workload_run_time_lost": 1.0 - kept,
        **{name: share(workload, spec) for name, spec in shares.items()},
    }


def share(workload: Workload, spec: JobsSpec) -> float:
    """Return the share of the jobs within the bounds of `spec`, NaN without jobs."""
    inside = np.ones(len(workload), bool)
    for name, (low, high) in spec.bounds.items():
        values = workload.floats(name)
        inside &= (values >= low) & (values <= high)
    return float(inside.mean()) if len(workload) else np.nan
