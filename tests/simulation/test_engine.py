"""The compiled simulator: equal to the Python one to the bit, and not used for options that it does not implement."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.oracles.engines import KNOWN, POOLED, SHARING, case, compared, differences
from tests.patience import GUARD_S
from tracebed.cli import tracebed
from tracebed.converters.formats.writing import write_workload
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.machine.machine import Machine, NodeClass, Partition
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.scheduling import names
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.scheduling.policies.drom import DromShare
from tracebed.orchestrator.scheduling.policies.easy import Easy
from tracebed.orchestrator.scheduling.policies.kassel import Pref
from tracebed.orchestrator.scheduling.policies.sd import SlowdownDriven
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.simulation import engine, prediction
from tracebed.orchestrator.simulation.engine import policies
from tracebed.orchestrator.simulation.engine.library import DescriptionError, Library
from tracebed.orchestrator.simulation.interference import Interference
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.validation.metrics import figures

pytestmark = pytest.mark.skipif(not engine.LIBRARY.exists(), reason="there was no C compiler")
SOURCE = re.sub(
    r'#include "(.+)"',
    lambda header: (engine.LIBRARY.parent / header[1]).read_text(),
    engine.LIBRARY.with_name("engine.c").read_text(),
)
"""engine.c with its headers."""


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return a function that applies replacements to engine.c, compiles it, and installs it as the engine."""

    def build(*replacements: tuple[str, str]) -> Path:
        source = SOURCE
        for old, new in replacements:
            assert source.count(old) == 1, old
            source = source.replace(old, new)
        (tmp_path / "engine.c").write_text(source)
        library = tmp_path / "engine.so"
        if not shutil.which("cc"):
            pytest.skip("there is no C compiler")
        command = ["cc", "-std=gnu11", "-fPIC", "-shared", "-ffp-contract=off", tmp_path / "engine.c", "-o", library]
        subprocess.run([*command, "-lm"], check=True, timeout=GUARD_S)
        monkeypatch.setattr(engine, "LIBRARY", library)
        monkeypatch.setattr(engine, "_library", engine._library.__wrapped__)
        return library

    return build


def test_the_installed_library_has_this_version() -> None:
    assert Library(engine.LIBRARY, engine.NAMES).numbers.keys() == engine.NAMES.keys()
    assert engine._library() is not None


def test_fields_and_names_are_in_the_order_of_the_library(built: Callable[..., Path]) -> None:
    swapped = (
        ("const double *, submit", "const double *, run_time"),
        ("const double *, start", "const double *, launched"),
        ("FCFS", "FIRSTFIT"),
        ("COMPLETED", "KILLED"),
        ("EXTEND", "KILL"),
        ("IDEAL", "WORST_CASE"),
    )
    built(*((f"_({one}) _({other})", f"_({other}) _({one})") for one, other in swapped))
    for seed in range(20):
        assert not compared(seed)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("_(NOW)", "_(NOW) _(LATER)"),
        ("_(DMR)", "_(DMR) _(CAREFUL)"),
        ("(int64_t)sizeof(struct setup)", "(int64_t)sizeof(struct setup) + 8"),
        ("(int64_t)sizeof(struct results)", "(int64_t)sizeof(struct results) + 8"),
        ("_(double, launch_s)", "_(float, launch_s)"),
        ("char *tracebed_engine_description", "char *tracebed_engine_text"),
    ],
)
def test_a_library_of_another_version_is_not_used(built: Callable[..., Path], old: str, new: str) -> None:
    library = built((old, new))
    with pytest.raises(DescriptionError):
        Library(library, engine.NAMES)
    assert "another machine or version" in engine.obstacle(Jobs.of(small()), Easy(), 1)
    assert predict(small(), NODES, "easy").info.engine == "python"


def test_a_field_that_python_does_not_fill_in_is_an_error(built: Callable[..., Path]) -> None:
    built(("_(double, launch_s)", "_(double, launch_s) _(double, later_s)"))
    with pytest.raises(ValueError, match="later_s"):
        predict(small(), NODES, "easy")


@pytest.mark.parametrize("policy", KNOWN)
def test_both_simulators_give_the_same_run_to_the_bit(policy: str) -> None:
    for seed in range(10):  # `tox -e sanitize` compares 400 cases
        assert not compared(seed, policy), f"python -m tests.oracles.engines 1 --seed {seed} --policy {policy}"


