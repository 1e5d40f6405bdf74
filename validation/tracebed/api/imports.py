"""Imports: runs from the output of other simulators and from real logs."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, cast, get_args

from tracebed.api.arguments import check_size
from tracebed.api.results import Run
from tracebed.converters.formats.reading import read_workload as read
from tracebed.converters.workload import Workload
from tracebed.ground.registry import one_of, unknown
from tracebed.orchestrator import run as orchestrator
from tracebed.validation.simulators.reading import import_run as import_file
from tracebed.validation.simulators.simulator import MatchName, ReadOptions, Side

FACTS = tuple(
    field.name
    for field in fields(ReadOptions)
    if field.name not in ("side", "match", "mapping", "name", "workload_facts")
)
"""Facts that a file may lack: the fields of `ReadOptions` that a caller gives."""


def import_run(
    path: Path | str,
    *,
    side: Side,
    workload: Workload | orchestrator.Run | Path | str | None = None,
    form: str | None = None,
    match: MatchName | Path | str = "auto",
    **options: Any,
) -> Run:
    """Return the run in a file of another program: the output of a simulator, or the log of a real system.

    Args:
        path: a table of jobs with a header, the output of a simulator (file or folder), or a log.
        side: `predicted`, or `real` if the run was observed on a real system.
        workload: the workload of the jobs, its file, or a run of it (or its folder). Optional for a real run:
            the workload is then made from the file.
        form: an installed simulator or a format of logs; by default recognized by the content.
        match: how jobs are matched: `id`, `order` (of submissions), `shape` (submit time, size and run time), `auto`
            (by id if the ids are those of the workload, else by shape), or the path of a file that matches jobs by two
            columns: id in the file, id in the workload.
        options: facts that the file does not contain, the fields of `ReadOptions`: `policy`, for reports; `nodes` and
            `cores_per_node`, by default those of the file or the workload; `columns`, field -> name of its column,
            where names are not recognized; `rows`, column -> value: only the rows with this value are read, for a
            table of several runs; `unit` of numbers that are times: s, ms, us, ns, min or h, by default that of the
            column names, or s; `time_zone` of dates without an offset, by default UTC; `speed`, trace seconds per
            second of the file, for the log of a replay.

    Raises:
        InputError: the file cannot be read, its jobs are not those of the workload, or times contradict each other.

    Example:
        >>> import tempfile, pathlib
        >>> import tracebed.api as tb
        >>> path = pathlib.Path(tempfile.mkdtemp(), "real.csv")
        >>> _ = path.write_text("id,submit,start,end,nodes\\n1,0,0,60,2\\n2,5,60,90,1\\n")
        >>> tb.import_run(path, side="real", nodes=2).metrics()["mean_wait_s"]
        27.5
    """
    path = Path(path)
    one_of("side", side, ("predicted", "real"))
    by_name = match in get_args(MatchName)
    if not by_name and not Path(match).exists():
        raise unknown("match", match, [*get_args(MatchName), "FILE"])
    for option, value in options.items():
        one_of("option of an import", option, FACTS)
        if option in ("nodes", "cores_per_node") and value is not None:
            check_size(option, value)
    given: Workload | orchestrator.Run | None
    name = path.name
    if isinstance(workload, Path | str):
        place = Path(workload)
        name = place.name
        given = orchestrator.Run.load(place) if (place / orchestrator.FILES[0]).is_file() else read(place)
    else:
        given = workload
    reading = ReadOptions(
        side=side,
        match=cast(MatchName, match) if by_name else "auto",
        mapping=None if by_name else Path(match),
        name=name,
        **{option: value for option, value in options.items() if value is not None},
    )
    return Run.of(import_file(path, reading, given, form))


def as_run(workload: Workload, *, name: str = "workload", where: str = "") -> Run:
    """Return the run that a log describes: what the real machine did with each job.

    Args:
        workload: a workload with logged starts and ends.
        name: name of the workload in reports.
        where: file of the workload, for errors.

    Raises:
        InputError: no job has a logged start and end.

    Example:
        >>> import tracebed.api as tb
        >>> w = tb.generate("cirne", jobs=30, nodes=16, seed=3)
        >>> jobs = tb.simulate(w, "fcfs").jobs
        >>> logged = w.table.assign(logged_start=jobs["start"], logged_end=jobs["end"])
        >>> tb.as_run(tb.Workload(logged, w.provenance)).info.execution
        'logged'
    """
    from tracebed.validation.simulators.history import run_of_log

    return Run.of(run_of_log(workload, name=name, where=where))
