"""SWF in whole seconds, for programs that do not read fractions."""

from __future__ import annotations

import re
from pathlib import Path

from tests.converters.test_elastisim import read_quietly, workload_of
from tracebed.converters.formats.writing import write_workload


def test_job_lines_hold_whole_numbers_and_nothing_is_lost(tmp_path: Path) -> None:
    workload = workload_of(
        {"submit_time": 0.4, "run_time": 0.5, "time_limit": 10.7, "memory_mib": 0.1, "cores_per_node": 3},
        {"submit_time": 2.6, "run_time": 7.25, "time_limit": float("nan"), "memory_mib": 3.0, "cores_per_node": 1},
    )
    path = tmp_path / "w.swf"
    for options, whole in (({}, False), ({"whole_seconds": True}, True)):
        write_workload(workload, path, replace=True, **options)
        lines = [line.split() for line in path.read_text().splitlines() if not line.startswith(";")]
        assert all(re.fullmatch(r"-?\d+", field) for line in lines for field in line) == whole
    assert [line[1:4] for line in lines] == [["0", "-1", "0"], ["3", "-1", "7"]]
    back, _ = read_quietly(path)
    assert back.sha256 == workload.sha256