@pytest.mark.parametrize("priority", engine.PRIORITIES)
@pytest.mark.parametrize("policy", [name for name in KNOWN if name not in SHARING])
def test_every_priority_gives_the_same_run_to_the_bit(policy: str, priority: str) -> None:
    for seed in range(3):
        arguments = case(seed, policy) | {"priority": priority}
        one, other = (predict(**arguments, engine=name) for name in ("python", "compiled"))
        assert not differences(one, other)


def test_the_page_of_the_engine_lists_the_compiled_policies() -> None:
    page = Path(__file__).parents[2] / "docs/explanation/engine.md"
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", page.read_text(), re.MULTILINE))
    compiled, others = (set(re.findall(r"`([a-z-]+)`", rows[row])) for row in ("compiled policies", "in Python"))
    known = {name: policies.form_of(registry.load(name)) for name in registry.names()}
    assert compiled == {name for name, form in known.items() if form is not None}
    assert others == known.keys() - compiled
    assert {entry.value for name, entry in registry.POLICIES.entries.items() if known[name]} == policies.FORMS.keys()


def test_each_parameter_of_the_engine_belongs_to_a_policy() -> None:
    library, jobs = engine._library(), Jobs.of(small())
    assert library is not None
    given: set[str] = set()
    for name in registry.names():
        if (form := policies.form_of(policy := registry.load(name))) is not None:
            given |= form.parameters(policy, jobs, library.numbers).keys()
    assert given == library.parameters.keys()


def test_every_priority_has_a_name_in_the_engine() -> None:
    assert engine.PRIORITIES.keys() == set(names.PRIORITIES)


def test_an_order_that_turns_round_at_one_instant_is_sorted_as_in_python() -> None:
    """Short and long jobs swap by slowdown while no job can start, more often than an insertion sort is worth."""
    count = 200
    first = {"job_id": ["first"], "submit_time": [0.0], "run_time": [1e5], "time_limit": [1e5], "nodes": [1]}
    limits = [10.0 * (count - number) for number in range(count)]
    later = {
        "job_id": [f"j{number}" for number in range(count)],
        "submit_time": [1.0 + number for number in range(count)],
        "run_time": limits,
        "time_limit": limits,
        "nodes": [1] * count,
    }
    workload = Workload(pd.DataFrame({name: first[name] + later[name] for name in first}))
    for priority in engine.PRIORITIES:
        runs = [predict(workload, NODES, "easy", priority=priority, engine=name) for name in ("python", "compiled")]
        assert not differences(*runs)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), policy=st.sampled_from(POOLED))
@example(seed=57, policy="sd")  # the policy was called once more because the simulator read the size of a guest
def test_both_simulators_give_the_same_run_to_the_bit_on_pools(seed: int, policy: str) -> None:
    assert not compared(seed, policy, pools=True), f"--pools --seed {seed} --policy {policy}"


def test_both_simulators_agree_with_hundreds_of_jobs_on_pools() -> None:
    for seed, policy in enumerate(("pref", "sd")):
        assert not compared(seed, policy, large=True, pools=True)


def partitions(*nodes: str, weights: tuple[int, int] = (1, 1)) -> Machine:
    classes = [NodeClass(names=(name,), weight=weight) for name, weight in zip("ab", weights, strict=True)]
    return Machine(classes=tuple(classes), partitions=tuple(Partition(name=own, nodes=tuple(own)) for own in nodes))


def test_pools_with_a_common_node_or_unlike_weights_are_simulated_in_python() -> None:
    workload = Workload(small().table.assign(nodes=1, partition=["a", "ab"]))
    assert predict(workload, partitions("a", "ab"), "easy").info.engine == "python"
    with pytest.raises(InputError, match="nodes that serve jobs of several pools"):
        predict(workload, partitions("a", "ab"), "easy", engine="compiled")
    workload = Workload(workload.table.assign(partition="ab"))
    assert predict(workload, partitions("ab"), "easy").info.engine == "compiled"
    unlike = partitions("ab", weights=(2, 1))
    run = predict(workload, unlike, "easy")
    assert run.info.engine == "compiled" and not differences(run, predict(workload, unlike, "easy", engine="python"))
    assert dict(run.allocations[["job_id", "node"]].to_numpy()) == {"a": 1, "b": 0}
    for policy in ("pref", "sd", Easy(reserve="nodes")):
        with pytest.raises(InputError, match="unlike weights"):
            predict(workload, unlike, policy, engine="compiled")
    workload = Workload(workload.table.assign(partition=["a", "b"]))
    assert predict(workload, partitions("a", "b", weights=(1, 2)), "easy").info.engine == "compiled"


