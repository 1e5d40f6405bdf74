"""Damaged files: a reader must return a workload with jobs, or raise an error of one clear line.

@given(mutated(VALID))
def test_damage(data: bytes) -> None:
    read_or_refuse(data, "log.csv", "eagle")
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

from hypothesis import strategies as st

from tests.fuzzing.fuzz_mutations import LINES
from tracebed.converters.formats.reading import read_workload
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError, Tolerated


@st.composite
def mutated(draw: st.DrawFn, data: bytes) -> bytes:
    """Draw a file with one to three defects: bytes flipped, lines cut or swapped, fields swapped or replaced."""
    rng = draw(st.randoms(use_true_random=False))
    for _ in range(draw(st.integers(1, 3))):
        data = draw(st.sampled_from(LINES))(rng, data)
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


if __name__ == "__main__":
    from tests.fuzzing import fuzz_harness

    raise SystemExit(fuzz_harness.main())
