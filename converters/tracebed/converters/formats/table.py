"""A table of jobs (CSV, Parquet, JSON) whose columns a recipe names: `--columns NAME|FILE`.

A recipe is a YAML file:

    about: what the table is, and its source
    system: name of the machine
    time_zone: Asia/Shanghai     # clock of times without a zone
    columns:                     # our name: name in the table, several names, a number, or a name and a unit
      job_id: job_id
      nodes: node_num
      gpus: gpu_num              # on all nodes
      memory_mib: {column: mem_per_pod_GB, unit: 1024}
    states: {Pass: completed}    # beside the states of Slurm
    header: [job_name, ...]      # columns of a CSV file without a header
    rows: attempts               # JSON: list in each job of which each item is a run
    dated: false                 # the instant of time 0 is unknown

A shipped recipe is a file in `recipes/columns`. In JSON, a column of an object in an object is `outer.inner`, and a
list counts: its column is the number of its items, and that of lists in its items the number of theirs.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tracebed.converters.formats.format import Format, Marks
from tracebed.converters.formats.tools.amounts import first_positive
from tracebed.converters.formats.tools.columns import (
    ASSUMED_UTC,
    WHICH_HOUR,
    Columns,
    column_spec,
    in_order,
    read_columns,
    relabel,
)
from tracebed.converters.formats.tools.files import Input, delimiter_of
from tracebed.converters.formats.tools.gres import UNEVEN, gpus_on_nodes
from tracebed.converters.formats.tools.json_jobs import json_of
from tracebed.converters.formats.tools.states import SLURM, RecordState, statuses
from tracebed.converters.log import Log, make_log
from tracebed.converters.workload import BoolArray, System
from tracebed.ground.errors import InputError

if TYPE_CHECKING:
    from tracebed.converters.formats.tools.column_recipes import ColumnsRecipe

TAKEN = ("user", "group", "queue", "partition", "features", "dependency")
"""Columns that a workload has as they are."""
SHARED_GPUS = "jobs on a part of a GPU, which count as jobs of whole GPUs"
NUMBER, LAST = "number", "last"
"""Columns of the runs in a list `rows`: the number of the run in its job, from 1; whether it is the last one."""


class _Headless(Input):
    """A CSV file with its header added in front. The numbers of its lines are those of the file."""

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yield (line number, line)."""
        return ((number - 1, line) for number, line in super().lines())


def read_log(
    files: Sequence[Input],
    *,
    columns: str = "",
    keep_extra: bool = False,
    keep_names: bool = False,
    time_zone: str | None = None,
) -> Log:
    """Read the files by the recipe `columns`. GPUs become generic resources of each node.

    Of a job with several runs (`rows`), each later run is submitted at the end of the one before, and all but the last
    are `requeued`.

    Raises:
        InputError: the recipe is missing or invalid, a column is missing, or a value is invalid.
    """
    from tracebed.converters.formats.tools.column_recipes import load_columns, names  # imports pydantic, which is slow

    if not columns:
        raise InputError("no recipe of the columns", hint=f"convert --columns {', '.join(names())}, or a YAML file")
    recipe = load_columns(columns)
    zone = time_zone or recipe.time_zone or "UTC"
    wanted = recipe.specs()
    if recipe.rows:
        wanted |= {name: column_spec("number", f"{recipe.rows}.{name}", needed=True) for name in (NUMBER, LAST)}
    c = read_columns([_table_of(file, recipe) for file in files], wanted, extras=keep_extra)
    made, defects = _columns(c, recipe, zone)
    if not (time_zone or recipe.time_zone):
        defects[ASSUMED_UTC] = c.local("submit_time")
    log = make_log(
        files,
        "table",
        {**made, **c.extras},
        system=System(name=recipe.system),
        time_zone=zone,
        parameters={"columns": columns, "time_zone": zone, "keep_extra": keep_extra, "keep_names": keep_names},
        defects=defects,
        place=c.place,
        names=("user", "group"),
        unread=c.unread,
    )
    return log if recipe.dated else replace(log, provenance=replace(log.provenance, unix_start=None))


