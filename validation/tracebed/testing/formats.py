"""The check of formats of workloads and logs."""

from __future__ import annotations

import random
import re
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tracebed.converters.cleaning.audit import jobs_of
from tracebed.converters.formats.format import Format, known, named
from tracebed.converters.formats.tools.files import Input
from tracebed.converters.log import Log
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError, Tolerated
from tracebed.testing import workloads

STRANGE = (
    *(b"", b"-1", b"0", b"1e12", b"99999999999999999999", b"1e308", b"nan", b"inf", b"-0.5", b"1,5", b"None"),
    *(b"Unknown", b"\xff\xfe", b"\0", b'"', b"{", b"[", b"UNLIMITED", "Zürich".encode(), b"x" * 70_000),
)
"""Values for damaged fields: numbers out of range, words, characters with a meaning in some format."""
INSTANTS = {"submit_time", "deadline", "earliest_start", "logged_start", "logged_end"}
"""Columns that are compared relative to the first submission, which may be time zero of a format."""
FIELD = re.compile(rb"[^,;|:\s]+")


def check_format(
    format: str | Format,
    *,
    examples: Sequence[Path | str] = (),
    columns: Sequence[str] = ("submit_time", "run_time", "nodes"),
    atol: float = 1e-6,
    cases: int = 20,
    damages: int = 200,
    seed: int = 0,
) -> None:
    """Check the invariants of a format on its own output, on example files, and on damaged files.

    The invariants are:

    * The writer writes the same bytes for the same workload.
    * If the format has a reader and a writer, it recognizes its own output and reads the same `columns` back. No format
      with more specific marks recognizes that output.
    * Each file in `examples` is recognized and has at least one job.
    * A damaged file is read, or rejected with a one-line InputError.

    Args:
        format: name of an installed format, or a Format.
        examples: files of the format, required if the format has no writer.
        columns: columns of a workload that the format preserves, with a relative error of at most 1e-6. Times are
            compared relative to the first submission.
        atol: additional absolute tolerance, in the unit of the column.
        cases: number of random workloads to write.
        damages: number of damaged files to read.
        seed: seed of the random numbers.

    Raises:
        AssertionError: an invariant is violated; the message has the invariant and the case.
        InputError: the format is unknown.

    Example:
        >>> from tracebed.testing import check_format
        >>> check_format("csv", cases=3, damages=10)
    """
    chosen = named(format) if isinstance(format, str) else format
    _require(chosen, chosen.reader or chosen.write or chosen.write_folder, "has neither a reader nor a writer")
    with tempfile.TemporaryDirectory(prefix="tracebed-") as name, warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", Tolerated)
        folder, files = Path(name), [Path(path) for path in examples]
        for path in files:
            _check_recognized(chosen, path)
            _require(chosen, len(_jobs(chosen, path)), f"{path} contains no jobs")
        if chosen.write or chosen.write_folder:
            for number in range(seed, seed + cases):
                files += _check_round_trip(chosen, number, folder / f"case-{number}", columns, atol)
        if chosen.reader:
            _check_damages(chosen, files, folder, damages, random.Random(seed))


def _check_round_trip(chosen: Format, number: int, folder: Path, columns: Sequence[str], atol: float) -> list[Path]:
    """Write a random workload twice, and read it back. Return the file to read."""
    workload = workloads.draw(number)
    written = [_written(chosen, workload, folder / part) for part in ("one", "two")]
    contents = [{path.name: path.read_bytes() for path in files} for files in written]
    case = f"workload {number} (tracebed.testing.workloads)"
    _require(chosen, contents[0] == contents[1], f"{case}: two outputs of the same workload differ")
    if chosen.reader is None:
        return []
    own = [path for path in written[0] if chosen.recognizes(Input.at(path))]
    _require(chosen, own, f"{case}: the format does not recognize its own output")
    _check_recognized(chosen, own[0])
    again = _jobs(chosen, own[0])
    _require(chosen, len(again) == len(workload), f"{case}: {len(workload)} jobs are written, {len(again)} are read")
    for column in columns:
        before, after = (
            one.floats(column) - (column in INSTANTS) * one.floats("submit_time")[0] for one in (workload, again)
        )
        same = np.allclose(before, after, rtol=1e-6, atol=atol, equal_nan=True)
        _require(chosen, same, f"{case}: column {column} is {after.tolist()}, expected {before.tolist()}")
    return own[:1]


