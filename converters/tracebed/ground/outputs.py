"""The rule for outputs: an existing file or folder is replaced only where nothing is lost.

| what exists under the name of an output | without `replace` | with `replace` |
|---|---|---|
| nothing, an empty file or folder, a device or pipe | written | written |
| a view that is made again from other files (a report, a plot) | replaced | replaced |
| another output of the same kind, which tracebed wrote | refused | replaced |
| anything else, a read-only file | refused | refused |

The check is made before the work, and again when the output is complete. The earlier output stays until then.
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from tracebed.ground.errors import InputError
from tracebed.ground.files import check_folder, replacing, replacing_folder

REPLACE = "choose another name, or add --replace"
"""Hint of an error about an output that `replace` allows to replace."""
OTHER = "choose another name"
EXTENT = 2**16
"""Bytes at the beginning, and at the end, of a file in which its mark is looked for."""
FOOTER = 2**26
"""Largest accepted footer of a Parquet file, bytes."""


@dataclass(frozen=True)
class OutputKind:
    """A kind of outputs.

    Attributes:
        noun: description of an output, for messages.
        mark: regular expression of bytes that are at the beginning or the end of each such file.
        renewed: whether an output is a view of other files. Such a view holds no data of its own, and is made again.
        parts: names of the files of a folder. The first one has the mark. Empty: the output is a file.
    """

    noun: str
    mark: bytes
    renewed: bool = False
    parts: tuple[str, ...] = ()

    def matches(self, path: Path) -> bool:
        """Return whether the file or folder `path` is an output of this kind."""
        try:
            return re.search(self.mark, _ends(path / self.parts[0] if self.parts else path), re.MULTILINE) is not None
        except OSError:
            return False

    def check(self, path: Path, *, replace: bool = False) -> None:
        """Raise InputError if `path` exists and may not be replaced by an output of this kind, or cannot be written."""
        if self.parts:
            check_folder(path, self.parts, self.noun, self.guard(path, replace))
        else:
            _check_file(path, parent=not self.renewed)
            self.guard(path, replace)(Path(os.path.realpath(path)))

    def guard(self, shown: Path, replace: bool) -> Callable[[Path], None]:
        """Return a function that raises InputError if an existing output may not be replaced; `shown` is its name."""
        return partial(self._guard, shown, replace)

    def _guard(self, shown: Path, replace: bool, existing: Path) -> None:
        if not existing.exists() or not (existing.is_dir() or (existing.is_file() and existing.stat().st_size)):
            return
        if not self.matches(existing):
            raise InputError(f"exists and is not {self.noun} of tracebed", where=str(shown), hint=OTHER)
        if not (replace or self.renewed):
            raise InputError(f"exists: {self.noun}", where=str(shown), hint=REPLACE)

    @contextmanager
    def file(self, path: Path, *, replace: bool = False) -> Iterator[BinaryIO]:
        """Open a file that becomes the output `path`, as `files.replacing`. Raises InputError as `check`."""
        self.check(path, replace=replace)
        with replacing(path, self.guard(path, replace)) as file:
            yield file

    @contextmanager
    def folder(self, path: Path, ours: Collection[str], *, replace: bool = False) -> Iterator[Path]:
        """Create a folder that becomes the output `path`, as `files.replacing_folder`. Raises InputError as `check`."""
        with replacing_folder(path, ours, kind=self.noun, guard=self.guard(path, replace)) as folder:
            yield folder


def _check_file(path: Path, *, parent: bool) -> None:
    """Raise InputError if a file cannot be written to `path`, or if its folder is missing and `parent`."""
    try:
        target = Path(os.path.realpath(path))
        if target.is_dir():
            raise InputError("is a folder, not a file", where=str(path), hint="name a file in it")
        if parent and not target.parent.is_dir():
            raise InputError("the parent folder does not exist", where=str(path), hint=f"mkdir -p {path.parent}")
        if target.is_file() and not target.stat().st_mode & 0o222:
            raise InputError("is read-only", where=str(path), hint=OTHER)
        if parent and not target.exists() and not os.access(target.parent, os.W_OK):
            raise InputError("cannot be written: no permission", where=str(path), hint="write elsewhere")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(path), hint="write elsewhere") from error


def _ends(path: Path) -> bytes:
    """Return the beginning and the end of a file, of a compressed file the beginning, of Parquet the footer."""
    if path.suffix == ".gz":
        try:
            with gzip.open(path) as unzipped:
                return unzipped.read(EXTENT)
        except (EOFError, zlib.error):
            return b""
    if path.suffix == ".zst":
        import pyarrow as pa

        with pa.CompressedInputStream(str(path), "zstd") as stream:
            return bytes(stream.read(EXTENT))
    with path.open("rb") as file:
        begin = file.read(EXTENT)
        size = file.seek(0, os.SEEK_END)
        end = EXTENT
        if begin.startswith(b"PAR1") and size > 8:
            file.seek(-8, os.SEEK_END)
            end = min(int.from_bytes(file.read(4), "little") + 8, FOOTER)
        at = max(len(begin), size - end)
        file.seek(at)
        return begin + (b"\n" if at > len(begin) else b"") + file.read(end)


WORKLOAD = OutputKind(
    "a workload",
    rb'tracebed-provenance|^; Tracebed-Provenance:|^"tracebed": \{|^# Times are divided by the speed,'
    rb"|\A-dt \d+ -e submit_batch_job",
)
TOUCHED = OutputKind("a table of touched records", rb'\Arecord,job_id,submit_time,step,|"name": "reason"')
FORECAST = OutputKind("a forecast", rb"\Ajob_id,user,account,partition,nodes,cores,limit_s,priority,start,")
CALIBRATION = OutputKind("a calibration", rb"schema\W+tracebed-calibration/")
BASELINE = OutputKind("a baseline", rb"schema\W+tracebed-baseline/", renewed=True)
"""`--update-baseline` reads the existing baseline, and refuses to make it worse."""
NOISE = OutputKind("a noise profile", rb"schema\W+tracebed-noise/")
INVENTORY = OutputKind("an inventory", rb"\A# Written by `tracebed nodes`")
REPORT = OutputKind("a report", rb'<meta name="generator" content="tracebed">', renewed=True)
PICTURE = OutputKind("a picture", rb"Software\x00tracebed|/Creator \(tracebed\)|<dc:title>tracebed<", renewed=True)
WHATIF = OutputKind(
    "a what-if",
    rb'<meta name="generator" content="tracebed what-if">',
    renewed=True,
    parts=("index.html", "whatif.json"),
)
ARTIFACT = OutputKind(
    "an artifact",
    rb"\A<!-- an artifact of tracebed -->",
    renewed=True,
    parts=("README.md", "rebuild.sh", "SHA256SUMS"),
)
SUMMARY = OutputKind("a summary", rb"<!-- tracebed -->", renewed=True)
LATEX = OutputKind("a LaTeX table", rb"\A% a table of tracebed", renewed=True)
JUNIT = OutputKind("a JUnit file", rb'<testsuites name="tracebed"', renewed=True)
CODE_QUALITY = OutputKind("a code-quality report", rb'"check_name": "tracebed"|\A\[\]\s*\Z', renewed=True)
METRICS = OutputKind("a file of metrics", rb"^# (HELP|TYPE) tracebed_", renewed=True)
LOG = OutputKind("a log", rb"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4} (DETAIL|NOTE|WARNING|ERROR) ", renewed=True)
"""A log is continued."""
