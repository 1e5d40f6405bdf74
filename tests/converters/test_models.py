"""Workload models: wrong arguments and wrong constants are errors that name them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tracebed.converters.formats.writing import write_workload
from tracebed.converters.models.cirne import CirneParameters, cirne
from tracebed.converters.models.downey97 import Downey97Parameters, downey97
from tracebed.converters.models.feitelson96 import Feitelson96Parameters, feitelson96
from tracebed.converters.models.jann97 import Jann97Parameters, jann97
from tracebed.converters.models.lublin99 import JobType, Lublin99Parameters, lublin99
from tracebed.converters.models.papers import sd
from tracebed.converters.models.tsafrir05 import Tsafrir05Parameters
from tracebed.ground.errors import InputError

SIZES: list[dict[str, Any]] = [{"jobs": 0}, {"nodes": 0}, {"cores_per_node": 0}]
ARGUMENTS: dict[Callable[..., Any], list[dict[str, Any]]] = {
    cirne: [*SIZES, {"site": "cern"}],
    downey97: SIZES,
    feitelson96: [*SIZES, {"repeats": "never"}, {"gaps": "uniform"}],
    lublin99: SIZES,
    sd: [*SIZES, {"largest": 0}],
}
BATCH = vars(Lublin99Parameters().batch)


def job_type(**constants: float) -> JobType:
    return JobType(**{**BATCH, **constants})


CONSTANTS: dict[Callable[..., Any], Mapping[str, list[float]]] = {
    CirneParameters: {
        **{"power_of_two": [1.5], "cancelled": [-0.1], "load": [0.0], "reduction": [3], "size_slope": [0.0]},
    },
    Downey97Parameters: {
        **{"work_min": [0.0], "work_max": [1.0], "parallelism_max": [0.5], "sigma_max": [-1.0]},
        **{"day_gap": [0.0], "night_gap": [float("inf")], "day_begins": [86_400.0]},
    },
    Feitelson96Parameters: {
        **{"factor": [0.0], "short": [1.5], "short_slope": [-0.1, 0.99], "repetition_order": [1.0]},
        **{"size_order": [float("nan")], "power_of_two": [0.0], "small_up_to": [-1], "short_mean": [float("inf")]},
    },
    Jann97Parameters: {"order_max": [0], "fewest": [3]},
    Tsafrir05Parameters: {"longest": [60.0, float("nan")], "longest_share": [89.0]},
    job_type: {"serial": [1.5], "gap_scale": [0.0], "cycle_shape": [float("nan")]},
}


@pytest.mark.parametrize(("model", "wrong"), [(model, wrong) for model, cases in ARGUMENTS.items() for wrong in cases])
def test_wrong_arguments_are_errors(model: Callable[..., Any], wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="out of range"):
        model(**{"jobs": 1, **wrong})


@pytest.mark.parametrize("wrong", [*SIZES, {"log": Path("no.swf")}])
def test_wrong_arguments_of_a_model_of_a_log_are_errors(wrong: dict[str, Any], tmp_path: Path) -> None:
    write_workload(cirne(100, seed=1), tmp_path / "log.parquet")
    with pytest.raises(InputError):
        jann97(**{"jobs": 1, "log": tmp_path / "log.parquet", **wrong})


@pytest.mark.parametrize(
    ("made", "name"),
    [
        pytest.param(partial(factory, **{name: value}), name, id=f"{factory.__name__}-{name}-{value}")
        for factory, constants in CONSTANTS.items()
        for name, values in constants.items()
        for value in values
    ],
)
def test_wrong_constants_are_errors(made: Callable[[], Any], name: str) -> None:
    with pytest.raises(InputError, match=f"{name}.* is out of range"):
        made()


@pytest.mark.parametrize("wrong", [{"size_middle": 9.0}, {"size_low": -1.0}])
def test_sizes_of_a_job_type_out_of_order_are_an_error(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match=r"sizes 2\^.* is out of range"):
        job_type(**wrong)
