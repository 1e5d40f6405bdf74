"""The formats that tracebed knows, and how the right one is found.

To add a format, write a module with `recognises`, `read` and, where it can hold a workload, `write`, and add
its line to `FORMATS`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
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
from tracebed.converters.formats.tools.files import SUFFIXES, Input
from tracebed.converters.log import Log
from tracebed.converters.workload import Workload
from tracebed.errors import InputError


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


def named(name: str) -> Format:
    """Return the format called `name`. Raises InputError if there is no such format."""
    for known in FORMATS:
        if known.name == name:
            return known
    raise InputError(f"no format {name!r}", hint=f"one of {', '.join(NAMES)}")


def by_name(path: Path) -> Format | None:
    """Return the format to which the name of a file belongs, or None."""
    name = path.name.lower()
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return next((known for known in FORMATS if known.suffixes and name.endswith(known.suffixes)), None)


def check_options(function: Callable[..., Any], options: Mapping[str, Any], doing: str, where: str) -> None:
    """Raise InputError where a reader or writer does not take one of the options."""
    taken = inspect.signature(function).parameters
    for option in options:
        if option not in taken:
            known = [name for name, one in taken.items() if one.kind is one.KEYWORD_ONLY]
            hint = f"it takes {', '.join(known) or 'none'}"
            raise InputError(f"{doing} takes no option {option!r}", where=where, hint=hint)