@pytest.mark.parametrize("seed", range(6))
def test_both_simulators_agree_with_hundreds_of_jobs_and_nodes(seed: int) -> None:
    assert not compared(seed, large=True), f"python -m tests.oracles.engines 1 --seed {seed} --large"


def test_ranges_of_one_start_are_ordered_and_joined_as_in_python() -> None:
    """Fifty jobs that start at one instant give back nodes to a wide job, and again to the next one."""
    count = 50
    table = {
        "job_id": [f"{number:02}" for number in range(count)] + ["wide", "wider"],
        "submit_time": [0.0] * count + [10.0, 20.0],
        "run_time": [100.0 + number for number in range(count)] + [30.0, 300.0],
        "nodes": [4] * count + [90, 60],
        "kind": ["malleable"] * count + ["rigid"] * 2,
        "nodes_min": [1] * count + [90, 60],
        "nodes_max": [9] * count + [90, 60],
        "nodes_pref": [2] * count + [90, 60],
    }
    runs = [predict(Workload(pd.DataFrame(table)), 210, "pref", engine=name) for name in ("python", "compiled")]
    assert not differences(*runs)
    assert (runs[0].allocations.groupby("start").size() > 64).any()
    one, other = (figures(run, ["utilization", "utilization_full", "loss_of_capacity"]) for run in runs)
    assert one == other


def test_nodes_being_released_count_for_the_next_reservation() -> None:
    """With `count_idle=no` job 1 has job 0 shrink, and starts on idle nodes; the next head once had no shadow time."""
    table = {
        "job_id": ["grows", "wide", "later", "last"],
        "submit_time": [12.0, 19.0, 28.0, 30.0],
        "run_time": [25.0, 5.0, 9.0, 3.0],
        "nodes": [1, 8, 1, 1],
        "kind": ["malleable", "rigid", "rigid", "rigid"],
        "nodes_min": [1, 8, 1, 1],
        "nodes_max": [3, 8, 1, 1],
        "nodes_pref": [1, 8, 1, 1],
        "speedup": "amdahl",
        "speedup_parameters": "0.5",
    }
    options = {"policy_parameters": {"calls": "event", "count_idle": "no", "grow_at_start": False}}
    names = ("python", "compiled")
    runs = [
        predict(Workload(pd.DataFrame(table)), 8, "pref", engine=n, malleability_interval_s=3.7, **options)
        for n in names
    ]
    assert not differences(*runs)


def test_a_difference_is_detected() -> None:
    one, other = (predict(**case(3, "easy")) for _ in range(2))
    assert not differences(one, other)
    other.jobs.loc[0, "end"] += 1e-9
    other.info.counts["completed"] += 1
    assert "jobs" in differences(one, other) and "counts" in differences(one, other)


def small() -> Workload:
    table = {"job_id": ["a", "b"], "submit_time": [0.0, 1.0], "run_time": [5.0, 5.0], "nodes": [1, 1]}
    return Workload(pd.DataFrame(table))


NODES = [NodeFacts("n1", 1)]


def test_what_the_engine_does_not_implement_runs_in_python() -> None:
    assert predict(small(), NODES, "easy").info.engine == "compiled"
    for options in (
        {"setup": "sd", "priority": "shortest-first"},
        {"setup": "easy", "engine": "python"},
    ):
        assert predict(small(), NODES, **options).info.engine == "python"


@dataclass(frozen=True)
class Lazy(Easy):
    """A subclass of a policy that the engine implements, which may decide differently."""


