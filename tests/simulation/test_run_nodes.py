"""Nodes in run.json: ranges of nodes that are alike, and damaged ranges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.orchestrator.run import Run, RunInfo
from tracebed.orchestrator.runs import nodes as run_nodes
from tracebed.orchestrator.runs.nodes import NodeFacts
from tracebed.orchestrator.simulation.prediction import predict

names = st.builds(
    lambda prefix, number, width: f"{prefix}{number:0{width}d}",
    st.sampled_from(["n", "c1-", "", "gpu"]),
    st.integers(0, 12),
    st.integers(0, 3),
)


def read(info: RunInfo) -> RunInfo:
    return RunInfo.from_json(json.loads(json.dumps(info.as_dict())))


def info_of(nodes: list[NodeFacts]) -> RunInfo:
    table = {"job_id": ["a"], "submit_time": [0.0], "run_time": [5.0], "nodes": [1]}
    info = predict(Workload(pd.DataFrame(table)), [NodeFacts("n1", 1)], "easy").info
    info.nodes = nodes
    return info


@given(
    found=st.lists(st.tuples(names, st.integers(1, 2)), max_size=30, unique_by=lambda node: node[0]),
    many=st.integers(1, 4),
)
def test_nodes_are_read_as_they_were(found: list[tuple[str, int]], many: int) -> None:
    nodes = [NodeFacts(name or "x", cores) for name, cores in found]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_nodes, "MANY", many)
        assert read(info_of(nodes)).nodes == nodes


@pytest.mark.parametrize(("first", "last", "entries"), [(1, 99, 99), (1, 100, 1), (0, 999, 1), (95, 1200, 1)])
def test_a_hundred_nodes_are_a_range(first: int, last: int, entries: int) -> None:
    info = info_of([NodeFacts(f"n{number}", 4, 2) for number in range(first, last + 1)])
    assert len(info.as_dict()["nodes"]) == entries
    assert read(info).nodes == info.nodes


def test_a_range_keeps_its_digits_and_ends_where_nodes_differ() -> None:
    nodes = [NodeFacts(f"n{number:04d}", 8 if number < 500 else 16) for number in range(1, 1001)]
    written = info_of(nodes).as_dict()["nodes"]
    assert [(part["first"], part["last"], part["cores"]) for part in written] == [
        ("0001", "0499", 8),
        ("0500", "1000", 16),
    ]


@pytest.mark.parametrize(
    "changes",
    [{"first": "2", "last": "1"}, {"first": "x"}, {"first": None}, {"last": "99999999999"}, {"cores": 0}, {"more": 1}],
)
def test_a_damaged_range_is_an_error(changes: dict[str, Any]) -> None:
    facts = info_of([]).as_dict()
    facts["nodes"] = [{"name": "n", "first": "1", "last": "3", "cores": 1, "sockets": 1} | changes]
    with pytest.raises(InputError, match="is not a node"):
        RunInfo.from_json(facts)


def test_a_run_of_many_nodes_has_a_short_file(tmp_path: Path) -> None:
    """A run of a million nodes once had a run.json of 80 MB, which took 11 s to write."""
    info = info_of([NodeFacts(f"n{number:06d}", 64) for number in range(200_000)])
    one = predict(Workload(pd.DataFrame({"job_id": ["a"], "submit_time": 0.0, "run_time": 5.0, "nodes": 1})), 1, "easy")
    Run(info, one.jobs, one.allocations.assign(cores=1), one.reconfigurations).save(tmp_path / "run")
    assert (tmp_path / "run" / "run.json").stat().st_size < 10_000
    assert Run.load(tmp_path / "run").total_nodes == 200_000
