"""Recorded runs: folders of runs, or outputs of other systems, whose paths match a pattern."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast, get_args

from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.orchestrator.run import Run
from tracebed.validation.experiments.experiment_schema import ReadSpec
from tracebed.validation.simulators.reading import import_run
from tracebed.validation.simulators.simulator import MatchName, ReadOptions, Side

HINT = "the pattern is relative to the experiment file; {workload} and {policy} are the names in the experiment"


def paths_at(pattern: str, names: Mapping[str, str], folder: Path, *, of_runs: bool) -> list[Path]:
    """Return the paths that match a pattern with {workload} and {policy}, in the order of their names."""
    # `of_runs`: files beside the folders of runs, such as the logs of a campaign, are left out.
    filled = pattern.format_map({key: glob.escape(name) for key, name in names.items()})
    found = sorted(glob.glob(filled, root_dir=folder, recursive=True))  # noqa: PTH207 - the pattern may be absolute
    if not found:
        raise InputError("no path matches", where=str(folder / filled), hint=HINT)
    paths = [folder / path for path in found]
    return [path for path in paths if path.is_dir()] or paths if of_runs else paths


def path_at(pattern: str, names: Mapping[str, str], folder: Path, what: str, hint: str) -> Path:
    """Return the only path that matches a pattern. Raises InputError for several, with `what` they do and a hint."""
    paths = paths_at(pattern, names, folder, of_runs=False)
    if len(paths) > 1:
        raise InputError(f"{len(paths)} files {what}: {paths[0].name}, {paths[1].name}", hint=hint)
    return paths[0]


def workloads_at(runs: str, pattern: str, policies: Sequence[str], folder: Path) -> list[str]:
    """Return the sorted names of the workloads, matching `pattern`, that have recorded runs at `runs`."""
    names: set[str] = set()
    for policy in policies:
        parts = runs.replace("{policy}", glob.escape(policy)).split("{workload}")
        first, *others = (re.sub(r"^\(\?s:|\)\\[zZ]$", "", fnmatch.translate(part)) for part in parts)
        same = "(?P=name)".join(others)
        paths = glob.glob("*".join(parts), root_dir=folder, recursive=True)  # noqa: PTH207 - may be absolute
        matches = (re.fullmatch(f"{first}(?P<name>[^/]+){same}", path) for path in paths)
        names |= {match["name"] for match in matches if match}
    return sorted(name for name in names if fnmatch.fnmatchcase(name, pattern))


def read_run(
    path: Path,
    spec: ReadSpec,
    side: Side,
    *,
    workload: Workload | Run | None,
    policy: str,
    title: str,
    names: Mapping[str, str],
    folder: Path,
    nodes: int | None = None,
    cores_per_node: int | None = None,
) -> Run:
    """Read a run: a folder of tracebed, or with `from` the output of another system or simulator.

    `names` are the values of placeholders, and `folder` is that of the experiment file, for the files of `match`. The
    policy and the nodes are for outputs that lack them.
    """
    if spec.importer is None:
        return Run.load(path)
    mapping = None
    if spec.mapping is not None and workload is not None:
        own = {**names, "folder": os.path.relpath(path.parent, folder), "stem": path.stem}
        hint = "let the pattern `match` match one file of each run"
        try:
            mapping = path_at(spec.mapping, own, folder, f"match the jobs of {path.name}", hint)
        except InputError as error:
            if error.hint != HINT:
                raise
            hint = f"`match` is {', '.join(get_args(MatchName))}, or a pattern with {{folder}} and {{stem}} of each run"
            raise InputError(f"{error.what}, for the jobs of {path}", where=error.where, hint=hint) from error
    options = ReadOptions(
        side=side,
        columns=spec.columns,
        unit=spec.unit,
        time_zone=spec.time_zone,
        speed=spec.speed,
        match="auto" if spec.mapping or workload is None else cast(MatchName, spec.match),
        mapping=mapping,
        nodes=nodes,
        cores_per_node=cores_per_node,
        policy=policy,
        name=title,
    )
    return import_run(path, options, workload, spec.importer)
