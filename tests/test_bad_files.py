"""Files that are not logs: refused with one line that names the place, without much memory."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from fuzz import read_or_refuse
from test_recognition import EXAMPLES
from tracebed.converters.formats.reading import read_workload
from tracebed.converters.formats.tools import files
from tracebed.errors import InputError


@pytest.mark.parametrize("format", ["swf", "mwf", "gwf", "pbs", "sacct", "elastisim", "batsim"])
def test_a_line_without_end_costs_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str) -> None:
    monkeypatch.setattr(files, "MAX_LINE", 2**20)
    path = tmp_path / "log"
    start = EXAMPLES[format][0].partition(b'"application_model')[0].partition(b'"profile')[0].rstrip(b", ") + b"\n"
    with path.open("wb") as file:
        file.write(start)
        file.truncate(64 * 2**20)
    tracemalloc.start()
    with pytest.raises(InputError, match=r"log:\d+: (line|value) longer than 1 MiB") as error:
        read_workload(path, format=format)
    assert tracemalloc.get_traced_memory()[1] < 24 * 2**20
    tracemalloc.stop()
    assert error.value.where == f"{path}:{len(start.splitlines()) + 1}"


def test_a_list_of_jobs_on_one_line_may_have_any_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_LINE", 2**12)
    jobs = [{"id": str(number), "subtime": number, "res": 1, "profile": "p"} for number in range(500)]
    path = tmp_path / "workload.json"
    path.write_text(json.dumps({"nb_res": 4, "jobs": jobs, "profiles": {"p": {"type": "delay", "delay": 1}}}))
    assert len(read_workload(path)) == 500


def test_a_column_name_that_is_not_utf8_is_refused() -> None:
    read_or_refuse(b"job_id,submit_time,run_time,nodes,extra_\x83\n1,0,5,1,2\n", "w.csv", "csv")
