"""The published JSON schemas: the output of the commands and the files of a run are valid."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import referencing

from tests.commands import call
from tests.runs import NAN, fcfs_run, make_run
from tracebed.orchestrator.run import FORMAT, Run
from tracebed.validation.metrics import all_metrics
from tracebed.validation.verdict import Case, Reason, Verdict, validate

FOLDER = files("tracebed.validation") / "schemas"
SCHEMAS: dict[str, Any] = {
    file.name: json.loads(file.read_text(encoding="utf-8")) for file in FOLDER.iterdir() if file.name.endswith(".json")
}
REGISTRY: Any = referencing.Registry().with_resources(
    (name, referencing.Resource.from_contents(schema)) for name, schema in SCHEMAS.items()
)
STAIRS = {"1": [(0.0, 50.0, 2), (50.0, 100.0, 4)]}
ASKED = [("1", "expand", 2, 4, 44.0, 48.0, 50.0, 50.0, "applied")]


def problems(document: Any, name: str) -> list[str]:
    """Return the violations of the schema in that file by a document."""
    validator = jsonschema.Draft202012Validator(SCHEMAS[name], registry=REGISTRY)
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]


def malleable(*, real: bool) -> Run:
    return make_run([(0.0, 0.0, 100.0, 2)], staircases=STAIRS, reconfigurations=ASKED, real=real)


LATE = {"signal": "rank_late_s", "value": 10.2, "limit": 1.0, "state": "unhealthy", "text": "a rank was 10.2 s late"}
PAIRS = {
    "rigid": (fcfs_run(60), fcfs_run(60, stretch=1.1, real=False)),
    "malleable": (malleable(real=True), malleable(real=False)),
    "unhealthy": (
        fcfs_run(
            30, health={"state": "unhealthy", "causes": [LATE], "signals": {"steal": None}, "thresholds": "0" * 64}
        ),
        fcfs_run(30, real=False, calibration={"name": "here", "workloads": ["a" * 64]}),
    ),
    "nothing ended": tuple(
        make_run([(0.0, NAN, NAN, 1)], real=real, states={"1": "interrupted"}) for real in (True, False)
    ),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_each_is_a_schema_named_as_its_file(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[name])
    assert SCHEMAS[name]["$id"] == name


@pytest.mark.parametrize("pair", PAIRS)
def test_what_metrics_compare_and_a_run_write_is_valid(pair: str, tmp_path: Path) -> None:
    for name, run in zip(("real", "sim"), PAIRS[pair], strict=True):
        run.save(tmp_path / name)
        assert problems(json.loads((tmp_path / name / "run.json").read_text()), f"run-{FORMAT}.json") == []
    found = json.loads(call("metrics", tmp_path / "real", tmp_path / "sim", "--json").stdout)
    assert problems(found, "tracebed-metrics-1.json") == []
    found = json.loads(call("compare", "--real", tmp_path / "real", "--predicted", tmp_path / "sim", "--json").stdout)
    assert problems(found, "tracebed-verdict-2.json") == []
    found["cases"][0]["repetitions"][0]["nodes"] = "many"
    del found["tau"]
    assert len(problems(found, "tracebed-verdict-2.json")) == 2


@pytest.mark.slow
def test_a_suite_with_all_kinds_of_results_is_valid(tmp_path: Path) -> None:
    policies = ("fcfs", "easy")
    unusual = (fcfs_run(40, stretch=1.5), fcfs_run(40, health=PAIRS["unhealthy"][0].info.health))

    def run(number: int, policy: str, stretch: float = 1.0, **options: Any) -> Run:
        """Return a run of one of eight workloads."""
        facts = {"seed": number, "sha256": f"{number:064x}" if number else "a" * 64}
        return fcfs_run(40, stretch=stretch, policy=policy, **facts, **options)

    cases = [
        Case(
            f"w{n}-{policy}",
            f"w{n}",
            policy,
            (
                *(run(n, policy, s) for s in (1.0, 1.001, 0.999, 1.002)),
                *(unusual if (n, policy) == (0, "fcfs") else []),
            ),
            (run(n, policy, real=False),),
        )
        for n in range(8)
        for policy in policies
    ]
    validation = validate(cases)
    assert validation.population
    assert validation.ranking
    assert validation.without_outliers
    with (tmp_path / "verdict.json").open("w") as file:
        json.dump(validation.to_json(), file)
    document = json.loads((tmp_path / "verdict.json").read_text(), parse_constant=lambda _: None)
    assert problems(document, "tracebed-verdict-2.json") == []


@pytest.mark.usefixtures("without_pictures")
def test_the_verdicts_of_a_suite_are_valid(tmp_path: Path) -> None:
    for number in range(1, 3):
        fcfs_run(30, stretch=1 + 0.001 * number).save(tmp_path / f"real/tiny-fcfs/rep-0{number}")
    fcfs_run(30, real=False).save(tmp_path / "sim/tiny-fcfs")
    simulators = "{right: {runs: 'sim/{workload}-{policy}'}, gone: {runs: gone}}"
    text = f"workloads: [tiny]\npolicies: [fcfs]\nrecorded: real/tiny-fcfs/rep-*\nsimulators: {simulators}\n"
    (tmp_path / "s.yaml").write_text(text)
    found = json.loads(call("validate", tmp_path / "s.yaml", "-o", tmp_path / "out", "--json").stdout)
    assert (len(found["simulators"]), list(found["failed"])) == (1, ["gone"])
    assert problems(found, "tracebed-verdicts-2.json") == []
    assert problems(json.loads((tmp_path / "out/verdict.json").read_text()), "tracebed-verdicts-2.json") == []
    found["simulators"][0]["verdict"] = "perhaps"
    assert len(problems(found, "tracebed-verdicts-2.json")) == 1


def test_the_schema_names_every_verdict_and_reason() -> None:
    properties = SCHEMAS["tracebed-verdict-2.json"]["properties"]
    assert properties["verdict"]["enum"] == [verdict.value for verdict in Verdict]
    assert properties["reasons"]["items"]["enum"] == [reason.value for reason in Reason]


def test_the_schema_names_every_metric_of_tracebed() -> None:
    figures = SCHEMAS["tracebed-metrics-1.json"]["$defs"]["figures"]
    assert all_metrics().keys() <= figures["properties"].keys()
    assert all_metrics().keys() <= set(figures["required"])
    for name, metric in all_metrics().items():
        assert metric.docs in figures["properties"][name]["description"]
