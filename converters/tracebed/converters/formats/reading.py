"""Reading: a file, or a log's files, of any format as a workload; the format is recognized by its content."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tracebed.converters.cleaning.audit import jobs_of
from tracebed.converters.formats.format import Format
from tracebed.converters.formats.registry import FORMATS, by_name, check_options, known, named
from tracebed.converters.formats.tools.files import Input, inputs_at
from tracebed.converters.log import Log
from tracebed.converters.workload import Workload
from tracebed.errors import InputError, tolerate


def read_workload(path: Path | str, format: str | None = None, **options: Any) -> Workload:
    """Read a workload; its format is known by its content, else by its name, unless `format` says it.

    A file that tracebed wrote brings its provenance with it and is read as the very same workload. Of any
    other file the provenance is the file itself (name, SHA-256) and a step `read` with what was tolerated.
    Of a log the records of one job become one job, and its number is made unique (see `cleaning.audit.jobs_of`).

    Args:
        path: the file, also compressed (gzip, zstd, bzip2, zip), or a log's folder of files.
        format: the name of one.
        options: of the format's reader (`by="core"` of swf).

    Raises:
        InputError: no such file, a broken one, of no known format, without a job, the same one twice, or an option
            is not taken.
    """
    found = read_raw([Path(path)], format, **options)
    return jobs_of(found) if isinstance(found, Log) else found


def read_raw(paths: Sequence[Path], format: str | None = None, **options: Any) -> Workload | Log:
    """Read files, or a folder of them, as `read_workload` does, but leave a log's records as they are, for cleaning."""
    files = [file for path in paths for file in inputs_at(path)]
    chosen, files = _chosen(files, format)
    first: dict[str, Input] = {}
    for file in files:
        if first.setdefault(file.source.sha256, file) is not file:
            what = f"has the same content as {first[file.source.sha256].where}"
            raise InputError(what, where=file.where, hint="read it once only")
    reader = chosen.reader
    if reader is None:
        raise InputError(f"the format {chosen.name} is written only", where=files[0].where, hint="name another")
    check_options(reader, options, f"reading {chosen.name}", files[0].where)
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


def _chosen(files: list[Input], format: str | None) -> tuple[Format, list[Input]]:
    """Return the format of a log's files, and those that are of it."""
    if format:
        return named(format), files
    formats = [recognised(file) for file in files]
    for file, found in zip(files, formats, strict=True):
        if found is None and _utf16(file.head):
            hint = "make it UTF-8 first: iconv -f UTF-16 -t UTF-8"
            raise InputError("is a text of two bytes a character (UTF-16)", where=file.where, hint=hint)
    if not any(formats):  # a name helps only where no content does: logs lie beside tables of other things
        formats = [by_name(Path(file.name)) for file in files]
    first = next((found for found in formats if found is not None), None)
    if first is None:
        raise InputError(
            "neither its content nor its name tells its format",
            where=files[0].where,
            hint=f"say which it is, with `convert --from`: {', '.join(FORMATS.names())}",
        )
    for file, found in zip(files, formats, strict=True):
        if found is not None and found != first:
            raise InputError(
                f"is of the format {found.name}, and {files[formats.index(first)].where} of {first.name}",
                where=file.where,
                hint="read them one at a time",
            )
    strange = sum(found is None for found in formats)
    tolerate({f"files that are no log beside those of the format {first.name}, left out": strange})
    return first, [file for file, found in zip(files, formats, strict=True) if found is not None]


def _utf16(head: bytes) -> bool:
    """Tell a text of two bytes a character by its byte order mark, or by every other byte being 0."""
    return head.startswith((b"\xff\xfe", b"\xfe\xff")) or any(
        len(head) > 3 and not any(head[odd:64:2]) and all(head[1 - odd : 64 : 2]) for odd in (0, 1)
    )


def recognised(file: Input) -> Format | None:
    """Return the first format that takes the content of `file` for its own."""
    return next((format for format in known() if format.recognises(file)), None)