def test_the_error_names_what_the_engine_does_not_implement(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, aging = Jobs.of(small()), Setup.of("easy", priority="aging")
    assert not engine.obstacle(jobs, Easy(), 1)
    assert "policy Lazy" in engine.obstacle(jobs, Lazy(), 1)
    assert not engine.obstacle(jobs, Easy(), 1, aging)
    assert "priority aging under policies that share" in engine.obstacle(jobs, SlowdownDriven(), 1, aging)
    with pytest.raises(InputError, match="priority aging"):
        predict(small(), NODES, "sd", priority="aging", engine="compiled")
    with pytest.raises(ValueError, match="priority aging"):
        engine.CompiledSimulator(jobs, [1], SlowdownDriven(), aging)
    assert "at most 2147483647 nodes" in engine.obstacle(jobs.with_columns(high=[1, 2**31]), Easy(), 1)
    monkeypatch.setattr(engine, "_library", lambda: None)
    monkeypatch.setattr(engine, "LIBRARY", Path("absent"))
    assert "no C compiler" in engine.obstacle(Jobs.of(small()), Easy(), 1)
    assert predict(small(), NODES, "easy").info.engine == "python"


def test_without_the_engine_a_process_warns_once_that_simulations_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_library", lambda: None)
    monkeypatch.setattr(engine, "LIBRARY", Path("absent"))
    prediction._warn.cache_clear()
    with pytest.warns(UserWarning, match="no C compiler.*6 to 30 times as long") as caught:
        assert predict(small(), 4, "easy").info.engine == "python"
        predict(small(), 4, "easy", engine="python")
        predict(small(), 4, "easy")
    assert len(caught) == 1


def test_what_the_engine_does_not_implement_of_sharing_runs_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, sd = Jobs.of(small()), SlowdownDriven()
    grain = Setup.of(sd, overheads=Overheads(grain_s=1.0))
    assert not engine.obstacle(jobs, sd, 1) and not engine.obstacle(jobs, DromShare(), 1)
    assert "grain" in engine.obstacle(jobs, sd, 1, grain)
    factors = Interference({"compute": {"compute": 0.5}})
    jobs.application, jobs.parameters = ["", ""], ["", ""]
    assert not engine.obstacle(jobs, sd, 1, interference=factors)
    jobs.application, jobs.parameters = ["simulation", ""], ["data=static", ""]
    assert "interference" in engine.obstacle(jobs, sd, 1, interference=factors)
    assert "application simulation" in engine.obstacle(jobs, DromShare(), 1)
    assert not engine.obstacle(jobs, Easy(), 1, grain, interference=factors)
    jobs.parameters = ["", ""]
    assert not engine.obstacle(jobs, sd, 1)
    monkeypatch.setattr(policies, "SD_FIELDS", policies.SD_FIELDS - {"mates"})
    assert not engine.obstacle(jobs, sd, 1)
    assert "mates=3" in engine.obstacle(jobs, SlowdownDriven(mates=3), 1)


def test_simulate_uses_the_requested_engine(tmp_path: Path) -> None:
    write_workload(small(), tmp_path / "w.parquet")
    command = ["simulate", str(tmp_path / "w.parquet"), "--policy", "easy", "--nodes", "2", "-o", str(tmp_path / "run")]
    command.append("--replace")
    for name, made_by in (("auto", "compiled"), ("compiled", "compiled"), ("python", "python")):
        said = CliRunner().invoke(tracebed, [*command, "--engine", name])
        assert said.exit_code == 0, said.output
        assert Run.load(tmp_path / "run").info.engine == made_by
    said = CliRunner().invoke(
        tracebed, [*(arg if arg != "easy" else "sd" for arg in command), "--engine", "compiled", "--priority", "aging"]
    )
    assert isinstance(said.exception, InputError) and "priority aging" in str(said.exception)


def test_many_different_speedup_functions_run_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    table: dict[str, Any] = {"kind": "malleable", "nodes_max": 5, "speedup": "downey"}
    workload = Workload(small().table.assign(**table, speedup_parameters=["3 1", "3 0.5"]))
    assert predict(workload, [NodeFacts(name, 1) for name in "abcde"], "pref").info.engine == "compiled"
    monkeypatch.setattr(engine, "MAX_SPEEDUP_VALUES", 9)
    assert "speedup functions" in engine.obstacle(Jobs.of(workload), Pref(), 5)


def test_progress_is_reported_and_interrupts_are_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "INSTANTS", 1)
    told: list[int] = []
    predict(small(), NODES, "easy", on_progress=told.append)
    assert told == sorted(told) and set(told) == {1, 2}
    told.clear()
    workload = Workload(small().table.assign(nodes=1, partition=["b", "a"]))
    predict(workload, partitions("a", "b"), "easy", on_progress=told.append)
    assert told == sorted(told) and set(told) == {1, 2}

    def interrupt(submitted: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict(small(), NODES, "easy", on_progress=interrupt)
