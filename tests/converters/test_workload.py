"""The Workload: the hash of its jobs, its representation, the checks of its provenance, and its data dictionary."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tracebed.cli.describe import describe
from tracebed.converters.formats.reading import read_workload
from tracebed.converters.formats.writing import write_workload
from tracebed.converters.schema import EXTRA, dictionary
from tracebed.converters.workload import LATER, REQUESTED, SCHEMA, Provenance, Step, System, Workload
from tracebed.ground.errors import InputError


def jobs(**columns: Any) -> Workload:
    table = pd.DataFrame({"job_id": ["a", "b"], "submit_time": [0.0, 3600.0], "run_time": [900.0, np.nan], "nodes": 2})
    return Workload(table.assign(**columns), Provenance(system=System(4, 8, "m"), steps=(Step("drawn"),)))


# -- hash of the jobs


LOG = """job_id,submit_time,run_time,nodes,user,queue,extra_note
1,0,10.5,2,ann,q,x
2,5,20,1,bob,q,
"""


def test_the_same_log_written_in_any_way_has_the_same_hash(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(LOG)
    (tmp_path / "less.csv").write_text("job_id,submit_time,run_time,nodes,kind\n1,0,10.5,2,rigid\n2,5,20.0,1,rigid\n")
    first = read_workload(tmp_path / "log.csv")
    found = {first.sha256, read_workload(tmp_path / "less.csv").sha256}
    for name in ("again.csv", "w.parquet", "w.swf"):
        write_workload(first, tmp_path / name)
        found.add(read_workload(tmp_path / name).sha256)
    write_workload(read_workload(tmp_path / "again.csv"), tmp_path / "twice.csv")
    assert {*found, read_workload(tmp_path / "twice.csv").sha256} == {first.sha256}


@pytest.mark.parametrize(
    "columns",
    [
        {"cores_per_node": 1},
        {"time_limit": np.nan},
        {"nodes_min": 2, "nodes_pref": 2},
        {"kind": pd.Categorical(["rigid", "rigid"])},
        {"submit_time": [-0.0, 3600.0]},
        {"user": ["u", "v"], "group": "g", "queue": "q", "partition": "p"},
        {"status": "failed", "logged_start": 1.0, "logged_end": 2.0, "memory_mib": 5.0, "extra_gpus": 2},
    ],
)
def test_columns_that_no_scheduler_reads_do_not_change_the_hash(columns: dict[str, Any]) -> None:
    assert jobs(**columns).sha256 == jobs().sha256


CHANGED = {
    "job_id": ["a", "c"],
    "submit_time": [0.0, 3600.5],
    "run_time": [900.0, 0.0],
    "time_limit": [np.nan, 1.0],
    "nodes": [2, 3],
    "cores_per_node": 2,
    "kind": "malleable",
    "nodes_min": 1,
    "nodes_max": 3,
    "nodes_pref": [2, 3],
    "requests": ["0.5:1", ""],
    "speedup": "amdahl",
    "speedup_parameters": ["0.9", ""],
    "application": "stream",
    "application_parameters": "size=1",
    "state_mib": 1.0,
    "features": "bigmem",
    "gres": ["gpu:1", ""],
    "dependency": "afterok:b",
    "array": "7%2",
    "reservation": "maintenance",
    "licenses": "matlab:1",
    "fewest_nodes": [1, 0],
    "spread": 1,
    "ranks_per_node": 2,
    "after": ["", "a"],
    "think_time": [np.nan, 0.0],
    "priority": 2.0,
    "deadline": [1.0, np.nan],
    "earliest_start": 0.0,
    "behaviour": "bsp",
}


@pytest.mark.parametrize("name", CHANGED)
def test_columns_that_a_scheduler_reads_change_the_hash(name: str) -> None:
    bounds = {"nodes_max": 3} if name in ("nodes", "nodes_pref") else {"nodes_min": 1} if name == "requests" else {}
    assert jobs(**bounds, **{name: CHANGED[name]}).sha256 != jobs(**bounds).sha256


def test_every_column_is_decided_on() -> None:
    rest = {"memory_mib", "user", "group", "queue", "partition", "status", "logged_start", "logged_end"}
    assert set(CHANGED) | rest == set(SCHEMA)
    assert set(CHANGED) & rest == set()


def test_texts_that_are_shifted_between_jobs_or_columns_change_the_hash() -> None:
    pairs = [(["1:a", ""], ["", "1:a"]), (["ab", "c"], ["a", "bc"]), (["a", "a"], ["aa", ""])]
    for one, other in pairs:
        assert jobs(application_parameters=one).sha256 != jobs(application_parameters=other).sha256
    swapped = jobs(application="x", behaviour="y"), jobs(application="y", behaviour="x")
    assert swapped[0].sha256 != swapped[1].sha256


def slow_hash(workload: Workload) -> str:
    """Return the hash job by job: stored runs, journals and calibrations have it."""
    digest = hashlib.sha256(f"{len(workload)} jobs".encode())
    for name in REQUESTED:
        if name in LATER and (workload.column(name) == SCHEMA[name].default).all():
            continue
        digest.update(f"\n{name}\n".encode())
        values = workload.column(name)
        if len(values) and (values == values[0]).all():
            values = values[:1]
        if values.dtype.kind == "f" and np.isnan(values).all():
            digest.update(b"NaN")
        elif values.dtype.kind == "f":
            digest.update((np.where(np.isnan(values), np.nan, values) + 0.0).tobytes())
        elif values.dtype.kind == "i":
            digest.update(values.tobytes())
        else:
            digest.update(b"".join(b"%d:%b" % (len(str(text).encode()), str(text).encode()) for text in values))
    return digest.hexdigest()


DRAWN_NUMBERS = st.sampled_from([0.0, -0.0, 1.5, float("nan")])


@given(
    st.lists(
        st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), DRAWN_NUMBERS, st.integers(0, 2)),
        max_size=4,
    )
)
def test_the_hash_does_not_depend_on_how_fast_it_is_computed(rows: list[tuple[str, float, int]]) -> None:
    table = pd.DataFrame(
        {
            "job_id": pd.Series([f"é{number}" for number in range(len(rows))], dtype="str"),
            "submit_time": np.arange(len(rows), dtype=np.float64),
            "run_time": [1.0] * len(rows),
            "nodes": np.array([nodes for *_, nodes in rows], dtype=np.int64),
            "application": pd.Series([text for text, *_ in rows], dtype="str"),
            "deadline": np.array([number for _, number, _ in rows], dtype=np.float64),
        }
    )
    workload = Workload(table)
    assert workload.sha256 == slow_hash(workload)
    assert Workload(table.iloc[1:]).sha256 == slow_hash(Workload(table.iloc[1:]))
    twice = Workload(pd.concat([table, table.assign(job_id=table["job_id"] + "b")]))  # several chunks of Arrow
    assert twice.sha256 == slow_hash(twice)


# -- representation


def test_a_workload_is_shown_in_one_line_and_as_a_table() -> None:
    workload = jobs(kind=["rigid", "malleable"])
    line = (
        "Workload(2 jobs, kinds 1 malleable + 1 rigid, system 4 nodes x 8 cores (m), span 3,600 s, offered load 0.125)"
    )
    assert repr(workload) == line
    shown = workload.with_provenance(system=System(name="<b>"))._repr_html_()
    for part in (">jobs</th>", ">2</td>", "unknown nodes x unknown cores (&lt;b&gt;)", ">drawn</td>"):
        assert part in shown
    nothing = Workload(jobs().table.iloc[:0])
    assert repr(nothing) == (
        "Workload(0 jobs, kinds none, system unknown nodes x unknown cores, span 0 s, offered load unknown)"
    )


# -- checks of a provenance


def nested(depth: int) -> str:
    record = json.loads(Provenance(steps=(Step("x"),)).to_json())
    return json.dumps(record).replace('"parameters": {}', '"parameters": {"a": ' + "[" * depth + "]" * depth + "}")


@pytest.mark.parametrize("depth", [25, 400, 5_000, 100_000])
@pytest.mark.parametrize("name", ["w.csv", "w.swf"])
def test_a_provenance_nested_too_deeply_is_one_line(depth: int, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    write_workload(jobs(), path)
    text = path.read_text()
    plain = next(line for line in text.splitlines() if "rovenance" in line.partition("{")[0])
    path.write_text(text.replace(plain[plain.index("{") :], nested(depth)))
    with pytest.raises(InputError, match="nested too deeply") as caught:
        read_workload(path)
    assert len(str(caught.value)) < 500


def test_a_provenance_of_normal_depth_is_read() -> None:
    assert Provenance.from_json(nested(10)).steps[0].parameters["a"]


@pytest.mark.parametrize(
    "change",
    [
        {"system": {"nodes": 10**20}},
        {"system": {"nodes": True}},
        {"system": {"nodes": 1.5}},
        {"system": {"cores_per_node": 0}},
        {"unix_start": 1e300},
        {"unix_start": float("nan")},
        {"sources": [{"name": "x", "sha256": "y", "bytes": 10**400}]},
        {"steps": [{"name": "x", "seed": 10**400}]},
        {"steps": [{"name": "x", "counts": {"jobs": 10**400}}]},
    ],
)
def test_a_number_beyond_its_bounds_is_refused(change: dict[str, Any]) -> None:
    record = json.loads(Provenance().to_json()) | change
    with pytest.raises(InputError, match="not a provenance record"):
        Provenance.from_json(json.dumps(record))


@pytest.mark.parametrize(
    ("column", "value", "default"),
    [
        ("state_mib", 8.0, 0.0),
        ("cores_per_node", 2, 1),
        ("nodes_min", 1, 2),
        ("nodes_max", 4, 2),
        ("nodes_pref", 2, 2),
        ("spread", 1, 0),
        ("kind", "malleable", "rigid"),
        ("speedup", "linear", "linear"),
        ("application", "stream", "pils"),
    ],
)
@pytest.mark.parametrize("missing", [None, float("nan"), ""])
def test_a_missing_value_is_the_default_of_its_column(
    tmp_path: Path, column: str, value: Any, default: Any, missing: Any
) -> None:
    if missing == "" and not isinstance(default, str):
        return
    jobs = {"job_id": ["1", "2"], "submit_time": 0.0, "run_time": 40.0, "nodes": 2}
    table = pd.DataFrame(jobs | {column: [value, missing]})
    assert Workload(table).table[column].tolist() == [value, default]
    for name in ("w.csv", "w.parquet"):
        file = tmp_path / name
        table.convert_dtypes().to_csv(file, index=False) if name == "w.csv" else table.to_parquet(file)
        assert read_workload(tmp_path / name).table[column].tolist() == [value, default]


# The data dictionary in Parquet files and in the output of `describe`.


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
