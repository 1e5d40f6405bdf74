"""Applications assigned to jobs: exact shares within the classes of size and time of table 2 of the paper."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tracebed.cli import tracebed
from tracebed.converters.applications import (
    APPLICATIONS,
    CLASSES,
    ApplicationMix,
    Bounds,
    exact_counts,
    with_applications,
    with_parallel_shares,
)
from tracebed.converters.formats.reading import read_workload
from tracebed.converters.models.cirne import cirne
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError, Tolerated
from tracebed.orchestrator.scheduling.jobs import Jobs


def workload_of(nodes: list[int], run: list[float]) -> Workload:
    count = len(nodes)
    return Workload(
        pd.DataFrame(
            {
                "job_id": [str(i) for i in range(count)],
                "submit_time": np.arange(count, dtype=float),
                "run_time": run,
                "nodes": nodes,
            }
        )
    )


def test_the_shares_of_table_2_are_met_exactly() -> None:
    workload = with_applications(cirne(2000, seed=1), seed=3)
    assert Counter(workload.column("application")) == {
        "pils": 610,
        "stream": 616,
        "coreneuron": 710,
        "nest": 52,
        "alya": 12,
    }
    step = workload.provenance.steps[-1]
    assert (step.name, step.seed, step.counts["jobs of alya"], step.counts["jobs out of class"]) == (
        *("applications", 3),
        *(12, 0),
    )


def test_the_classes_of_table_2_are_kept() -> None:
    workload = cirne(3000, seed=2)
    sizes, times = Bounds.thirds(workload.floats("nodes")), Bounds.thirds(workload.floats("run_time"))
    table = with_applications(workload).table
    short = table["run_time"] <= times.medium
    assert short.mean() == pytest.approx(2 / 3, abs=0.01)
    for name in ("pils", "stream"):
        assert short[table["application"] == name].all()
    alya = table[table["application"] == "alya"]
    assert (alya["nodes"] <= sizes.small).all()
    assert (alya["run_time"] > times.medium).all()
    for name in ("coreneuron", "nest"):
        run_time = table[table["application"] == name]["run_time"]
        assert set(times.of(run_time.to_numpy())) == set(range(len(CLASSES)))
    assert set(table["application_parameters"]) == {""}


def test_the_seed_affects_the_assignment_but_not_the_counts() -> None:
    workload = cirne(500, seed=2)
    assert with_applications(workload, seed=1).sha256 == with_applications(workload, seed=1).sha256
    one, two = (with_applications(workload, seed=seed).column("application") for seed in (1, 2))
    assert Counter(one) == Counter(two)
    assert (one != two).mean() > 0.4


def test_other_applications_and_classes() -> None:
    workload = workload_of([1, 2, 4, 8] * 10, [10.0, 20.0, 30.0, 40.0] * 10)
    mix = [ApplicationMix("wide", 1.0, sizes=("high",)), ApplicationMix("rest", 3.0)]
    named = with_applications(workload, applications=mix, sizes=Bounds(2, 4)).table
    assert (named["application"] == "wide").tolist() == (named["nodes"] == 8).tolist()


def test_too_few_jobs_of_a_class_are_a_counted_warning() -> None:
    workload = workload_of([1] * 100, [60.0] * 100)  # equal run times: no job is in the class of long ones
    with pytest.warns(Tolerated, match=r"have too few jobs \(1 time\)"):
        named = with_applications(workload)
    assert Counter(named.column("application"))["alya"] == 1
    assert named.provenance.steps[-1].counts["jobs out of class"] == 1


def test_jobs_of_unknown_size_or_time_are_of_no_class() -> None:
    workload = workload_of([0] * 5 + [4] * 95, [float("nan")] * 10 + [float(i) for i in range(90)])
    with pytest.warns(Tolerated, match="10 times"):
        named = with_applications(workload)
    assert set(named.column("application")) <= {a.name for a in APPLICATIONS}
    with pytest.raises(InputError, match="no job has a known size"):
        with_applications(workload_of([1], [float("nan")]))


@given(
    st.integers(0, 5000),
    st.lists(st.floats(0.0, 1.0, allow_subnormal=False), min_size=1, max_size=6).filter(lambda shares: sum(shares) > 0),
)
def test_counts_add_up_and_are_within_one_of_their_share(jobs: int, shares: list[float]) -> None:
    counts = exact_counts(jobs, shares)
    assert sum(counts) == jobs
    for count, share in zip(counts, shares, strict=True):
        assert abs(count - jobs * share / sum(shares)) < 1 + 1e-6


@given(st.data())
def test_every_job_gets_one_and_shares_hold_whatever_the_jobs_are(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 60))
    nodes = data.draw(st.lists(st.integers(1, 8), min_size=count, max_size=count))
    run = data.draw(st.lists(st.sampled_from([1.0, 2.0, 3.0, 500.0]), min_size=count, max_size=count))
    seed = data.draw(st.integers(0, 99))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Tolerated)  # with few jobs, a class of an application can be empty
        named = with_applications(workload_of(nodes, run), seed=seed)
    found = Counter(named.column("application"))
    expected = exact_counts(count, [a.share for a in APPLICATIONS])
    assert [found[a.name] for a in APPLICATIONS] == expected


@pytest.mark.parametrize("shares", [[], [0.0], [-0.1, 1.0], [float("nan")]])
def test_wrong_shares_are_errors(shares: list[float]) -> None:
    with pytest.raises(InputError, match="shares"):
        exact_counts(10, shares)


def test_bounds_are_in_order() -> None:
    with pytest.raises(InputError, match="class bounds"):
        Bounds(2.0, 1.0)


def test_generate_names_the_applications_of_any_model(tmp_path: Path) -> None:
    path = tmp_path / "w.parquet"
    arguments = ["generate", "cirne", "--jobs", "300", "--seed", "5", "--applications", "-o", str(path)]
    result = CliRunner().invoke(tracebed, arguments)
    assert result.exit_code == 0, result.output
    assert read_workload(path).sha256 == with_applications(cirne(300, seed=5), seed=5).sha256


def test_an_application_makes_of_half_of_the_cores_what_its_parallel_share_says() -> None:
    """DROM and SD-Policy papers: STREAM is as fast on half of a node, a share of 0.9 gives 1 / 1.9."""
    table = pd.DataFrame({"job_id": ["1", "2", "3"], "submit_time": 0.0, "run_time": 100.0, "nodes": [1, 8, 4]})
    table = table.assign(kind="malleable", nodes_min=1, nodes_max=8, application=["nest", "stream", "pils"])
    adapted = with_parallel_shares(Workload(table), {"nest": 0.9, "stream": 0.0})
    jobs = Jobs.of(adapted)
    rates = [jobs.rate(job, jobs.nodes[job], 0.5) for job in range(3)]
    assert rates == pytest.approx([1 / 1.9, 1.0, 0.5])
    assert [jobs.rate(job, jobs.nodes[job]) for job in range(3)] == [1.0, 1.0, 1.0]
    assert adapted.provenance.steps[-1].counts == {"jobs": 2}
    with pytest.raises(InputError, match=r"the share of nest is 1\.5"):
        with_parallel_shares(adapted, {"nest": 1.5})
