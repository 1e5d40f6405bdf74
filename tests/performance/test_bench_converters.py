"""Duration of the converters at the size of real logs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tracebed.converters.formats.reading import read_workload
from tracebed.converters.formats.writing import write_workload
from tracebed.converters.malleability import to_malleable
from tracebed.converters.models.cirne import cirne
from tracebed.converters.workload import Workload

MILLION = 1_000_000


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_read_ricc(benchmark: Any, reference_data: Callable[[str], Path]) -> None:
    path = reference_data("logs/RICC-2010-2.swf.gz")
    assert len(benchmark.pedantic(read_workload, (path,), rounds=3)) == 447_794


@pytest.fixture(scope="module")
def million() -> Workload:
    return cirne(MILLION, seed=1)


@pytest.mark.parametrize("format", ["parquet", "csv", "swf"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_write_a_million_jobs(benchmark: Any, million: Workload, format: str, tmp_path: Path) -> None:
    path = tmp_path / f"w.{format}"
    benchmark.pedantic(write_workload, (million, path), rounds=2)
    assert path.stat().st_size > MILLION


def test_draw_a_million_jobs(benchmark: Any) -> None:
    assert len(benchmark.pedantic(cirne, (MILLION,), rounds=3)) == MILLION


def test_make_a_million_jobs_malleable(benchmark: Any, million: Workload) -> None:
    mixed = benchmark.pedantic(to_malleable, (million, 0.5), rounds=3)
    assert (mixed.column("kind") == "malleable").sum() == MILLION / 2
