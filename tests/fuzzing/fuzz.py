"""Damaged files: a reader must return a workload with jobs, or raise an error of one clear line.

@given(mutated(VALID))
def test_damage(data: bytes) -> None:
    read_or_refuse(data, "log.csv", "eagle")
"""

from __future__ import annotations

import gzip
import re
import tempfile
import warnings
from pathlib import Path

from hypothesis import strategies as st

from tracebed.converters.formats.reading import read_workload
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError, Tolerated

STRANGE = (
    *(b"", b"-1", b"-5", b"0", b"1e12", b"1000000000000", b"99999999999999999999", b"1e308", b"nan", b"inf", b"-0.5"),
    *(
        b"Unknown",
        b"None",
        b"08.11.2022 22:04",
        b"11/8/22 10:04 PM",
        b"1,5",
        b"\xff\xfe",
        b"\0",
        b'"',
        b"'",
        b"{",
        b"[",
    ),
    *(b"CANCELLED by 7", b"UNLIMITED", b"1-00:00:00", "Zürich".encode(), b"x" * 70_000),
)
"""What stands in a field where something else should: numbers of no sense, dates of another locale, rubbish."""
FIELD = re.compile(rb"[^,;|\s]+")


@st.composite
def mutated(draw: st.DrawFn, data: bytes) -> bytes:
    """Draw a file with one to three defects: bytes flipped, lines cut or swapped, fields swapped or replaced."""
    for _ in range(draw(st.integers(1, 3))):
        data = draw(st.sampled_from(DAMAGES))(draw, data)
    return data


def read_or_refuse(data: bytes, name: str, format: str | None = None) -> Workload | None:
    """Read a file of this content and name; return its workload, or None if it was refused.

    Any other result than a workload with jobs or an InputError of one line fails the calling test.
    """
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy's, pandas': an overflow or a lossy cast is a defect
        warnings.simplefilter("ignore", Tolerated)
        path = Path(folder) / name
        path.write_bytes(data)
        try:
            workload = read_workload(path, format)
        except InputError as error:
            text = str(error)
            assert text
            assert "\n" not in text, f"an error of several lines: {text}"
            assert len(text) < 1000, f"an error of {len(text)} characters"
            return None
    assert len(workload) > 0, "a silently empty result"
    return workload


def _place(draw: st.DrawFn, data: bytes) -> int:
    return draw(st.integers(0, max(0, len(data) - 1)))


def _flip(draw: st.DrawFn, data: bytes) -> bytes:
    """Replace some bytes."""
    content = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        if content:
            content[_place(draw, data)] = draw(st.integers(0, 255))
    return bytes(content)


def _truncate(draw: st.DrawFn, data: bytes) -> bytes:
    """Truncate the file at a random position."""
    return data[: _place(draw, data)]


def _truncated_gzip(draw: st.DrawFn, data: bytes) -> bytes:
    """Compress the file and truncate the result."""
    packed = gzip.compress(data, mtime=0)
    return packed[: _place(draw, packed)]


def _cut_line(draw: st.DrawFn, data: bytes) -> bytes:
    """Truncate one line."""
    lines, index = _lines(draw, data)
    lines[index] = lines[index][: _place(draw, lines[index])]
    return b"\n".join(lines)


def _drop_line(draw: st.DrawFn, data: bytes) -> bytes:
    lines, index = _lines(draw, data)
    return b"\n".join(lines[:index] + lines[index + 1 :])


def _repeat_line(draw: st.DrawFn, data: bytes) -> bytes:
    lines, index = _lines(draw, data)
    return b"\n".join(lines[: index + 1] + lines[index:])


def _header_only(draw: st.DrawFn, data: bytes) -> bytes:
    return data.partition(b"\n")[0] + b"\n"


def _swap_fields(draw: st.DrawFn, data: bytes) -> bytes:
    """Exchange two fields, possibly of the header, possibly of different lines."""
    fields = [found.span() for found in FIELD.finditer(data)]
    if len(fields) < 2:
        return data
    one, two = sorted(draw(st.lists(st.sampled_from(fields), min_size=2, max_size=2)))
    if one == two:
        return data
    return data[: one[0]] + data[slice(*two)] + data[one[1] : two[0]] + data[slice(*one)] + data[two[1] :]


def _replace_field(draw: st.DrawFn, data: bytes) -> bytes:
    """Replace a field by an unusual value."""
    fields = [found.span() for found in FIELD.finditer(data)]
    begin, end = draw(st.sampled_from(fields)) if fields else (0, 0)
    return data[:begin] + draw(st.sampled_from(STRANGE)) + data[end:]


def _other_delimiter(draw: st.DrawFn, data: bytes) -> bytes:
    before, after = draw(st.sampled_from([b",", b";", b"|", b" ", b"\t"])), draw(st.sampled_from([b";", b",", b" "]))
    return data.replace(before, after)


def _rubbish(draw: st.DrawFn, data: bytes) -> bytes:
    """Insert random bytes at a random position."""
    place = _place(draw, data)
    return data[:place] + draw(st.binary(min_size=1, max_size=20)) + data[place:]


def _lines(draw: st.DrawFn, data: bytes) -> tuple[list[bytes], int]:
    lines = data.split(b"\n")
    return lines, draw(st.integers(0, len(lines) - 1))


DAMAGES = (
    *(_flip, _truncate, _truncated_gzip, _cut_line, _drop_line, _repeat_line, _header_only),
    *(_swap_fields, _replace_field, _replace_field, _other_delimiter, _rubbish),
)

if __name__ == "__main__":
    from tests.fuzzing import fuzz_harness

    raise SystemExit(fuzz_harness.main())