def _written(chosen: Format, workload: Workload, folder: Path) -> list[Path]:
    """Write a workload to `folder`, and return all files."""
    folder.mkdir(parents=True)
    if chosen.write:
        path = folder / f"drawn{chosen.suffixes[0] if chosen.suffixes else ''}"
        with path.open("wb") as file:
            chosen.write(workload, file)
    elif chosen.write_folder:
        chosen.write_folder(workload, folder)
        _require(chosen, (folder / chosen.written).is_file(), f"does not write the file {chosen.written!r}")
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _check_recognized(chosen: Format, path: Path) -> None:
    file = Input.at(path)
    _require(chosen, chosen.recognizes(file) is True, f"{path} is not recognized")
    surer = [other.name for other in known() if other.marks < chosen.marks and other.recognizes(file)]
    _require(chosen, not surer, f"{path} is recognized by formats with more specific marks: {', '.join(surer)}")


def _check_damages(chosen: Format, files: Sequence[Path], folder: Path, damages: int, rng: random.Random) -> None:
    _require(chosen, files, "has a reader but no writer, so `examples` are required")
    for number in range(damages):
        path = rng.choice(files)
        data = path.read_bytes()
        for _ in range(rng.randint(1, 3)):
            data = _damaged(data, rng)
        damaged = folder / f"damaged-{number}{''.join(path.suffixes)}"
        damaged.write_bytes(data)
        try:
            chosen.recognizes(Input.at(damaged))
            _jobs(chosen, damaged)
        except InputError as error:
            _require(chosen, "\n" not in str(error), f"damaged file {number}: the message is not one line: {error}")
        except Exception as error:
            what = f"damaged file {number} raises {type(error).__name__}, not InputError: {error}\n{data[:2000]!r}"
            raise AssertionError(f"format {chosen.name}: {what}") from error
        damaged.unlink()


def _damaged(data: bytes, rng: random.Random) -> bytes:
    """Return `data` with some bytes changed, a part removed, lines repeated, or a field replaced."""
    lines, at = data.splitlines(keepends=True), rng.randrange(len(data) + 1)
    kind = rng.choice(["bytes", "cut", "end", "line", "field", "field"])
    if kind == "bytes":
        return data[:at] + rng.randbytes(rng.randint(1, 4)) + data[at + rng.randint(0, 4) :]
    if kind == "cut":
        return data[:at] + data[at + rng.randint(1, 200) :]
    if kind == "end":
        return data[:at]
    if kind == "line" and lines:
        line = rng.randrange(len(lines))
        return b"".join([*lines[: line + 1], *lines[rng.randrange(len(lines)) :]])
    fields: list[re.Match[bytes]] = list(_fields(data, rng))
    if not fields:
        return data[:at]
    field = rng.choice(fields)
    return data[: field.start()] + rng.choice(STRANGE) + data[field.end() :]


def _fields(data: bytes, rng: random.Random) -> Iterator[re.Match[bytes]]:
    """Yield the fields of a random part of `data`."""
    start = rng.randrange(max(1, len(data) - 500))
    return FIELD.finditer(data, start, start + 500)


def _jobs(chosen: Format, path: Path) -> Workload:
    """Read a file with the reader of the format."""
    file = Input.at(path)
    found: Workload | Log
    if chosen.read_log:
        found = chosen.read_log([file])
    else:
        assert chosen.read
        found = chosen.read(file)
    if not len(found.table):
        raise InputError("contains no jobs", where=str(path))
    return jobs_of(found) if isinstance(found, Log) else found


def _require(chosen: Format, holds: object, text: str) -> None:
    if not holds:
        raise AssertionError(f"format {chosen.name}: {text}")
