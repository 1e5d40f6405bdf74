"""The formats that tracebed knows, and how the right one is found.

To add a format, write a module with `recognises`, `read` and, where it can hold a workload, `write`, and add
its line to `FORMATS`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tracebed.converters.formats import (
    batsim,
    cori,
    csv,
    eagle,
    elastisim,
    fdata,
    gwf,
    lassen,
    mwf,
    parquet,
    pbs,
    pm100,
    sacct,
    slurm,
    supercloud,
    swf,
    theta,
    ub_slurm,
)
from tracebed.converters.formats.tools.files import SUFFIXES, Input, inputs_at
from tracebed.converters.log import Log
from tracebed.converters.workload import Workload
from tracebed.errors import InputError, tolerate
from tracebed.files import replacing, replacing_folder


class Format(NamedTuple):
    """One format: its name, the ends of its files' names, and its functions."""

    name: str
    summary: str
    suffixes: tuple[str, ...]
    recognises: Callable[[Input], bool]
    """Whether a file looks like this format; looks at its `head` or its `columns`."""
    read: Callable[..., Workload] | None = None
    """`read(file: Input, **options)`: of a file that holds jobs."""
    read_log: Callable[..., Log] | None = None
    """`read_log(files: Sequence[Input], **options)`: of a log, perhaps in several files, that holds records."""
    write: Callable[..., None] | None = None
    """`write(workload: Workload, file: BinaryIO, **options)`."""
    write_folder: Callable[..., None] | None = None
    """`write_folder(workload: Workload, folder: Path, **options)`, for a format of several files.

    Of a format that has `write` too, a name with an ending asks for the one file.
    """
    written: str = ""
    """One of the files that `write_folder` makes: by it an earlier folder is known, and may be replaced."""


FORMATS = (
    # before our own: it has all the columns that a workload must have
    Format("pm100", "CINECA Marconi100: PM100, M100 ExaData", (), pm100.recognises, read_log=pm100.read_log),
    Format("parquet", "tracebed's own", (".parquet",), parquet.recognises, parquet.read, write=parquet.write),
    Format("csv", "tracebed's own", (".csv",), csv.recognises, csv.read, write=csv.write),
    Format("cori", "NERSC Cori and Perlmutter", (), cori.recognises, read_log=cori.read_log),
    Format("eagle", "NREL Eagle", (), eagle.recognises, read_log=eagle.read_log),
    Format("theta", "ALCF Theta and its siblings", (), theta.recognises, read_log=theta.read_log),
    Format("sacct", "Slurm's accounting, by sacct -P", (), sacct.recognises, read_log=sacct.read_log),
    Format("pbs", "accounting of PBS Pro and Torque", (), pbs.recognises, read_log=pbs.read_log),
    Format(
        "elastisim",
        "jobs.json of ElastiSim, and what it needs beside",
        (),
        elastisim.recognises,
        elastisim.read,
        write_folder=elastisim.write_folder,
        written="mapping.csv",
    ),
    Format("fdata", "RIKEN Fugaku: F-DATA", (), fdata.recognises, read_log=fdata.read_log),
    Format("lassen", "LLNL Lassen", (), lassen.recognises, read_log=lassen.read_log),
    Format("supercloud", "MIT Supercloud", (), supercloud.recognises, read_log=supercloud.read_log),
    Format("mwf", "Modular Workload Format", (".mwf",), mwf.recognises, read_log=mwf.read_log),
    Format("gwf", "Grid Workloads Format", (".gwf",), gwf.recognises, read_log=gwf.read_log),
    Format(
        "batsim",
        "workload and platform of Batsim",
        (),
        batsim.recognises,
        batsim.read,
        write=batsim.write,
        write_folder=batsim.write_folder,
        written="workload.json",
    ),
    Format("slurm", "a script of sbatch lines", (".sh",), slurm.recognises, write=slurm.write),
    Format("ub-slurm", "events of UB's Slurm simulator", (".events",), ub_slurm.recognises, write=ub_slurm.write),
    Format("swf", "Standard Workload Format", (".swf",), swf.recognises, swf.read, write=swf.write),
)
"""In the order in which they are asked whether a file is theirs: those with the surest marks first."""
NAMES = tuple(format.name for format in FORMATS)


def read(path: Path | str, format: str | None = None, **options: Any) -> Workload:
    """Read a workload; its format is known by its content, else by its name, unless `format` says it.

    A file that tracebed wrote brings its provenance with it and is read as the very same workload. Of any
    other file the provenance is the file itself (name, SHA-256) and a step `read` with what was tolerated.
    Of a log the records of one job become one job, and its number is made unique (see `Log.workload`).

    Args:
        path: the file, also compressed (gzip, zstd, bzip2, zip), or a log's folder of files.
        format: one of `NAMES`.
        options: of the format's reader (`by="core"` of swf).

    Raises:
        InputError: no such file, a broken one, of no known format, without a job, the same one twice, or an option
            is not taken.
    """
    found = read_raw([Path(path)], format, **options)
    return found.workload() if isinstance(found, Log) else found


