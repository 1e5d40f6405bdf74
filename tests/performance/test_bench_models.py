"""Time to draw 200,000 jobs from each model; the target is one second each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tracebed.converters.models.cirne import cirne
from tracebed.converters.models.lublin99 import lublin99
from tracebed.converters.models.moldability import with_moldability
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
