"""Time to draw 200,000 jobs from each model; the target is one second each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tracebed.converters.applications import with_applications
from tracebed.converters.formats.reading import read_workload
from tracebed.converters.models import jann97
from tracebed.converters.models.cirne import cirne
from tracebed.converters.models.downey97 import downey97
from tracebed.converters.models.feitelson96 import feitelson96
from tracebed.converters.models.lublin99 import lublin99
from tracebed.converters.models.moldability import with_moldability
from tracebed.converters.models.papers import deadline, dmr, sd, sd_5
from tracebed.converters.models.tsafrir05 import with_estimates
from tracebed.converters.workload import Kind, Workload

JOBS = 200_000
MODELS = {"cirne": cirne, "lublin99": lublin99, "lublin99 untyped": partial(lublin99, untyped=True, nodes=1024)}
CONVERTERS = {
    "tsafrir05": with_estimates,
    "moldable": with_moldability,
    "malleable": partial(with_moldability, kind=Kind.MALLEABLE),
}


@pytest.mark.parametrize("model", MODELS)
def test_draw(benchmark: Any, model: str) -> None:
    workload = benchmark.pedantic(MODELS[model], (JOBS,), rounds=5, warmup_rounds=1)
    benchmark.extra_info["jobs/s"] = round(JOBS / benchmark.stats.stats.median)
    assert len(workload) == JOBS


@pytest.fixture(scope="module")
def rigid() -> Workload:
    return lublin99(JOBS, seed=1)


@pytest.mark.parametrize("converter", CONVERTERS)
def test_convert(benchmark: Any, rigid: Workload, converter: str) -> None:
    convert: Callable[..., Workload] = CONVERTERS[converter]
    after = benchmark.pedantic(convert, (rigid,), {"seed": 1}, rounds=5, warmup_rounds=1)
    benchmark.extra_info["jobs/s"] = round(JOBS / benchmark.stats.stats.median)
    assert len(after) == JOBS


# -- models of papers and logs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [downey97, feitelson96, deadline, dmr, sd, sd_5])
def test_draw_of_papers(benchmark: Any, model: Callable[[int], Any]) -> None:
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
