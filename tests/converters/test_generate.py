"""`tracebed generate`: one command per model, made from its function; load, estimates and job kinds for all models."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result

from tracebed.cli import tracebed
from tracebed.converters.formats.reading import read_workload
from tracebed.converters.formats.writing import write_workload
from tracebed.converters.models import registry
from tracebed.converters.models.cirne import CirneParameters, cirne
from tracebed.converters.models.downey97 import Downey97Parameters, downey97
from tracebed.converters.models.feitelson96 import Feitelson96Parameters, feitelson96
from tracebed.converters.models.jann97 import Jann97Parameters, jann97
from tracebed.converters.models.lublin99 import JobType, Lublin99Parameters, lublin99
from tracebed.converters.models.papers import sd
from tracebed.converters.models.registry import MODELS
from tracebed.converters.models.tsafrir05 import Tsafrir05Parameters
from tracebed.converters.scaling import to_load
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.ground.errors import InputError


@dataclasses.dataclass(frozen=True)
class Inner:
    """Nested constants."""

    a: float = 1.0


@dataclasses.dataclass(frozen=True)
class Constants:
    """Constants of the toy model."""

    inner: Inner = Inner()
    count: int = 2


def toy(
    jobs: int,
    *,
    nodes: int | None = None,
    cores_per_node: int = 1,
    seed: int = 0,
    parameters: Constants | None = None,
    mode: Literal["slow", "fast"] = "slow",
    exactly: bool = False,
    half_life: float | None = None,
    log: Path | None = None,
) -> Workload:
    """Return jobs that record the arguments of the call.

    Args:
        jobs: how many.
        mode: how it is done,
            on two lines.
        exactly: whether.
        half_life: of something, s.
        log: to read.
    """
    table = pd.DataFrame({"job_id": [str(i) for i in range(jobs)], "submit_time": 0.0, "run_time": 1.0, "nodes": 1})
    asked = f"{nodes} {cores_per_node} {seed} {parameters} {mode} {exactly} {half_life} {log}"
    return Workload(table.assign(extra_asked=asked), Provenance(system=System(nodes, cores_per_node)))


toys = partial(toy, jobs=3, mode="fast")
"""Three toys."""
exact = partial(toy, jobs=3, exactly=True)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Result]:
    """Return a function that runs `tracebed generate ...` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("toy", "toys", "exact"):
        entry = EntryPoint(name, f"{__name__}:{name}", MODELS.group)
        monkeypatch.setitem(MODELS.entries, name, entry)
    return lambda words: CliRunner().invoke(tracebed, ["generate", *words.split()])


def asked(call: Callable[[str], Result], words: str) -> str:
    result = call(f"{words} -o w.parquet --replace")
    assert result.exit_code == 0, (result.output, result.exception)
    return str(read_workload("w.parquet").column("extra_asked")[0])


def test_an_option_for_every_argument(call: Callable[[str], Result]) -> None:
    default = "Constants(inner=Inner(a=1.0), count=2)"
    assert asked(call, "toy --jobs 1") == "None 1 0 None slow False None None"
    assert asked(call, "toys --nodes 4 --cores-per-node 2 --seed 5") == "4 2 5 None fast False None None"
    assert len(read_workload("w.parquet")) == 3
    assert asked(call, "toys --jobs 2 --set mode=slow --set exactly=yes") == "None 1 0 None slow True None None"
    assert asked(call, "toys --set half-life=1.5 --set log=a.swf") == "None 1 0 None fast False 1.5 a.swf"
    changed = default.replace("1.0", "2.5").replace("2)", "7)")
    assert asked(call, "toys --set inner.a=2.5 --set count=7") == f"None 1 0 {changed} fast False None None"


def test_a_flag_that_a_papers_workload_sets_stays_set_unless_it_is_cleared(call: Callable[[str], Result]) -> None:
    assert asked(call, "exact").split()[-3] == "True"
    assert asked(call, "exact --set exactly=no").split()[-3] == "False"
    assert "exactly=yes: Whether." in call("exact --help").output


@pytest.mark.parametrize("name", [name for name, model in MODELS.all() if isinstance(model, partial)])
def test_a_papers_workload_is_the_same_by_command_and_by_name(name: str, call: Callable[[str], Result]) -> None:
    assert call(f"{name} --jobs 40 --seed 1 -o w.parquet").exit_code == 0
    assert read_workload("w.parquet").sha256 == registry.draw(name, 40, seed=1).sha256


def test_help_says_what_the_docstring_says(call: Callable[[str], Result]) -> None:
    text = re.sub(r"\s+", " ", call("toy --help").output)
    assert "--jobs INTEGER RANGE How many jobs. [x>=1; required]" in text
    assert "mode=slow: How it is done, on two lines. One of slow, fast." in text
    assert "exactly=no: Whether." in text
    assert "half_life=: Of something, s." in text
    assert "Constants and their defaults: inner.a=1.0, count=2." in text
    assert "tracebed generate toy --jobs 200 --seed 7 -o w.parquet" in text
    text = re.sub(r"\s+", " ", call("toys --help").output)
    assert "How many jobs. [default: 3; x>=1]" in text
    assert "tracebed generate toys --seed 7 -o w.parquet" in text


@pytest.mark.parametrize("name", MODELS.names())
def test_every_model_is_listed_and_has_the_common_signature(name: str, call: Callable[[str], Result]) -> None:
    assert re.search(rf"^  {name} ", call("--help").output, re.MULTILINE)
    result = call(f"{name} --help")
    assert result.exit_code == 0, result.output
    assert f"tracebed generate {name}" in result.output
    arguments = inspect.signature(MODELS.load(name), eval_str=True).parameters
    assert {"jobs", "nodes", "cores_per_node", "seed"} <= set(arguments)
    assert all(a.kind is a.KEYWORD_ONLY for a in arguments.values() if a.name != "jobs")
    meaningless = re.findall(r"^  (--[\w-]+) +\[default", result.output, re.MULTILINE)
    assert meaningless == []


