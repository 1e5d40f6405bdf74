"""Functions that read a file, or the files of a log, in any format; the format is recognized by the content."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracebed.converters.formats.format import BY_CORE, FORMATS, Format, by_name, check_options, known, named
from tracebed.converters.formats.tools.files import Input, inputs_at
from tracebed.converters.workload import System, Workload
from tracebed.ground.display import listed
from tracebed.ground.errors import InputError, tolerate
from tracebed.ground.extension_errors import checked

if TYPE_CHECKING:
    from tracebed.converters.log import Log

FOREIGN_PATTERNS = {
    rb'"?JOB_(?:FINISH|NEW|START)2?"? ': "the accounting of LSF (lsb.acct)",
    rb"JOBID\W+USER\W+STAT\W+QUEUE\W": "the output of LSF's bjobs",
    rb"Summary of time in seconds spent in various states": "the output of LSF's bhist",
    rb"Job <\d+(?:\[\d+\])?>, ": "the output of LSF's bjobs or bhist",
    rb"\d{3} \(\d+\.\d+\.\d+\) \d": "the log of jobs of HTCondor",
    rb'\{[^\n]*\s*"\d+"\s*:\s*\{[^}]*"(?:Job_Id|submissionTime|assigned_resources)"': "a file of OAR with jobs in JSON",
    rb'\{\s*"timestamp"[^{]*"pbs_version"': "the output of PBS's qstat in JSON",
    rb"(?:<\?xml[^>]*\?>\s*)?<(?:job_info|detailed_job_info)\b": "the output of Grid Engine's qstat in XML",
    rb"(?:#[^\n]*\n)*[^\s:,;|]+:[^\s:,;|]+:(?:[^:\n]*:){25,}": "the accounting of Grid Engine",
    rb"=+\s*\nqname\s": "the output of Grid Engine's qacct",
    rb"job-ID\s+prior\s+name\s": "the output of Grid Engine's qstat",
    rb"JOBID\s+(?:QUEUE\s+)?USER\s+NAME\s+ST\s+NTASKS\s": "the output of flux jobs",
    rb'\{[^\n]*"t_(?:submit|run|inactive)"': "a file of Flux with jobs in JSON",
    rb'\{\s*"apiVersion"|apiVersion:': "a file of Kubernetes objects",
    rb"(?:NAMESPACE\s+)?NAME\s+(?:STATUS\s+)?COMPLETIONS\s+DURATION\s": "the output of kubectl get jobs",
    rb"(?:NAMESPACE\s+)?NAME\s+READY\s+STATUS\s+RESTARTS\s": "the output of kubectl get pods",
    rb"Job [Ii][Dd]\s+(?:Name|Username)\s": "the output of PBS's qstat",
    rb"JOBID\s+PARTITION\s+NAME\s+USER\s": "the output of Slurm's squeue",
}
"""Pattern of the first bytes of a file, after white space -> what the file is."""
FOREIGN = [(re.compile(rb"\s*(?:" + pattern + rb")"), what) for pattern, what in FOREIGN_PATTERNS.items()]
AS_TABLE = (
    "write a table with a header and a row for each job, and read it with `tracebed import FILE --as real --columns "
    "submit=NAME,start=NAME,end=NAME,nodes=NAME`; `tracebed export RUN --to workload` makes a workload of it"
)


def foreign_kind_of(file: Input) -> str | None:
    """Return what a file of another batch system is, or None."""
    return next((what for pattern, what in FOREIGN if pattern.match(file.head)), None)


def read_workload(
    path: Path | str,
    format: str | None = None,
    *,
    system: System | None = None,
    equal_nodes: bool = True,
    **options: Any,
) -> Workload:
    """Read a workload or log of any known format.

    A file written by tracebed contains its provenance and gives an identical workload. For any other file, the
    provenance is the file (name, SHA-256) and a step `read` with the tolerated defects. The records of a job in a
    log are merged into one job with a unique id (see `cleaning.audit.jobs_of`). What the jobs lose of the log
    (partitions, GPUs, shared nodes) is counted in warnings if `equal_nodes`.

    Args:
        path: the file, also compressed (gzip, zstd, bzip2, zip), or a folder of files.
        format: name of the format; by default the content of the file tells it, or else its name.
        system: the machine of the workload; None: that of the file.
        equal_nodes: whether the workload is for a machine of equal nodes, each held by one job.
        options: options of the reader, such as `by="core"` for SWF.

    Raises:
        InputError: there is no such file, or it is damaged, of no known format or without jobs, or occurs twice; the
            reader does not accept an option; or the jobs of a log held more nodes at once than the system has.

    Example:
        >>> import tracebed.api as tb
        >>> _ = tb.write(tb.generate("lublin99", jobs=20, seed=1), "w.swf.gz")
        >>> len(tb.read("w.swf.gz"))
        20
    """
    if system is not None:
        from tracebed.converters.scaling import with_system

        return with_system(read_workload(path, format, equal_nodes=equal_nodes, **options), system)
    content = read_raw([Path(path)], format, **options)
    if not isinstance(content, Workload):
        from tracebed.converters.cleaning.audit import jobs_of

        workload = jobs_of(content)
        if equal_nodes:
            _tolerate_pooling(workload, content.where)
        return workload
    origin = content.provenance
    is_log = bool(origin.steps) and origin.steps[-1].parameters.get("format") in BY_CORE
    is_source = [source.name for source in origin.sources] == [Path(path).name]  # no file made of a log by tracebed
    if equal_nodes and is_log and is_source:
        _tolerate_pooling(content, str(path))
    return content


def _tolerate_pooling(workload: Workload, where: str) -> None:
    """Warn about what the jobs of a log lose on a machine of equal nodes."""
    from tracebed.converters.pooling import pooled  # counts with the statistics of logs, for logs only

    tolerate(pooled(workload), where=where)


def read_raw(paths: Sequence[Path], format: str | None = None, **options: Any) -> Workload | Log:
    """Read files or folders like `read_workload`, but return the unmerged records of a log, for cleaning."""
    for path in paths:
        if Path(path, "run.json").is_file():
            hint = "`tracebed metrics` reads runs, `tracebed export RUN --to workload` writes their jobs"
            raise InputError("is a run, not a workload", where=str(path), hint=hint)
    if format is None and "columns" in options:
        format = "table"
    files = [file for path in paths for file in inputs_at(path)]
    chosen, files = _chosen(files, format)
    first: dict[str, Input] = {}
    for file in files:
        if first.setdefault(file.source.sha256, file) is not file:
            what = f"has the same content as {first[file.source.sha256].where}"
            raise InputError(what, where=file.where, hint="give the file only once")
    reader = chosen.reader
    if reader is None:
        raise InputError(f"format {chosen.name} is write-only", where=files[0].where, hint="use another format")
    check_options(reader, options, f"reading {chosen.name}", files[0].where)
    content: Workload | Log
    kinds: tuple[type[Any], ...] = (Workload,)
    if chosen.read_log is not None:
        from tracebed.converters.log import Log  # with the parsers of columns, which most formats need, and Parquet not

        kinds = (Workload, Log)
        content = chosen.read_log(files, **options)
    elif len(files) == 1:
        content = reader(files[0], **options)
    else:
        raise InputError(
            f"{len(files)} files in format {chosen.name}", where=str(paths[0]), hint="read one file at a time"
        )
    checked(content, kinds, f"format {chosen.name}", chosen.read_log or reader)
    if not (len(content) if isinstance(content, Workload) else len(content.table)):
        raise InputError("contains no jobs", where=files[0].where, hint="check that the file is complete")
    return content


def _chosen(files: list[Input], format: str | None) -> tuple[Format, list[Input]]:
    """Return the format of a log, and the files in this format."""
    if format:
        return named(format), files
    formats = [recognized(file) for file in files]
    for file, guess in zip(files, formats, strict=True):
        if guess is None and _utf16(file.head):
            hint = "convert it to UTF-8 first: iconv -f UTF-16 -t UTF-8"
            raise InputError("the file is UTF-16 text", where=file.where, hint=hint)
    if not any(formats) and (kind := foreign_kind_of(files[0])):
        raise InputError(f"is {kind}, which is no format of tracebed", where=files[0].where, hint=AS_TABLE)
    if not any(formats):  # names are less reliable: a folder may contain unrelated tables next to a log
        formats = [by_name(Path(file.name)) for file in files]
    first = next((guess for guess in formats if guess is not None), None)
    if first is None:
        raise InputError(
            "the format is not recognized by content or name",
            where=files[0].where,
            hint=f"name it: convert --from {', '.join(FORMATS.names())}; of any other file, {AS_TABLE}",
        )
    for file, guess in zip(files, formats, strict=True):
        if guess is not None and guess != first:
            raise InputError(
                f"is in format {guess.name}, but {files[formats.index(first)].where} is in format {first.name}",
                where=file.where,
                hint="read the files one at a time",
            )
    strange = [Path(file.where).name for file, guess in zip(files, formats, strict=True) if guess is None]
    tolerate({f"files that are not in format {first.name}, ignored: {listed(strange, 3)}": len(strange)})
    return first, [file for file, guess in zip(files, formats, strict=True) if guess is not None]


def _utf16(head: bytes) -> bool:
    """Return whether a text is UTF-16, which has a byte order mark, or zeros in every other byte."""
    return head.startswith((b"\xff\xfe", b"\xfe\xff")) or any(
        len(head) > 3 and not any(head[odd:64:2]) and all(head[1 - odd : 64 : 2]) for odd in (0, 1)
    )


def recognized(file: Input) -> Format | None:
    """Return the first format that recognizes the content of `file`, or None."""
    if file.own_format:  # no other format is imported for the most frequent ones
        return named(file.own_format)
    if foreign_kind_of(file):  # some have a column of sacct
        return None
    return next((format for format in known() if format.recognizes(file)), None)
