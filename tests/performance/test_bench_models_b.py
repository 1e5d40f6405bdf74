"""Time to draw 200,000 jobs from the models of papers and logs; the target is one second each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tracebed.converters.applications import with_applications
from tracebed.converters.formats.reading import read_workload
from tracebed.converters.models import jann97
from tracebed.converters.models.cirne import cirne
from tracebed.converters.models.downey97 import downey97
from tracebed.converters.models.feitelson96 import feitelson96
from tracebed.converters.models.papers import deadline, dmr, sd, sd_5

JOBS = 200_000


@pytest.mark.parametrize("model", [downey97, feitelson96, deadline, dmr, sd, sd_5])
def test_draw(benchmark: Any, model: Callable[[int], Any]) -> None:
    assert len(benchmark.pedantic(model, (JOBS,), rounds=3)) == JOBS


def test_draw_feitelson96_repeated_at_the_end(benchmark: Any) -> None:
    assert len(benchmark.pedantic(feitelson96, (JOBS,), {"repeats": "end"}, rounds=3)) == JOBS


def test_name_applications(benchmark: Any) -> None:
    workload = cirne(JOBS, seed=1)
    assert len(benchmark.pedantic(with_applications, (workload,), rounds=3)) == JOBS


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_fit_ricc(benchmark: Any, reference_data: Callable[[str], Path]) -> None:
    log = read_workload(reference_data("logs/RICC-2010-2.swf.gz"))
    assert len(benchmark.pedantic(jann97.fit, (log,), rounds=3)) == 12


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_draw_from_the_fit_of_ricc(benchmark: Any, reference_data: Callable[[str], Path]) -> None:
    classes = jann97.fit(read_workload(reference_data("logs/RICC-2010-2.swf.gz")))
    assert len(benchmark.pedantic(jann97.draw, (JOBS, classes, 1), rounds=3)) == JOBS