def test_the_command_draws_what_the_function_draws(call: Callable[[str], Result]) -> None:
    untyped = dataclasses.replace(Lublin99Parameters().untyped, serial=0.5)
    drawn = lublin99(
        300, nodes=64, seed=9, untyped=True, parameters=dataclasses.replace(Lublin99Parameters(), untyped=untyped)
    )
    result = call(
        "lublin99 --jobs 300 --nodes 64 --seed 9 --set untyped=yes --set untyped.serial=0.5 -o w.parquet --json"
    )
    assert json.loads(result.stdout)["sha256"] == drawn.sha256
    assert read_workload("w.parquet").provenance == drawn.provenance


def test_load_scales_arrivals_and_not_run_times(call: Callable[[str], Result]) -> None:
    call("cirne --jobs 500 --seed 2 -o plain.parquet")
    result = call("cirne --jobs 500 --seed 2 --load 0.8 -o scaled.parquet")
    assert "offered load 0.8" in result.output
    plain, scaled = read_workload("plain.parquet"), read_workload("scaled.parquet")
    assert scaled.offered_load == pytest.approx(0.8)
    assert (scaled.floats("run_time") == plain.floats("run_time")).all()
    step = scaled.provenance.steps[-1]
    assert step.name == "scale"
    assert step.parameters["arrivals"] == pytest.approx((plain.offered_load or 0.0) / 0.8)
    assert scaled.floats("submit_time") == pytest.approx(plain.floats("submit_time") * step.parameters["arrivals"])


@pytest.mark.parametrize(
    ("workload", "what"),
    [
        (cirne(1), "all submit times are equal"),
        (cirne(9).with_provenance(system=System()), "the size of its system is unknown"),
        (Workload(cirne(9).table.assign(run_time=np.nan), cirne(9).provenance), "no job has a run time"),
    ],
)
def test_a_workload_without_a_load_cannot_be_scaled_to_one(workload: Workload, what: str) -> None:
    with pytest.raises(InputError, match=what):
        to_load(workload, 0.5)


def test_estimates_and_kinds_for_any_model(call: Callable[[str], Result]) -> None:
    words = (
        "lublin99 --jobs 400 --seed 3 --estimates tsafrir05 --set estimates.longest=200000 --kind malleable --load 0.5"
    )
    assert call(f"{words} --set batch.serial=1 -o w.parquet").exit_code == 0
    workload = read_workload("w.parquet")
    assert [step.name for step in workload.provenance.steps] == ["lublin99", "tsafrir05", "moldability", "scale"]
    assert workload.floats("time_limit").max() == 200_000
    assert (workload.floats("time_limit") >= workload.floats("run_time")).all()
    assert (workload.column("kind") == "malleable").mean() > 0.9
    assert (workload.ints("nodes")[workload.column("queue") == "batch"] == 1).all()
    assert workload.offered_load == pytest.approx(0.5)
    assert call("cirne --jobs 50 --kind moldable -o m.parquet").exit_code == 0
    assert set(read_workload("m.parquet").column("kind")) == {"moldable", "rigid"}


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("toy", "--jobs"),
        ("toy --jobs 1 --set mode=medium", "'medium' is not one of 'slow', 'fast'"),
        ("toy --jobs 1 --set half_life=inf", "not a finite number"),
        ("toys --set inner.b=1", "unknown constant 'inner.b' (one of mode, exactly, half_life, log, inner.a, count)"),
        ("toys --set inner=1", "unknown constant 'inner'"),
        ("toys --set count=1.5", "'1.5' is not a whole number"),
        ("toys --set inner.a=nan", "'nan' is not a number"),
        ("toys --load 0", "--load"),
        ("toys --nodes 4 --load 1", "all submit times are equal"),
        ("toys --set estimates.longest=7200", "add --estimates tsafrir05"),
        (
            "toys --estimates tsafrir05 --set estimates.shortest=1",
            "unknown constant 'estimates.shortest' (one of",
        ),
        ("toys --kind malleable", "size of the workload's system is unknown"),
        ("cirne --jobs 5 --set site=cern", "'cern' is not one of"),
        ("lublin99 --jobs 1000000000000", "1000000000000 jobs is out of range"),
        ("lublin99 --jobs 5 --set batch.serial=2", "serial 2.0 is out of range"),
        (
            "cirne --jobs 5 --set exact=yes --set size_slope=1e-9",
            "size_slope 1e-09 with size_offset",
        ),
        ("cirne --jobs 5 --set exact=yes --set limit_offset=-1e9", "is out of range"),
        ("cirne --jobs 5 --set exact=yes --set load=1e300", "load 1e+300 is out of range"),
        ("toy2", "unknown model 'toy2' (did you mean toy?"),
    ],
)
def test_bad_input_is_an_error_and_writes_nothing(words: str, what: str, call: Callable[[str], Result]) -> None:
    result = call(f"{words} -o w.parquet --replace")
    said = result.output if isinstance(result.exception, SystemExit) else str(result.exception)
    assert what in said
    assert isinstance(result.exception, (SystemExit, InputError))
    assert not Path("w.parquet").exists()


def test_the_registry_draws_by_name() -> None:
    assert registry.draw("lublin99", 10, seed=1).sha256 == lublin99(10, seed=1).sha256
    with pytest.raises(InputError, match="unknown model 'lublin'"):
        registry.draw("lublin", 10)


# The registry of models, and their arguments.

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
