"""What a job demands of a Slurm cluster besides its size, as accounting shows it: generic resources, licences, arrays.

A trackable resource is text such as `billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,license/matlab=1,mem=16G,node=2`, which
counts all nodes of the job. The command line of a submission (`SubmitLine`) is evidence for the options that it has; an
option that it lacks may stand in the script.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from tracebed.converters.formats.tools.columns import relabel
from tracebed.converters.formats.tools.gres import gres_count
from tracebed.converters.workload import BoolArray, FloatArray

OPTIONS = {
    **dict.fromkeys(("-d", "--dependency"), "dependency"),
    **dict.fromkeys(("-a", "--array"), "array"),
    **dict.fromkeys(("-b", "--begin"), "begin"),
    **dict.fromkeys(("-L", "--licenses"), "licenses"),
    **dict.fromkeys(("-p", "--partition"), "partition"),
    "--ntasks-per-node": "per node",
    "--gres": "gres",
    "--gpus-per-node": "gpus",
    **dict.fromkeys(("--time-min", "--deadline"), "lapse"),
}
"""Option of sbatch -> what it sets."""
TELLING = re.compile(r"\s(?:-[dabLp]|--(?:dep|arr|beg|lic|part|ntasks-per-node|gres|gpus-per-node|time-min|dea))")
"""A line without a match has none of `OPTIONS`."""
FLAGS = frozenset(
    f"--{name}"
    for name in (
        *("contiguous", "exclusive", "get-user-env", "hold", "ignore-pbs", "kill-on-invalid-dep", "nice", "no-kill"),
        *("no-requeue", "overcommit", "oversubscribe", "parsable", "pty", "quiet", "reboot", "requeue", "spread-job"),
        *("test-only", "unbuffered", "use-min-nodes", "verbose", "wait", "label", "no-shell", "immediate", "propagate"),
    )
)
"""Options of sbatch, salloc and srun that take no further word."""
SHORT_FLAGS = frozenset("HhIkOQsvVWluXEZK")
ARRAY = re.compile(r"(\d+)_(?:\d+|\[[^\]%]*(?:%(\d+))?\])")
"""Number of an array job, and how many of its tasks may run at once: `12_3`, `12_[5-9%2]`."""
GRES = re.compile(r"(?:^|,)gres/([^=,:]+)(?::([^=,]+))?=([^,]+)")
LICENCES = re.compile(r"(?:^|,)license/([^=,]+)=(\d+)")


def options_of(line: str) -> dict[str, str]:
    """Return those of `OPTIONS` that a command line has before the script, without quotes as Slurm stores it."""
    if not TELLING.search(line):
        return {}
    options = dict[str, str]()
    words = iter(line.split()[1:])
    for word in words:
        if word == ":" or not word.startswith("-") or word == "-":
            break  # the script, or the next component of a heterogeneous job
        if word.startswith("--"):
            option, equals, value = word.partition("=")
            if not equals and option not in FLAGS:
                value = next(words, "")
        else:
            option, value = word[:2], word[2:].removeprefix("=")
            if word[1] in SHORT_FLAGS:
                continue
            value = value or next(words, "")
        if name := OPTIONS.get(option):
            options[name] = value.strip("'\"")
    return options


def evidence(lines: pd.Categorical) -> dict[str, pd.Categorical]:
    """Return what the command lines say, by the values of `OPTIONS`, each of shape (jobs,); empty if not said."""
    said = [options_of(str(line)) for line in lines.categories]
    return {
        name: relabel(lines.codes, [options.get(name, "") for options in said])
        for name in dict.fromkeys(OPTIONS.values())
    }


def arrays_of(job: pd.Series[str], said: pd.Categorical) -> Any:
    """Return the array of each job, such as `12` or `12%5`, empty if none, by its id and its option `--array`."""
    arrays, most = np.full(len(job), "", dtype=object), dict[str, str]()
    tasks = np.flatnonzero(job.str.contains("_", regex=False).to_numpy(dtype=bool)).tolist()
    ids, options = job.to_numpy(), np.asarray(said)
    for row in tasks:
        if match := ARRAY.match(ids[row]):
            arrays[row] = number = match[1]
            _, throttled, limit = str(options[row]).rpartition("%")
            if match[2] or (throttled and limit.isdecimal()):
                most[number] = match[2] or limit
    for row in tasks:
        if arrays[row] in most:
            arrays[row] += f"%{most[arrays[row]]}"
    return arrays


def earliest_starts(
    submit: FloatArray, eligible: FloatArray, array: Any, said: Mapping[str, pd.Categorical]
) -> tuple[FloatArray, BoolArray]:
    """Return the earliest start of each job, s, and the mask of the tasks of arrays with an unknown `%` limit.

    A job is eligible when it is not held, its `--begin` has come, its dependencies are satisfied, and its array may
    run one more task. Where the last two are known, the time of eligibility is a result, not a demand. Of an array it
    is a demand until its first task is eligible. Times are in s since 1970, shape (jobs,).
    """
    waits = (np.asarray(said["dependency"]) != "") & (np.asarray(said["begin"]) == "")
    result = np.where((eligible > submit) & ~waits, eligible, np.nan)
    task = array != ""
    if not task.any():
        return result, task
    rows = np.flatnonzero(task)
    times = pd.DataFrame({"array": array[rows], "submit": submit[rows], "eligible": eligible[rows]})
    first = times.groupby(["array", "submit"])["eligible"].transform("min").to_numpy()
    later = np.zeros(len(task), dtype=bool)
    later[rows] = times["eligible"].to_numpy() > first
    result[rows] = np.where(np.isnan(result[rows]) | ~(first > submit[rows]), np.nan, first)
    limited = np.array(["%" in name for name in array[rows].tolist()], dtype=bool)
    later[rows] &= ~limited
    return result, later


def partitions_of(ran: pd.Categorical, said: pd.Categorical) -> Any:
    """Return the partitions of each job, shape (jobs,): where it ran, and the others that the command line names."""
    partitions = np.asarray(ran, dtype=object).copy()
    several = np.array(["," in str(text) for text in said.categories], dtype=bool)[said.codes]
    for row in np.flatnonzero(several).tolist():
        names = str(said[row]).split(",")
        if partitions[row] in names:
            partitions[row] = ",".join(dict.fromkeys([partitions[row], *filter(None, names)]))
    return partitions


def licences_of(text: str) -> str:
    """Return the licences in trackable resources, as `--licenses` writes them; empty: none."""
    return ",".join(f"{name}:{count}" for name, count in LICENCES.findall(text))


def plain_gres(text: str) -> str:
    """Return the value of `--gres` or ReqGRES, such as `gres:gpu:2` or `PER_NODE:gpu:2`, as `gpu:2`."""
    return re.sub(r"(?i)(^|,)(?:per_node:|gres[:/])+", r"\1", text)


def gres_of(text: str) -> dict[str, int]:
    """Return the generic resources in trackable resources: name, with the type if it is known -> count on all nodes."""
    totals, typed = dict[str, int](), dict[str, dict[str, int]]()
    for name, kind, text_of_count in GRES.findall(text):
        count = gres_count(text_of_count) or 0
        if kind:
            typed.setdefault(name, {})[f"{name}:{kind}"] = count
        else:
            totals[name] = count
    gres = dict[str, int]()
    for name in dict.fromkeys([*totals, *typed]):
        kinds = typed.get(name, {})
        whole = sum(kinds.values())
        gres |= kinds if kinds and totals.get(name, whole) == whole else {name: totals.get(name, whole)}
    return {name: count for name, count in gres.items() if count}


def _as_requested(gres: dict[str, int], requested: str) -> dict[str, int]:
    """Return generic resources without types if the requested resources name them without types."""
    wanted, untyped = gres_of(requested), dict[str, int]()
    for name, count in gres.items():
        plain = name.partition(":")[0]
        own = plain if plain in wanted else name
        untyped[own] = untyped.get(own, 0) + count
    return untyped


def gres_per_node(
    resources: pd.Categorical, nodes: FloatArray, requested: pd.Categorical | None = None
) -> tuple[Any, BoolArray]:
    """Return the generic resources on each node, as `--gres` writes them, and the mask of the uneven ones, rounded up.

    `resources` belong to `nodes`, both of shape (jobs,). A type that a job got, but did not request, is left out.
    """
    held = [gres_of(str(text)) if "gres/" in str(text) else {} for text in resources.categories]
    texts, uneven = np.full(len(nodes), "", dtype=object), np.zeros(len(nodes), dtype=bool)
    counted = np.array([bool(gres) for gres in held] or [False])[resources.codes] & (nodes > 0)
    for row in np.flatnonzero(counted).tolist():
        gres, count = held[resources.codes[row]], int(nodes[row])
        if requested is not None and requested.codes[row] >= 0:
            gres = _as_requested(gres, str(requested.categories[requested.codes[row]]))
        texts[row] = ",".join(f"{name}:{-(-total // count)}" for name, total in gres.items())
        uneven[row] = any(total % count for total in gres.values())
    return texts, uneven


def first_text(*choices: Any) -> Any:
    """Return for each job the first text of `choices` that is not empty, shape (jobs,)."""
    result = np.asarray(choices[-1], dtype=object)
    for values in reversed(choices[:-1]):
        texts = np.asarray(values, dtype=object)
        result = np.where(texts != "", texts, result)
    return result


def by_label(labels: pd.Categorical, read: Callable[[str], str]) -> pd.Categorical:
    """Return labels with each distinct one replaced by `read` of it."""
    return relabel(labels.codes, [read(str(name)) for name in labels.categories])