def read_raw(paths: Sequence[Path], format: str | None = None, **options: Any) -> Workload | Log:
    """Read files, or a folder of them, as `read` does, but leave a log's records as they are, for cleaning."""
    files = [file for path in paths for file in inputs_at(path)]
    chosen, files = _chosen(files, format)
    first: dict[str, Input] = {}
    for file in files:
        if first.setdefault(file.source.sha256, file) is not file:
            what = f"has the same content as {first[file.source.sha256].where}"
            raise InputError(what, where=file.where, hint="read it once only")
    reader = chosen.read_log or chosen.read
    if reader is None:
        raise InputError(f"the format {chosen.name} is written only", where=files[0].where, hint="name another")
    _check_options(reader, options, f"reading {chosen.name}", files[0].where)
    found: Workload | Log
    if chosen.read_log is not None:
        found = chosen.read_log(files, **options)
    elif len(files) == 1:
        found = reader(files[0], **options)
    else:
        raise InputError(
            f"{len(files)} files of the format {chosen.name}", where=str(paths[0]), hint="read one at a time"
        )
    if not len(found.table):
        raise InputError("holds no job", where=files[0].where, hint="check that the file is complete")
    return found


def write(workload: Workload, path: Path | str, format: str | None = None, **options: Any) -> None:
    """Write a workload in the format that the name of `path` asks for, or `format`; compressed if it ends in `.gz`.

    The file (or folder, of a format with several files) appears whole or not at all; what stood there before
    is lost only to a complete successor.

    Raises:
        InputError: the name asks for no format that can be written, the place cannot be written to, or an
            option is not taken.
    """
    path = Path(path)
    chosen, writer = writer_for(path, format)
    _check_options(writer, options, f"writing {chosen.name}", str(path))
    if writer is chosen.write_folder:
        with replacing_folder(path, chosen.written) as folder:
            writer(workload, folder, **options)
    else:
        with replacing(path) as file:
            writer(workload, file, **options)


def _check_options(function: Callable[..., Any], options: Mapping[str, Any], doing: str, where: str) -> None:
    """Raise InputError where a reader or writer does not take one of the options."""
    taken = inspect.signature(function).parameters
    for option in options:
        if option not in taken:
            known = [name for name, one in taken.items() if one.kind is one.KEYWORD_ONLY]
            hint = f"it takes {', '.join(known) or 'none'}"
            raise InputError(f"{doing} takes no option {option!r}", where=where, hint=hint)


def writer_for(path: Path, format: str | None = None) -> tuple[Format, Callable[..., None]]:
    """Return the format that `write` would take, and the function of it; before a long log is read, as a check.

    Raises:
        InputError: the name asks for no format that can be written.
    """
    chosen = _named(format) if format else _by_name(path)
    writer = chosen and ((chosen.write if path.suffix else None) or chosen.write_folder or chosen.write)
    if chosen is None or writer is None:
        writable = ", ".join(suffix for known in FORMATS if known.write for suffix in known.suffixes)
        others = ", ".join(known.name for known in FORMATS if known.write_folder)
        hint = f"end it in {writable}" + (f", or write it --to one of {others}" if others else "")
        raise InputError("its name asks for no format that can be written", where=str(path), hint=hint)
    return chosen, writer


def _named(name: str) -> Format:
    for known in FORMATS:
        if known.name == name:
            return known
    raise InputError(f"no format {name!r}", hint=f"one of {', '.join(NAMES)}")


def _by_name(path: Path) -> Format | None:
    name = path.name.lower()
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return next((known for known in FORMATS if known.suffixes and name.endswith(known.suffixes)), None)


def _chosen(files: list[Input], format: str | None) -> tuple[Format, list[Input]]:
    """Return the format of a log's files, and those that are of it."""
    if format:
        return _named(format), files
    formats = [recognised(file) for file in files]
    for file, found in zip(files, formats, strict=True):
        if found is None and _utf16(file.head):
            hint = "make it UTF-8 first: iconv -f UTF-16 -t UTF-8"
            raise InputError("is a text of two bytes a character (UTF-16)", where=file.where, hint=hint)
    if not any(formats):  # a name helps only where no content does: logs lie beside tables of other things
        formats = [_by_name(Path(file.name)) for file in files]
    known = [found for found in formats if found is not None]
    if not known:
        raise InputError(
            "neither its content nor its name tells its format",
            where=files[0].where,
            hint=f"say which it is, with `convert --from`: {', '.join(NAMES)}",
        )
    for file, found in zip(files, formats, strict=True):
        if found is not None and found != known[0]:
            raise InputError(
                f"is of the format {found.name}, and {files[formats.index(known[0])].where} of {known[0].name}",
                where=file.where,
                hint="read them one at a time",
            )
    strange = sum(found is None for found in formats)
    tolerate({f"files that are no log beside those of the format {known[0].name}, left out": strange})
    return known[0], [file for file, found in zip(files, formats, strict=True) if found is not None]


def _utf16(head: bytes) -> bool:
    """Tell a text of two bytes a character by its byte order mark, or by every other byte being 0."""
    return head.startswith((b"\xff\xfe", b"\xfe\xff")) or any(
        len(head) > 3 and not any(head[odd:64:2]) and all(head[1 - odd : 64 : 2]) for odd in (0, 1)
    )


def recognised(file: Input) -> Format | None:
    """Return the first format that takes the content of `file` for its own."""
    return next((known for known in FORMATS if known.recognises(file)), None)