def _columns(c: Columns, recipe: ColumnsRecipe, zone: str) -> tuple[dict[str, Any], dict[str, BoolArray | int]]:
    """Return the columns of a workload, and assumption -> rows, each of shape (rows,)."""
    number = partial(recipe.numbers, c)
    nodes = number("nodes")
    with np.errstate(divide="ignore", invalid="ignore"):
        cores = first_positive(number("cores_per_node"), number("cores") / nodes)
        memory = first_positive(number("memory_mib"), number("memory_of_job_mib") / nodes)
    gpus = first_positive(number("gpus_per_node") * nodes, number("gpus"))
    whole = np.where(number("gpus_per_node") > 0, np.ceil(number("gpus_per_node")) * nodes, np.ceil(gpus))
    gres, uneven = gpus_on_nodes(whole, nodes)
    run = number("run_time")
    times, which_hour = in_order(c, ("submit_time", "logged_start", "logged_end"), zone, run)
    times["earliest_start"] = c.instants("earliest_start", zone)
    submit, status = times["submit_time"], statuses(c.labels("status"), SLURM | _upper(recipe.states))
    if recipe.rows:
        later, earlier_end = c.numbers(NUMBER) > 1, np.concatenate([[np.nan], times["logged_end"][:-1]])
        submit = np.where(later, np.where(np.isnan(earlier_end), times["logged_start"], earlier_end), submit)
        requeued = np.where(c.numbers(LAST) == 0, len(status.categories), status.codes)
        status = relabel(requeued, [*status.categories, RecordState.REQUEUED])
    job = c["job_id"].array if "task" not in c else (c["job_id"] + "." + c["task"]).array
    extras = {name: number(name) for name in recipe.columns if name.startswith("extra_")}
    part = (gpus != whole) & (gpus > 0)
    if "extra_gpu_share" in extras:
        part |= (extras["extra_gpu_share"] < 1.0) & (gpus > 0)
    return {
        "job_id": job,
        **times,
        "submit_time": submit,
        **({"run_time": run} if "run_time" in recipe.columns else {}),
        "time_limit": number("time_limit"),
        "nodes": nodes,
        "cores_per_node": np.nan_to_num(np.ceil(cores), nan=1.0),
        "memory_mib": memory,
        **{name: c.labels(name) for name in TAKEN},
        "gres": _typed(gres, c.labels("gpu_type")),
        "status": status,
        "extra_gpus": gpus,
        **extras,
    }, {UNEVEN: uneven, SHARED_GPUS: part, WHICH_HOUR: which_hour}


def _upper(states: Mapping[str, str]) -> dict[str, str]:
    return {theirs.upper(): ours for theirs, ours in states.items()}


def _typed(gres: Any, kinds: Any) -> Any:
    """Return GPUs with their type, where it is known: `gpu:2` of V100 is `gpu:v100:2`."""
    if not len(kinds.categories) or list(kinds.categories) == [""]:
        return gres
    counted, kind = np.asarray(gres, dtype=object), np.asarray(kinds, dtype=object)
    pairs = zip(counted, kind, strict=True)
    return [text.replace("gpu:", f"gpu:{name.lower()}:") if text and name else text for text, name in pairs]


def _table_of(file: Input, recipe: ColumnsRecipe) -> Input:
    """Return a file as a table with a header: JSON as rows, and a CSV file without a header with that of the recipe."""
    if file.head.lstrip()[:1] in (b"[", b"{"):
        return _rows_of(file, recipe.rows)
    if recipe.header and not {name.lower() for name in recipe.header} & {*file.columns}:
        header = delimiter_of(file.header).join(recipe.header).encode()
        return _Headless(file.path, file.source, file.key, header + b"\n" + file.text)
    return file


def _rows_of(file: Input, rows: str) -> Input:
    """Return the objects of a JSON file as a table: a row for each, or for each item of its list `rows`."""
    document = json_of(file)
    jobs = document if isinstance(document, list) else [document]
    made: list[dict[str, Any]] = []
    for number, job in enumerate(jobs, 1):
        if not isinstance(job, dict):
            raise InputError(f"item {number} of the list is not an object", where=file.where, hint="check the file")
        runs = job.get(rows) if rows else None
        if not isinstance(runs, list) or not all(isinstance(run, dict) for run in runs) or not runs:
            made.append(_flat(job) | ({f"{rows}.{NUMBER}": 1, f"{rows}.{LAST}": 1} if rows else {}))
            continue
        own = _flat({name: value for name, value in job.items() if name != rows})
        for at, run in enumerate(runs, 1):
            order = {f"{rows}.{NUMBER}": at, f"{rows}.{LAST}": int(at == len(runs))}
            made.append({**own, **_flat(run, f"{rows}."), **order})
    if not made:
        raise InputError("contains no jobs", where=file.where, hint="check that the file is complete")
    columns = dict.fromkeys(name for row in made for name in row)
    buffer = io.BytesIO()
    pq.write_table(pa.table({name: _array([row.get(name) for row in made]) for name in columns}), buffer)
    return Input(file.path, file.source, file.key, buffer.getvalue())


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return an object as a row: objects in it become `outer.inner`, lists their lengths."""
    row: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            row |= _flat(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            row[prefix + name] = len(value)
            for item in value:
                for inner, count in _flat(item, f"{prefix}{name}.").items() if isinstance(item, dict) else ():
                    if isinstance(item.get(inner.rpartition(".")[2]), list):
                        row[inner] = row.get(inner, 0) + count
        else:
            row[prefix + name] = value
    return row


def _array(values: list[Any]) -> pa.Array:
    """Return the values of a column; of several types, as texts."""
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return pa.array([None if value is None else str(value) for value in values], pa.string())


FORMAT = Format(
    "table",
    "a table of jobs whose columns a recipe names (convert --columns)",
    lambda file: False,  # only the recipe tells what the columns are
    marks=Marks.LOOSE,
    read_log=read_log,
)
