"""The data dictionary in Parquet files and in the output of `describe`."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from tracebed.cli.describe import describe
from tracebed.converters.formats.reading import read_workload
from tracebed.converters.formats.writing import write_workload
from tracebed.converters.schema import EXTRA, dictionary
from tracebed.converters.workload import SCHEMA, Workload
from tracebed.ground.errors import InputError


@pytest.fixture
def workload() -> Workload:
    job = {"job_id": "a", "submit_time": 0.0, "run_time": 5.0, "nodes": 2, "user": "ann", "extra_colour": "red"}
    return Workload(pd.DataFrame([job, job | {"job_id": "b", "run_time": float("nan"), "user": ""}]))


def test_every_column_is_explained_once(workload: Workload) -> None:
    rows = {row["column"]: row for row in dictionary(workload.table)}
    assert rows.keys() == {*SCHEMA, "extra_colour"}
    assert [row["column"] for row in dictionary(workload.table)][:6] == list(workload.table)
    for name, column in SCHEMA.items():
        assert (rows[name]["meaning"], rows[name]["type"]) == (column.meaning, column.dtype)
    assert (rows["run_time"]["known"], rows["user"]["known"], rows["nodes"]["known"]) == (1, 1, 2)
    assert rows["extra_colour"] == {
        "column": "extra_colour",
        "type": "str",
        "meaning": EXTRA,
        "known": 2,
        "default": None,
    }
    assert rows["nodes_min"]["default"] == "nodes"
    assert rows["time_limit"]["default"] == "not known"
    assert rows["queue"]["default"] == "empty"


def test_a_parquet_file_says_what_its_columns_mean(workload: Workload, tmp_path: Path) -> None:
    path = tmp_path / "w.parquet"
    write_workload(workload, path)
    meanings = {field.name: field.metadata[b"meaning"].decode() for field in pq.read_schema(path)}
    assert meanings.keys() == set(workload.table)
    assert meanings["run_time"] == SCHEMA["run_time"].meaning
    assert meanings["extra_colour"] == EXTRA
    assert read_workload(path).sha256 == workload.sha256


def test_describe_prints_it(workload: Workload, tmp_path: Path) -> None:
    path = tmp_path / "w.csv"
    write_workload(workload, path)
    shown = CliRunner().invoke(describe, [str(path), "--list"]).output
    for name, column in SCHEMA.items():
        assert name in shown
        assert column.meaning.split()[0] in shown
    machine = json.loads(CliRunner().invoke(describe, [str(path), "--list", "--json"]).output)
    assert machine == {"schema": "tracebed-dictionary/1", "jobs": 2, "columns": dictionary(workload.table)}
    refused = CliRunner().invoke(describe, [str(path), "--list", "--plot", "x.png"])
    assert isinstance(refused.exception, InputError)
