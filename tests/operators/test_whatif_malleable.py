"""What malleability would bring: which jobs, at which sizes; the effect, its interval, and the answer in words."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tracebed.api as tb
from tests.operators.test_whatif import logged
from tests.testbeds.test_calibrate import calibration, estimate
from tests.validation.test_schemas import problems
from tracebed.converters.speedup import amdahl_speedup, downey_speedup
from tracebed.ground.display import effect
from tracebed.ground.errors import ExitCode, InputError
from tracebed.operators.whatif import resizing
from tracebed.operators.whatif.classes import ALL, Answer, shares_of
from tracebed.operators.whatif.conditions import jobs_where
from tracebed.operators.whatif.log import Log
from tracebed.operators.whatif.malleable import (
    MEASURED,
    MODELS,
    SEEDS,
    Candidates,
    Malleability,
    Malleable,
    candidates_of,
    resize_costs,
)
from tracebed.operators.whatif.members import Held, Predicted, Side
from tracebed.operators.whatif.pictures import pictures
from tracebed.operators.whatif.resizing import MALLEABLE, RIGID, Resizing
from tracebed.operators.whatif.shares import percent
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.slurm.conf import of_lines
from tracebed.slurm.conf_lines import lines_of
from tracebed.slurm.database import Association, Database, Limits, Qos
from tracebed.slurm.layer_settings import unsuitable
from tracebed.slurm.machine import SlurmCluster

Call = Callable[..., tuple[int, str, str]]
CONF = """SchedulerParameters=bf_interval=30
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PriorityType=priority/basic
NodeName=n[1-16] CPUs=8
PartitionName=batch Nodes=n[1-12] Default=YES OverSubscribe=EXCLUSIVE
PartitionName=long Nodes=n[13-16]
"""


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    path = tmp_path / "slurm.conf"
    path.write_text(CONF)
    return path


def cluster_at(conf: Path) -> SlurmCluster:
    cluster = of_lines(lines_of(conf), conf, plain=True).cluster
    assert cluster is not None
    return cluster


def jobs(*nodes: int, **columns: Any) -> tb.Workload:
    table = pd.DataFrame({"job_id": [str(at) for at in range(len(nodes))], "nodes": nodes, "cores_per_node": 8})
    table = table.assign(submit_time=0.0, run_time=3600.0, time_limit=7200.0, partition="batch").assign(**columns)
    return tb.Workload(table)


def drawn(conf: Path, count: int = 300, load: float = 1.0) -> tb.Workload:
    """Return the log of a cluster that is a simulated Slurm: jobs of several nodes in two partitions."""
    rng = np.random.default_rng(3)
    table = pd.DataFrame({"job_id": [str(number) for number in range(count)]})
    table["submit_time"] = np.round(np.cumsum(rng.exponential(600.0 / load, count)))
    table["run_time"] = np.round(rng.lognormal(7.0, 0.8, count)) + 1
    table["time_limit"] = 60.0 * np.ceil(table["run_time"] * rng.uniform(1.0, 4.0, count) / 60)
    table["partition"] = rng.choice(["batch", "long"], count, p=[0.8, 0.2])
    batch = table["partition"] == "batch"
    table["nodes"] = np.where(batch, rng.choice([1, 2, 4, 8], count), 1)
    table["cores_per_node"] = np.where(batch, 8, rng.choice([1, 2, 4], count))
    return logged(tb.Workload(table), conf, 5)


# -- the text


def test_a_text_names_shares_policies_and_seeds() -> None:
    assert Malleable.parse("share=0.3") == Malleable((0.3,), ("dmr",), SEEDS, "", 10, 22.05)
    found = Malleable.parse("share=0..1/0.25, policy=dmr+pref+min, seed=1..3+8, where=nodes>=4 and qos=a, interval=5")
    assert found.shares == (0.0, 0.25, 0.5, 0.75, 1.0)
    assert found.policies == ("dmr", "pref", "min")
    assert found.seeds == (1, 2, 3, 8)
    assert (found.where, found.interval_s, found.sweep) == ("nodes>=4 and qos=a", 5, True)
    assert len(found.cells) == 12


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("policy=dmr", "the share is missing"),
        ("share=0.3,seed=0.5", "'0.5' is not a whole number"),
        ("share=1.5", "malleable share"),
        ("share=0", "no share is above 0"),
        ("share=0..1", "has no step"),
        ("share=0..1/0", "too small a step"),
        ("share=0.3+0.3", "share has a value twice"),
        ("share=a", "'a' is not a number"),
        ("share=0.3,policy=dmrr", "malleable policy"),
        ("share=0.3,polic=dmr", "'polic=dmr' is not one of share, policy, seed, where, interval, release"),
        ("share=0.3,share=0.4", "share is given twice"),
        ("share=0.3,interval=0", "malleable interval"),
        ("share=0.3,release=23.02", "the rules of release 23.02 are unknown"),
        ("share=0..1/0.005,policy=dmr+pref", "more than 200 shares x policies"),
    ],
)
def test_an_invalid_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        Malleable.parse(text)
    assert message in str(error.value)


def test_the_number_of_simulations_is_known_before() -> None:
    assert Malleable.parse("share=0.3,seed=1..6").simulations(16) == 2 * 2 * 6
    assert Malleable.parse("share=0.3,seed=1..6").simulations(3) == 2 * 2 * 6 + 4
    assert Malleable.parse("share=0.3,seed=1..5").simulations(16) == 2 * 2 * 10
    assert Malleable.parse("share=0..1/0.5,policy=dmr+min,seed=1..6").simulations(16) == 4 * 2 * 6


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("1..6", [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6)]),
        (
            "1..5",
            [(1, 1), (1, 0), (2, 2), (2, 6), (3, 3), (3, 7), (4, 4), (4, 8), (5, 5), (5, 9)],
        ),
        ("4", [(4, 4), (4, 0), (4, 1), (4, 2), (4, 3), (4, 5)]),
        ("4294967295+0", [(4294967295, each) for each in (4294967295, 1, 2)] + [(0, each) for each in (0, 3, 4)]),
    ],
)
def test_few_seeds_have_several_draws_of_which_the_first_is_the_seed(text: str, pairs: list[tuple[int, int]]) -> None:
    found = Malleable.parse(f"share=0.3,seed={text}")
    assert found.pairs == pairs
    assert found.draws == len(pairs) // len(found.seeds)


# -- which jobs


def test_conditions_choose_jobs() -> None:
    log = jobs(1, 2, 4, 8, partition=["batch", "long", "batch", "gpu"], run_time=[60, 600, 7200, 90000])
    assert jobs_where(log, "").tolist() == [True] * 4
    assert jobs_where(log, "nodes>=4 and partition=batch").tolist() == [False, False, True, False]
    assert jobs_where(log, "partition=batch|gpu").tolist() == [True, False, True, True]
    assert jobs_where(log, "partition!=batch|gpu").tolist() == [False, True, False, False]
    assert jobs_where(log, "cores=16|64").tolist() == [False, True, False, True]
    assert jobs_where(log, "nodes!=1|8").tolist() == [False, True, True, False]
    assert jobs_where(log, "run_time>10m and run_time<=1d").tolist() == [False, False, True, False]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes", "is not a condition"),
        ("size>3", "'size' is unknown"),
        ("nodes>=many", "'many' is not a number"),
        ("run_time>=1w", "'1w' is not a time"),
        ("partition>=batch", ">= compares one number"),
        ("partition!=btach", "no job has partition btach (the log has batch)"),
        ("partition=batch|gpu", "no job has partition gpu"),
        ("account=chem", "unless the log is read with its names"),
        ("nodes>=nan", "'nan' is not a number"),
        ("nodes>=2|4", ">= compares one number"),
    ],
)
def test_an_invalid_condition_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        jobs_where(jobs(1), text)
    assert message in str(error.value)


def test_jobs_that_cannot_be_malleable_are_counted_with_the_reason(conf: Path) -> None:
    log = jobs(
        *(2, 2, 2, 2, 1, 1, 1, 4, 4, 2),
        deadline=[90.0] + [math.nan] * 9,
        spread=[0, 1] + [0] * 8,
        extra_het_job=["", "", "h", *[""] * 7],
        gres=["", "", "", "gpu:1", "gpu:1", *[""] * 5],
        partition=["batch"] * 6 + ["long"] * 3 + ["batch"],
        reservation=[""] * 9 + ["maintenance"],
    )
    found = candidates_of(log, cluster_at(conf), release=26.05)
    assert found.rows.tolist() == [3, 5, 7, 8]
    assert found.least.tolist() == [1, 1, 1, 1]
    assert found.most.tolist() == [2, 12, 4, 4]  # GRES and shared nodes: no growth; else up to the partition
    counts = [note.partition(" of 10 jobs cannot be malleable: they ") for note in found.notes[:5]]
    assert [(count, why) for count, _, why in counts] == [
        ("1", "have a deadline"),
        ("1", "are components of heterogeneous jobs"),
        ("1", "have cores that may lie on any number of nodes (no --ntasks-per-node)"),
        ("1", "run in an advance reservation"),
        ("2", "can neither shrink (one node) nor grow (nodes that jobs share, GRES, no other node)"),
    ]


@pytest.mark.parametrize(
    ("release", "able", "kinds"),
    [
        (22.05, [1, 2, 3, 5], {"beyond their requested size (nodes that jobs share, GRES)": 1, "shrink (": 3}),
        (24.11, [0, 1, 2, 3, 5], {"grow again (nodes that jobs share, GRES)": 2, "shrink (": 1}),
        (26.05, [0, 1, 2, 3, 5], {"grow again (nodes that jobs share, GRES)": 2, "shrink (": 1}),
    ],
)
def test_what_slurm_permits_depends_on_its_release(
    conf: Path, release: float, able: list[int], kinds: dict[str, int]
) -> None:
    gres, parts = ["gpu:1", *[""] * 5], [*["batch"] * 4, "long", "long"]
    log = jobs(2, 1, 2, 8, 1, 2, gres=gres, partition=parts)  # GRES; three of whole nodes; one, and two shared nodes
    found = candidates_of(log, cluster_at(conf), release=release)
    assert found.rows.tolist() == able
    assert any("Slurm before 24.11 loses" in note for note in found.notes) == (release < 24.11)
    for text, count in kinds.items():
        assert [note.partition(" ")[0] for note in found.notes if text in note and "jobs that can" in note] == [
            str(count)
        ]


def test_no_job_of_whole_nodes_grows_on_a_cluster_with_gpus(tmp_path: Path) -> None:
    path = tmp_path / "slurm.conf"
    path.write_text(CONF.replace("CPUs=8", "CPUs=8 Gres=gpu:1").replace("NodeName", "GresTypes=gpu\nNodeName", 1))
    found = candidates_of(jobs(2, 4), cluster_at(path), release=24.11)
    assert found.most.tolist() == [2, 4]
    assert any(note.startswith("2 of 2 jobs that can be malleable shrink, but do not") for note in found.notes)
    with pytest.raises(InputError, match="2 of 2 jobs cannot be malleable: they can neither shrink"):
        candidates_of(jobs(2, 4), cluster_at(path))
    linear = path.read_text().replace("select/cons_tres\nSelectTypeParameters=CR_Core", "select/linear")
    path.write_text(linear)
    assert (candidates_of(jobs(2, 4), cluster_at(path)).most > np.array([2, 4])).all()


def test_conditions_are_noted_and_may_leave_no_job(conf: Path) -> None:
    log = jobs(1, 2, 4)
    found = candidates_of(log, cluster_at(conf), "nodes>=2")
    assert found.rows.tolist() == [1, 2]
    assert found.notes[0] == "2 of 3 jobs satisfy `nodes>=2`"
    with pytest.raises(InputError, match="no job can be malleable: 0 of 3 jobs satisfy `nodes>=20`"):
        candidates_of(log, cluster_at(conf), "nodes>=20")


def test_jobs_that_do_not_start_in_the_backtest_cannot_be_malleable(conf: Path) -> None:
    found = candidates_of(jobs(2, 2, 2), cluster_at(conf), starts=np.array([True, False, True]))
    assert found.rows.tolist() == [0, 2]
    assert found.notes[0] == "1 of 3 jobs cannot be malleable: they do not start in the backtest"


@pytest.mark.parametrize(
    ("lines", "settings"),
    [
        ("SchedulerParameters=Permit_Job_Expansion\nAccountingStorageType=accounting_storage/slurmdbd", ()),
        (
            "SchedulerParameters=disable_job_shrink",
            (
                "lacks SchedulerParameters=permit_job_expansion",
                "has SchedulerParameters=disable_job_shrink",
                "lacks AccountingStorageType=accounting_storage/slurmdbd",
            ),
        ),
    ],
)
def test_settings_without_which_slurm_does_not_resize_are_noted(
    tmp_path: Path, lines: str, settings: tuple[str, ...]
) -> None:
    path = tmp_path / "slurm.conf"
    path.write_text(f"{lines}\nNodeName=n[1-4] CPUs=8\nPartitionName=batch Nodes=ALL Default=YES\n")
    found = unsuitable({line.key.lower(): line.value for line in lines_of(path)}, cluster_at(path))
    assert [note.removeprefix("the slurm.conf ").partition(", with")[0] for note in found] == [*settings]
    assert not any("permit_job_expansion" in text for text in of_lines(lines_of(path), path, plain=True).differences)


@pytest.mark.parametrize(
    ("enforced", "priority", "noted"),
    [
        ("limits,qos", "multifactor", ["user u1", "QOS long"]),
        ("limits,qos", "basic", []),
        ("associations", "multifactor", []),
    ],
)
def test_limits_that_count_merged_jobs_are_noted(
    tmp_path: Path, enforced: str, priority: str, noted: list[str]
) -> None:
    path = tmp_path / "slurm.conf"
    lines = ["SchedulerParameters=permit_job_expansion", "AccountingStorageType=accounting_storage/slurmdbd"]
    lines += [f"AccountingStorageEnforce={enforced}", f"PriorityType=priority/{priority}", "PriorityWeightAge=100"]
    path.write_text("\n".join([*lines, "NodeName=n[1-4] CPUs=8", "PartitionName=batch Nodes=ALL Default=YES", ""]))
    database = Database(
        associations=(
            Association(account="chem"),
            Association(account="chem", user="u1", limits=Limits(user_jobs=2)),
            Association(account="chem", user="u2", limits=Limits(user_submit=9)),
        ),
        qos=(Qos(name="normal"), Qos(name="long", limits=Limits(account_jobs=0))),
    )
    values = {line.key.lower(): line.value for line in lines_of(path)}
    found = unsuitable(values, cluster_at(path).model_copy(update={"database": database}))
    assert [note.partition("(")[2].partition(")")[0] for note in found] == ([", ".join(noted)] if noted else [])


def test_a_share_that_is_no_job_is_refused(conf: Path) -> None:
    candidates = candidates_of(jobs(2, 2, 4), cluster_at(conf))
    candidates.check((0.0, 0.2))
    with pytest.raises(InputError, match=r"the share 0.1 of 3 jobs that can be malleable is no job"):
        candidates.check((0.1,))


def test_a_seed_draws_the_jobs_and_a_larger_share_has_them_too(conf: Path) -> None:
    log = jobs(*[2] * 40)
    candidates = candidates_of(log, cluster_at(conf))
    few, many = (Malleability(candidates, share, 1, "amdahl", "dmr", 10) for share in (0.25, 0.5))
    assert few.marked(40).sum() == 10
    assert (few.marked(40) <= many.marked(40)).all()
    assert (few.marked(40) != replace(few, seed=2).marked(40)).any()
    made = few.applied(log)
    assert ((made.texts("kind") == "malleable").to_numpy() == few.marked(40)).all()
    assert Counter(made.texts("speedup")) == {"linear": 30, "amdahl": 10}
    assert made.ints("nodes").tolist() == [2] * 40
    assert made.provenance.steps[-1].seed == 1


def test_both_models_have_the_same_sizes_and_are_half_efficient_at_the_largest(conf: Path) -> None:
    log = jobs(2, 8)
    candidates = candidates_of(log, cluster_at(conf))
    columns = {}
    for model in MODELS:
        made = Malleability(candidates, 1.0, 0, model, "dmr", 10).applied(log)
        columns[model] = made.table[["nodes_min", "nodes_pref", "nodes_max"]]
        assert set(made.texts("speedup")) == {model}
    assert columns["amdahl"].equals(columns["downey"])
    assert candidates.fraction.tolist() == [0.95, 0.965]
    assert candidates.parallelism.tolist() == [10.5, 15.0]
    for average in candidates.parallelism:
        size = 2 * average - 1
        assert float(downey_speedup(size, average, 0.0)) / size == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("size", [20, 100, 1000])
def test_the_two_models_enclose_those_with_less_variance(size: int) -> None:
    fraction, average, nodes = 1 - 1 / size, (size + 1) / 2, np.arange(1.0, size + 1)
    for requested in (3, size // 5, size // 4):
        ends = [
            np.asarray(amdahl_speedup(nodes, fraction)) / amdahl_speedup(requested, fraction),
            downey_speedup(nodes, average, 0.0) / downey_speedup(requested, average, 0.0),
        ]
        for sigma in (0.25, 0.5, 0.75):
            speed = downey_speedup(nodes, average, sigma) / downey_speedup(requested, average, sigma)
            assert (speed >= 0.98 * np.min(ends, axis=0)).all()
            assert (speed <= 1.02 * np.max(ends, axis=0)).all()


def test_only_the_costs_of_resizes_are_taken_from_a_calibration() -> None:
    given = {"launch_s": 3.0, "end_s": 2.0, "expand_s": 0.5, "release_s": 0.7, "reconfiguration_s": 4.0}
    assert resize_costs(given) == Overheads(expand_s=0.5, release_s=0.7, reconfiguration_s=4.0)


# -- the answer


def member(wait: list[float], run: list[float] | None = None, killed: tuple[int, ...] = ()) -> Predicted:
    """Return a member whose jobs have one node of 8 cores."""
    count = len(wait)
    run_time = np.array(run or [100.0] * count)
    start = np.array(wait)
    held = Held(np.arange(count), start, start + run_time, np.ones(count, dtype=np.int64), np.full(count, 8))
    dead = np.isin(np.arange(count), killed)
    empty: Any = np.full(count, "", dtype=object)
    return Predicted(start, run_time, np.full(count, 8.0), np.zeros(1), np.zeros(1), Counter(), {}, empty, dead, held)


def answer(
    before: Callable[[int], Predicted],
    after: Callable[[Side, int], Predicted],
    text: str = "share=0.5",
    logged_wait: float = 100.0,
) -> Resizing:
    """Return the answer for four jobs, of which all can be malleable."""
    asked = Malleable.parse(text)
    workload = jobs(2, 2, 2, 2, run_time=100.0, logged_start=logged_wait, logged_end=logged_wait + 100.0)
    log = Log(workload, np.ones(4, dtype=bool), 0.0, 0, ())
    sizes = np.full(4, 2)
    candidates = Candidates(np.arange(4), sizes // 2, sizes * 2, np.full(4, 0.95), np.full(4, 10.5), ())
    machine: Any = None  # no simulation
    side = Side(machine, {}, np.full(4, np.inf))
    found, _ = resizing.resizing(
        log,
        [before(seed) for seed in SEEDS],
        side,
        asked,
        candidates,
        (MEASURED, "measured here"),
        lambda todo: [before(seed) if each.malleable is None else after(each, seed) for each, seed in todo],
    )
    return found


def marks(side: Side) -> np.ndarray[Any, Any]:
    assert side.malleable is not None
    return side.malleable.marked(4)


def faster(by: float, costs: float = 0.0) -> Callable[[Side, int], Predicted]:
    """Return the side with resizes: malleable jobs wait shorter by a share, which costs reduce, and run longer."""

    def predicted(side: Side, seed: int) -> Predicted:
        own, seconds = marks(side), side.costs.expand_s
        wait = np.where(own, 100.0 * (1 - by + (costs if seconds else 0.0)), 100.0)
        return member((wait + seed).tolist(), np.where(own, 150.0, 100.0).tolist())

    return predicted


def steady(seed: int) -> Predicted:
    return member([100.0 + seed] * 4)


def test_the_effect_is_that_of_pairs_with_the_same_jobs() -> None:
    found = answer(steady, faster(0.8))
    (cell,) = found.cells
    assert (cell.jobs, cell.candidates, cell.every_job, cell.seeds) == (2, 4, 4, 6)
    every, rigid, malleable = cell.classes
    assert [each.title for each in cell.classes] == [ALL, RIGID, MALLEABLE]
    assert every.effect is not None and rigid.effect is not None and malleable.effect is not None
    assert every.effect.change == pytest.approx(-40.0)
    assert malleable.effect.change == pytest.approx(-80.0)
    assert (rigid.effect.low, rigid.effect.high) == (0.0, 0.0)
    assert every.answer is Answer.FALL
    assert every.shares[0] == pytest.approx(-40 / 102.5)
    assert cell.models["amdahl"] == cell.models["downey"] == pytest.approx(every.shares, rel=0.05)
    figures = {each.name: each for each in cell.figures}
    run_time = figures["mean run time, malleable jobs"]
    assert (run_time.before, run_time.after) == (100.0, 150.0)
    of_all, of_rigid, of_malleable = cell.responses
    assert of_rigid.answer is Answer.EQUAL
    assert of_all.changed_s == pytest.approx(every.changed_s + 125)
    assert of_malleable.effect is not None
    assert of_malleable.effect.change == pytest.approx(-80 + 50)
    assert figures["core hours, all jobs"].after == pytest.approx(8 * (2 * 150 + 2 * 100) / 3600)
    assert figures["node hours, malleable jobs"].before == pytest.approx(2 * 100 / 3600)


def test_seeds_beyond_the_backtest_are_simulated_as_the_cluster_was_and_judge_nothing() -> None:
    found = answer(steady, faster(0.8), "share=0.5,seed=4..9", logged_wait=102.5)
    every = found.cells[0].every
    assert every.effect is not None
    assert every.effect.base == pytest.approx(106.5)
    assert every.predicted_s == pytest.approx(102.5)
    assert every.effect.change == pytest.approx(-40.0)


def test_the_sentences_name_effect_costs_and_both_kinds_of_jobs() -> None:
    found = answer(steady, faster(0.8, costs=0.2))
    first, costs, rigid, malleable, *responses = found.sentences
    assert first == (
        "on this cluster, with 50 % of the 4 jobs that can be malleable (2 of all 4) under dmr on Slurm 22.05, the "
        "mean wait would fall by 29 % (29 to 30 %, over 6 seeds and the speedup models amdahl and downey); the model's "
        "own error on this log is -2.4 to +2.5 %"
    )
    assert found.survival == pytest.approx(0.75)
    assert costs == (
        "75 % of the fall survives at the costs measured here: without costs of resizes, it would fall by 39 %"
    )
    assert rigid == "waits of jobs that stay rigid do not change"
    assert malleable.startswith("waits of malleable jobs fall by 59 % (")
    assert [text.partition(" (")[0] for text in responses] == [
        "response times of all jobs fall by 2.5 %",
        "response times of jobs that stay rigid do not change",
        "response times of malleable jobs fall by 4.9 %",
    ]
    assert found.words == ("50 % of the 4 jobs that can be malleable (2 of all 4) under dmr on Slurm 22.05",)


def test_a_fall_that_grows_with_the_costs_survives_as_a_whole() -> None:
    found = answer(steady, faster(0.8, costs=-0.1))
    assert found.survival == pytest.approx(1.125)
    assert found.sentences[1].startswith("the fall survives at the costs measured here: without costs of resizes, it")


def test_a_shorter_wait_with_longer_run_times_is_said_to_lengthen_responses() -> None:
    def slower(side: Side, seed: int) -> Predicted:
        own = marks(side)
        return member((np.where(own, 50.0, 100.0) + seed).tolist(), np.where(own, 400.0, 100.0).tolist())

    sentences = answer(steady, slower).sentences
    assert "the mean wait would fall by 24 %" in sentences[0]
    assert any(text.startswith("response times of malleable jobs rise by 123 %") for text in sentences)


def test_there_is_no_answer_if_the_error_of_the_model_exceeds_the_effect() -> None:
    found = answer(steady, faster(0.8), logged_wait=55.0)
    first, *others = found.sentences
    assert first.startswith(
        "with 50 % of the 4 jobs that can be malleable (2 of all 4) under dmr on Slurm 22.05: no answer: the error"
    )
    assert "exceeds the effect (-39 %, -40 to -38 %)" in first
    assert not any("survives" in text for text in others)
    assert math.isnan(found.survival)


def test_there_is_no_answer_if_the_model_does_not_fit_the_log_whatever_the_effect() -> None:
    found = answer(steady, faster(0.99), "share=1", logged_wait=30.0)
    every = found.cells[0].every
    assert abs(math.log1p(every.shares[0])) > every.error > math.log(2)
    assert every.answer is Answer.ERROR
    assert found.sentences == [
        "with 100 % of the 4 jobs that can be malleable (4 of all 4) under dmr on Slurm 22.05: no answer: the model "
        "does not fit this log: its own error is -71 to +242 %, beyond a factor of 2"
    ]


def test_there_is_no_answer_if_chance_exceeds_the_effect() -> None:
    def either(side: Side, seed: int) -> Predicted:
        return member([100.0 + seed + (20 if seed % 2 else -20)] * 4)

    assert "no answer: chance exceeds the effect" in answer(steady, either).sentences[0]


def test_five_seeds_have_two_draws_each() -> None:
    found = answer(steady, faster(0.8), "share=0.5,seed=1..5")
    (cell,) = found.cells
    assert (cell.seeds, cell.draws, cell.every.answer) == (5, 2, Answer.FALL)
    assert cell.every.effect is not None
    assert cell.every.effect.pairs == 5 * 2 * 2
    assert cell.every.effect.base == pytest.approx(100 + sum(range(10)) / 10)  # each draw once
    over = "over 5 seeds, each with 2 draws of Slurm's phases and submissions, and the speedup models amdahl and downey"
    assert over in found.sentences[0]
    assert cell.to_json()["draws"] == 2


def test_the_draws_of_a_seed_have_the_same_malleable_jobs() -> None:
    seen = dict[int, set[tuple[bool, ...]]]()

    def after(side: Side, draw: int) -> Predicted:
        assert side.malleable is not None
        seen.setdefault(side.malleable.seed, set()).add(tuple(marks(side).tolist()))
        return faster(0.8)(side, draw)

    found = answer(steady, after, "share=0.5,seed=7")
    assert (found.cells[0].seeds, found.cells[0].draws) == (1, 6)
    assert {seed: len(own) for seed, own in seen.items()} == {7: 1}
    assert found.sentences[0].partition("(2")[2].partition("%, ")[2].partition(")")[0] == (
        "over 6 draws of Slurm's phases and submissions and the speedup models amdahl and downey, all with the same "
        "malleable jobs"
    )


def test_a_log_without_waits_has_no_answer() -> None:
    found = answer(lambda seed: member([0.0] * 4), lambda side, seed: member([1.0] * 4), logged_wait=0.0)
    assert found.sentences[0].endswith("no answer: no job waits, in the log or as the cluster was")


def test_equal_waits_are_said_to_be_equal() -> None:
    found = answer(steady, lambda side, seed: steady(seed))
    assert found.sentences[0].endswith("no wait would change (over 6 seeds and the speedup models amdahl and downey)")
    assert found.staircase is not None
    assert (found.staircase["before"] == found.staircase["after"]).all()


def test_jobs_that_reach_their_limit_because_of_resizes_are_no_gain() -> None:
    found = answer(steady, lambda side, seed: member([50.0] * 4, killed=(0,)))
    (cell,) = found.cells
    assert (cell.killed, cell.killed_share) == (1.0, 0.25)
    assert found.sentences == [
        "with 50 % of the 4 jobs that can be malleable (2 of all 4) under dmr on Slurm 22.05: no answer: on average, "
        "1.0 jobs with 25 % of the core hours reach their limit because of the resizes"
    ]
    assert (
        found.notes[-1]
        == "dmr, 50 %: on average, 1.0 malleable jobs (25 % of the core hours) reach their time limit due to resizes"
    )


def test_sums_that_differ_by_rounding_are_equal() -> None:
    def rounded(side: Side, seed: int) -> Predicted:
        return member([100.0 + seed] * 4, [100.0 * (1 + 1e-14)] * 4)

    found = answer(steady, rounded)
    assert {each.text for each in found.cells[0].figures} == {"equal", "-"}
    assert {each.effect_text for each in found.cells[0].responses} == {"equal"}


def test_an_end_of_an_interval_that_differs_from_0_by_rounding_is_0() -> None:
    before = np.array([1.0, 1.0, 1.0])
    assert shares_of(before, np.array([1.0 + 4e-16, 1.0 + 4e-16, 1.5]))[1] == 0.0
    assert shares_of(before, np.array([1.0, 1.0, 1.0 + 4e-16])) == (0.0, 0.0, 0.0)
    assert effect(0.5, 1e-7, 0.9, 1.0) == "+50 % (+0 to +90)"
    assert (percent(1e-7), percent(-1e-7), percent(1e-5)) == ("0", "0", "0.001")


def test_a_job_that_never_starts_holds_no_work() -> None:
    def rejected(side: Side | None, draw: int) -> Predicted:
        own = member([50.0, 50.0, 50.0, math.nan], [100.0, 100.0, 100.0, math.nan], killed=() if side is None else (0,))
        return replace(own, cores=np.array([8.0, 8.0, 8.0, 0.0]))

    (cell,) = answer(lambda draw: rejected(None, draw), rejected).cells
    assert cell.killed_share == pytest.approx(1 / 3)
    assert cell.much


def test_jobs_that_reach_their_limit_on_both_sides_count_not() -> None:
    found = answer(lambda seed: member([100.0] * 4, killed=(0,)), lambda side, seed: member([50.0] * 4, killed=(0,)))
    assert found.cells[0].killed == 0


def test_a_sweep_has_a_cell_for_each_policy_and_share_and_no_free_resizes() -> None:
    seen = list[tuple[str, float, float]]()

    def after(side: Side, seed: int) -> Predicted:
        assert side.malleable is not None
        seen.append((side.malleable.policy, side.malleable.share, side.costs.expand_s))
        return faster(0.4 if side.malleable.policy == "dmr" else 0.8)(side, seed)

    found = answer(steady, after, "share=0..1/0.5,policy=dmr+pref")
    assert set(seen) == {(policy, share, 0.416) for policy in ("dmr", "pref") for share in (0.5, 1.0)}
    assert len(seen) == 4 * 2 * 6
    assert [(each.policy, each.share) for each in found.cells] == [
        ("dmr", 0.5),
        ("dmr", 1.0),
        ("pref", 0.5),
        ("pref", 1.0),
    ]
    assert (found.free, found.words, found.staircase) == (None, (), None)
    assert [text.partition(",")[2].partition(" (")[0] for text in found.sentences] == [
        " with 100 % of the 4 jobs that can be malleable",
        " with 100 % of the 4 jobs that can be malleable",
    ]
    rows = resizing.rows_of(found)
    assert [row[:3] for row in rows] == [
        ["50 %", "dmr", "2"],
        ["100 %", "dmr", "4"],
        ["50 %", "pref", "2"],
        ["100 %", "pref", "4"],
    ]
    assert rows[1][4] == "-"  # no job stays rigid


@pytest.mark.parametrize(("end", "first"), [(2.0, 1.0), (0.5, 0.0)])
def test_the_staircase_is_that_of_the_day_of_the_log_that_resizes_change_most(end: float, first: float) -> None:
    day = 86400.0
    starts = np.array([0.0, day + 10, day + 10, 2 * day + 10])

    def side(nodes: int) -> Predicted:
        held = Held(np.arange(4), starts, starts + 490.0, np.array([1, nodes, nodes, 1]), np.full(4, 8))
        return replace(member([100.0] * 4), held=held)

    found = answer(lambda seed: side(2), lambda _, seed: side(3), "share=1", end * day).staircase
    assert found is not None
    assert found["time"].iloc[0] == first * day
    if first:
        assert found.to_dict("list") == {
            "time": [day, day + 10, day + 500, 2 * day],
            "before": [0.0, 4.0, 0.0, 0.0],
            "after": [0.0, 6.0, 0.0, 0.0],
        }


# -- on a log, with the layer


@pytest.fixture(scope="module")
def of_log(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tb.Workload]:
    """Return a slurm.conf, and a log of its cluster."""
    conf = tmp_path_factory.mktemp("cluster") / "slurm.conf"
    conf.write_text(CONF)
    return conf, drawn(conf)


@pytest.fixture(scope="module")
def half(of_log: tuple[Path, tb.Workload]) -> tb.WhatIf:
    conf, log = of_log
    return tb.whatif_malleable(log, conf, "share=0.5,policy=dmr,release=26.05", members=6, workers=1)


def test_resizes_change_the_waits_of_a_log(half: tb.WhatIf) -> None:
    found = half.malleable
    assert found is not None and found.free is not None
    (cell,) = found.cells
    assert cell.jobs == round(cell.candidates / 2)
    figures = {each.name: each for each in cell.figures}
    assert figures["expansions"].before == figures["shrinks"].before == 0
    assert figures["expansions"].after > 0 and figures["shrinks"].after > 0
    assert cell.every.effect is not None and cell.every.effect.low != cell.every.effect.high
    assert cell.models["amdahl"] != cell.models["downey"]
    assert cell.every.shares != found.free.every.shares  # costs delay resizes
    assert half.classes[0].effect == cell.every.effect
    assert {each.by for each in half.classes} >= {"all", "partition", "size"}
    assert half.change == found.words
    assert half.comparison == (
        "changed and effect are of 6 members, predicted and error are of the 6 members of the backtest"
    )
    assert any("permit_job_expansion" in note for note in half.notes)
    day = found.staircase
    assert day is not None
    assert day["time"].is_monotonic_increasing
    assert (day["before"] != day["after"]).any()
    assert day["time"].iloc[-1] - day["time"].iloc[0] <= 86400


def test_the_rows_of_rigid_and_malleable_jobs_add_up_to_those_of_all(half: tb.WhatIf) -> None:
    assert half.malleable is not None
    every, rigid, malleable = half.malleable.cells[0].classes
    assert rigid.jobs + malleable.jobs == pytest.approx(every.jobs, abs=1)
    mean = (rigid.jobs * rigid.changed_s + malleable.jobs * malleable.changed_s) / every.jobs
    assert mean == pytest.approx(every.changed_s, rel=0.02)


def test_the_document_and_the_page_have_the_answer(half: tb.WhatIf, tmp_path: Path) -> None:
    assert problems(json.loads(json.dumps(half.to_json())), "tracebed-whatif-1.json") == []
    text = half.save(tmp_path / "answer").read_text()
    for part in ("A day of the malleable jobs", "Malleable jobs", "jobs that stay rigid", "without costs of resizes"):
        assert part in text
    assert half.sentences[0][1:].partition("; the model")[0] in text
    assert "the same with malleable jobs" in text
    assert (tmp_path / "answer" / "plots" / "staircase.csv").exists()


def test_the_axis_of_nodes_has_whole_numbers(half: tb.WhatIf) -> None:
    assert half.malleable is not None and half.malleable.staircase is not None
    day = half.malleable.staircase.assign(after=lambda table: table["after"].clip(upper=2), before=1)
    small = replace(half, malleable=replace(half.malleable, staircase=day))
    (axes,) = pictures(small)["staircase"][1].draw(6.0).axes
    ticks = axes.get_yticks()
    assert len(ticks) > 1
    assert (ticks == ticks.round()).all()


def test_the_same_text_gives_the_same_answer(of_log: tuple[Path, tb.Workload], half: tb.WhatIf) -> None:
    conf, log = of_log
    again = tb.whatif_malleable(log, conf, "share=0.5,policy=dmr,release=26.05", members=6, workers=1)
    assert again.to_json() == half.to_json()


def test_a_file_of_the_power_of_nodes_adds_their_energy(
    of_log: tuple[Path, tb.Workload], half: tb.WhatIf, tmp_path: Path
) -> None:
    """With equal watts at work and at rest, the energy is that of all nodes over the time of the log."""
    conf, log = of_log
    asked = "share=0.5,policy=dmr,release=26.05"
    (tmp_path / "power.yaml").write_text("power: {'n[1-16]': {busy_w: 250, idle_w: 250}}\n")
    (tmp_path / "more.yaml").write_text("power: {'n[1-16]': {busy_w: 350, idle_w: 250}}\n")
    flat, more = (
        tb.whatif_malleable(log, [conf, tmp_path / name], asked, members=6, workers=1).malleable
        for name in ("power.yaml", "more.yaml")
    )
    assert half.malleable is not None and flat is not None and more is not None
    known, even, own = ({each.name: each for each in one.cells[0].figures} for one in (half.malleable, flat, more))
    assert known == {name: figure for name, figure in even.items() if name != "energy of the nodes"}
    energy, work = even["energy of the nodes"], own["energy of the nodes"]
    lasts_h = (log.floats("logged_end").max() - log.floats("submit_time").min()) / 3600
    assert energy.before == pytest.approx(16 * 0.25 * lasts_h, rel=0.02)
    busy_h = own["core hours, all jobs"]
    assert work.before - energy.before == pytest.approx(0.1 * busy_h.before / 8)
    assert work.after - energy.after == pytest.approx(0.1 * busy_h.after / 8)


def test_the_costs_are_those_of_a_calibration(of_log: tuple[Path, tb.Workload], tmp_path: Path) -> None:
    conf, log = of_log
    slow = {name: estimate(300.0) for name in ("expand_s", "reconfiguration_s", "launch_s")}
    path = calibration(overheads=slow, name="slow").save(tmp_path / "slow.yaml")
    found = tb.whatif_malleable(log, conf, "share=0.5,release=26.05", calibration=path, members=6, workers=1).malleable
    assert found is not None and found.free is not None
    assert found.costs == Overheads(expand_s=300.0, reconfiguration_s=300.0)
    assert found.notes[0].startswith("resizes cost 300 s until an expansion, 300 s in which the job pauses, 0 s until")
    assert "of the calibration slow" in found.notes[0]
    own, free = found.cells[0].responses[-1], found.free.responses[-1]
    assert own.title == MALLEABLE
    assert own.changed_s > free.changed_s + 100


def test_jobs_that_the_layer_does_not_expand_are_noted(of_log: tuple[Path, tb.Workload], tmp_path: Path) -> None:
    _, log = of_log
    tiers = CONF.replace("Nodes=n[1-12]", "Nodes=n[1-16]").replace("Nodes=n[13-16]", "Nodes=n[13-16] PriorityTier=2")
    preempting = tmp_path / "slurm.conf"
    preempting.write_text(f"PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\n{tiers}")
    found = tb.whatif_malleable(log, preempting, "share=1,release=26.05", members=2, workers=1)
    assert found.malleable is not None
    text = f"{found.malleable.cells[0].jobs} malleable jobs not expanded: they may be preempted"
    assert f"dmr, 100 %, first seed: {text}" in found.notes


def test_a_sweep_is_a_table_and_a_picture(of_log: tuple[Path, tb.Workload], tmp_path: Path) -> None:
    conf, log = of_log
    found = tb.whatif_malleable(
        log, conf, "share=0..1/0.5,policy=dmr+min,where=nodes>=2,release=26.05", members=6, workers=1
    )
    assert found.malleable is not None
    assert len(found.malleable.cells) == 4
    assert found.change == ()
    assert [each.effect for each in found.classes] == [None] * len(found.classes)
    assert problems(json.loads(json.dumps(found.to_json())), "tracebed-whatif-1.json") == []
    page = found.save(tmp_path / "sweep")
    assert "Shares and policies" in page.read_text()
    table = pd.read_csv(tmp_path / "sweep" / "plots" / "sweep.csv")
    assert table["share"].tolist() == [0.0, 0.5, 1.0] * 2
    assert table.loc[table["share"] == 0, "effect"].tolist() == [0.0, 0.0]


def test_the_command_prints_the_table_and_the_answer(
    call: Call, of_log: tuple[Path, tb.Workload], half: tb.WhatIf
) -> None:
    conf, log = of_log
    tb.write(log, "log.parquet")
    code, out, err = call(
        "whatif", "log.parquet", str(conf), "--malleable", "share=0.5,release=26.05", "--perturb", "6"
    )
    assert code == ExitCode.OK
    assert half.sentences[0] in out
    assert "mean response time, malleable jobs (s)" in out
    assert f"backtest: {half.backtest}" in out
    assert "can neither shrink" in err
    assert "resizes cost 0.416 s until an expansion" in err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--malleable", "share=0.5", "--set", "bf_interval=3"), "--set does not apply with --malleable"),
        (("--malleable", "share=0.5", "--outages", "mtbf=30d,repair=2h"), "--outages does not apply with --malleable"),
        (("--calibration", "slurm.yaml"), "give --malleable, too"),
    ],
)
def test_options_that_contradict_malleable_jobs_are_refused(
    call: Call, of_log: tuple[Path, tb.Workload], more: tuple[str, ...], message: str
) -> None:
    conf, log = of_log
    tb.write(log, "log.parquet")
    Path("slurm.yaml").write_text("")
    code, _, err = call("whatif", "log.parquet", str(conf), *more)
    assert code == ExitCode.USAGE
    assert message in err
