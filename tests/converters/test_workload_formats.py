"""Files of workloads: recognized by content, read again unchanged when written, and clear errors when invalid."""

from __future__ import annotations

import gzip
import inspect
import json
import math
import re
import string
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.converters.test_gwf import LOG as GWF
from tests.converters.test_mwf import LOG as MWF
from tests.converters.test_public_datasets import CSV, LASSEN, SUPERCLOUD, VALID, marconi, parquet
from tracebed.cli.logs import PLAIN
from tracebed.converters.formats import format as formats
from tracebed.converters.formats.reading import read_workload, recognized
from tracebed.converters.formats.tools.files import Input
from tracebed.converters.formats.writing import write_workload
from tracebed.converters.workload import (
    SCHEMA,
    Kind,
    Provenance,
    Source,
    Step,
    System,
    Workload,
)
from tracebed.ground.errors import InputError, Tolerated

WRITABLE = ("parquet", "csv", "swf")

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
numbers = st.integers(0, 10**6).map(str)
whole_times = st.integers(0, 10**9).map(float)
any_times = st.floats(0, 1e12) | whole_times | st.just(math.nan)


def columns_of(jobs: int) -> dict[str, st.SearchStrategy[list[Any]]]:
    """Return a strategy for each optional column of a workload of `jobs` jobs."""

    def each(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
        return st.lists(values, min_size=jobs, max_size=jobs)

    strategies = {
        name: each(any_times) if column.dtype == "float64" else each(texts) | each(numbers)
        for name, column in SCHEMA.items()
        if column.dtype in ("float64", "str") and column.default is not None
    }
    strategies["requests"] = each(st.just(""))  # of valid sizes: below
    strategies["kind"] = each(st.sampled_from([kind.value for kind in Kind]))
    strategies["status"] = each(st.sampled_from(["completed", "failed", "cancelled", "", "timeout"]))
    strategies["cores_per_node"] = each(st.integers(1, 64))
    strategies["extra_text"] = each(texts)
    strategies["extra_number"] = each(st.floats(allow_infinity=False))
    strategies["extra_count"] = each(st.integers(-(2**62), 2**62))
    strategies["extra_flag"] = each(st.booleans())
    strategies["extra_executable"] = each(numbers)
    return strategies


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    jobs = draw(st.integers(1, 6))
    ids = st.lists(numbers, min_size=jobs, max_size=jobs, unique=True)
    names = st.lists(texts.filter(bool), min_size=jobs, max_size=jobs, unique=True)
    times = draw(st.sampled_from([whole_times, st.floats(-1e12, 1e12)]))
    nodes = draw(st.lists(st.integers(0, 5000), min_size=jobs, max_size=jobs))
    table: dict[str, Any] = {
        "job_id": draw(ids | names),
        "submit_time": draw(st.lists(times, min_size=jobs, max_size=jobs)),
        "run_time": draw(st.lists(any_times, min_size=jobs, max_size=jobs)),
        "nodes": nodes,
    }
    optional = columns_of(jobs)
    for name in draw(st.lists(st.sampled_from(sorted(optional)), unique=True)):
        table[name] = draw(optional[name])
    if "priority" in table:  # a priority is above 0
        table["priority"] = [abs(value) + 1.0 if abs(value) < 1e300 else 1.0 for value in table["priority"]]
    if draw(st.booleans()):
        table |= {
            "nodes_min": [n // 2 for n in nodes],
            "nodes_max": [2 * n for n in nodes],
            "nodes_pref": nodes,
        }
        if draw(st.booleans()):
            table["requests"] = [f"0.25:{2 * n} 0.5:{n}" if n else "" for n in nodes]
    order = draw(st.permutations(list(table)))
    system = draw(st.builds(System, st.none() | st.integers(1, 9999), st.none() | st.integers(1, 128), texts))
    labels = st.text(string.ascii_letters, min_size=1, max_size=8)
    provenance = Provenance(
        system=system,
        time_zone=draw(st.sampled_from([None, "Asia/Tokyo"])),
        unix_start=draw(st.none() | st.floats(0, 2e9)),
        sources=tuple(draw(st.lists(st.builds(Source, texts, texts, st.integers(0, 10**9)), max_size=2))),
        steps=(Step("draw", {"load": 0.7, "site": "anl"}, {"jobs": jobs}, seed=3),),
        header=draw(st.dictionaries(labels, st.lists(texts, min_size=1, max_size=2), max_size=3)),
    )
    return Workload(pd.DataFrame({name: table[name] for name in order}), provenance)


def check_written(workload: Workload, path: Path) -> None:
    """Check that a workload is read again unchanged, without a warning, from the file that is written of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        write_workload(workload, path, replace=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # files of tracebed have no defects
        again = read_workload(path)
    pd.testing.assert_frame_equal(again.table, workload.table, check_exact=True)
    assert again.provenance == workload.provenance
    assert again.sha256 == workload.sha256


@pytest.mark.parametrize("suffix", WRITABLE)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(workload=workloads())
def test_a_written_workload_is_read_again_unchanged(workload: Workload, suffix: str, tmp_path: Path) -> None:
    check_written(workload, tmp_path / f"w.{suffix}")


@pytest.mark.parametrize("suffix", ["swf.gz", "csv.gz"])
@settings(
    max_examples=10,  # compression is apart from the formats
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(workload=workloads())
def test_a_compressed_workload_is_read_again_unchanged(workload: Workload, suffix: str, tmp_path: Path) -> None:
    check_written(workload, tmp_path / f"w.{suffix}")


def small() -> Workload:
    table = pd.DataFrame(
        {"job_id": ["a", "b"], "submit_time": [0.0, 5.0], "run_time": [10.0, math.nan], "nodes": [1, 2]}
    )
    return Workload(table, Provenance(system=System(4, 2), steps=(Step("made"),)))


@pytest.mark.parametrize("format", WRITABLE)
def test_the_same_workload_gives_the_same_bytes(format: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            write_workload(small(), tmp_path / f"{name}.{format}.gz")
    assert (tmp_path / f"one.{format}.gz").read_bytes() == (tmp_path / f"two.{format}.gz").read_bytes()


@pytest.mark.parametrize("format", WRITABLE)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_content_determines_the_format_whatever_the_name(format: str, tmp_path: Path) -> None:
    path = tmp_path / "w.dat"
    write_workload(small(), path, format=format)
    assert read_workload(path).sha256 == small().sha256


def test_a_foreign_csv_is_read_and_its_source_recorded(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("nodes,job_id,submit_time,run_time,extra_note\n4,007,1.5,,x\n2,8,0,3.25,\n")
    workload = read_workload(path)
    assert workload.column("job_id").tolist() == ["8", "007"]
    assert workload.ints("nodes").tolist() == [2, 4]
    assert math.isnan(workload.floats("run_time")[1])
    assert workload.column("extra_note").tolist() == ["", "x"]
    assert workload.provenance.sources == (Source.of(path),)
    assert workload.provenance.steps[0].name == "read"


def test_texts_that_came_as_bytes_are_read_as_texts(tmp_path: Path) -> None:
    path = tmp_path / "old.parquet"
    small().table.assign(job_id=[f"j{row}".encode() for row in range(len(small()))]).to_parquet(path)
    assert read_workload(path).column("job_id").tolist() == [f"j{row}" for row in range(len(small()))]
    small().table.assign(job_id=[b"\xff%d" % row for row in range(len(small()))]).to_parquet(path)
    with pytest.raises(InputError, match=r"old\.parquet: not a readable Parquet file: Invalid UTF8"):
        read_workload(path)


def test_the_bytes_do_not_depend_on_the_chunks_in_which_jobs_were_read(tmp_path: Path) -> None:
    names = pd.Series([str(row) for row in range(200_000)], dtype="str")
    table = pd.DataFrame({"job_id": names, "submit_time": 0.0, "run_time": 1.0, "nodes": 1})
    pieces = [names[row : row + 10_000] for row in range(0, 200_000, 10_000)]  # pandas joins texts without moving them
    in_pieces = Workload(table.assign(job_id=pd.concat(pieces)))
    for name, workload in (("whole", Workload(table)), ("pieces", in_pieces)):
        write_workload(workload, tmp_path / f"{name}.parquet")
    assert (tmp_path / "whole.parquet").read_bytes() == (tmp_path / "pieces.parquet").read_bytes()


def test_a_foreign_parquet_is_read_and_its_source_recorded(tmp_path: Path) -> None:
    path = tmp_path / "mine.parquet"
    small().table.to_parquet(path)
    workload = read_workload(path)
    assert workload.sha256 == small().sha256
    assert workload.provenance.sources == (Source.of(path),)


HEADER = b"job_id,submit_time,run_time,nodes\n"
BROKEN = {
    "empty.swf": (b"", "empty"),
    "blank.csv": (b" \n\n", "empty"),
    "words.txt": (b"Lorem ipsum dolor\n", "the format is not recognized"),
    "noise.bin": (bytes(range(256)) * 20, "the format is not recognized"),
    "noise.swf": (b";" + bytes(range(256)) * 20, "binary data"),
    "cut.swf.gz": (gzip.compress(b"; Version: 2.2\n" * 99)[:-9], "broken gzip"),
    "lies.swf.gz": (b"\x1f\x8b" + b"nonsense" * 9, "broken gzip"),
    "cut.parquet": (b"PAR1" + b"x" * 50, "not a readable Parquet file"),
    "ragged.csv": (b"job_id,submit_time,run_time,nodes\n1,0,1\n", "ragged.csv:2: 3 values, but the header has 4"),
    "word.csv": (HEADER + b"0,0,1,1\n\n1,now,1,1\n", "word.csv:4: submit_time 'now' is not a number"),
    "part.csv": (b"# tracebed-extras: {}\n" + HEADER + b"0,0,1,1.5\n", "part.csv:3: nodes '1.5' is not a whole number"),
    "quote.csv": (HEADER + b'"0,0,1,1\n1,0,1,1\n', "a quoted value is not closed"),
    "only.csv": (b"job_id,submit_time,run_time,nodes", "contains no jobs"),
    "latin.csv": (HEADER[:-1] + b",user\n0,0,1,1,Z\xfcrich\n", "latin.csv:2: the file is not UTF-8"),
    "latin-extra.csv": (HEADER[:-1] + b",extra_a\n0,0,1,1,Z\xfcrich\n", "is not UTF-8"),
    "zeros.csv": (bytes(100_000), "binary data, not CSV"),
    "wide.csv": (b"\xff\xfe" + HEADER.decode().encode("utf-16-le"), "UTF-16"),
    "wide.txt": (HEADER.decode().encode("utf-16-be"), "UTF-16"),
    "missing.csv": (HEADER + b"0,0,1,\n", "missing.csv:2: nodes is missing"),
    "below.csv": (
        b'# mine\n# "2\n\n' + HEADER + b"0,0,1,1\n\n1,0,-1,1\n",
        "below.csv:7: run_time is negative (job '1')",
    ),
    "stray.csv": (HEADER[:-1] + b',user\n0,0,1,1,a"b\n1,0,1,0.5,c\n', "stray.csv, row 2: nodes '0.5' is not a whole"),
    "lines.csv": (
        HEADER[:-1] + b',user\n0,0,1,1,"a\n\nb"\n\n1,1,1,0.5,c\n',
        "lines.csv:6: nodes '0.5' is not a whole number (correct or remove the line)",
    ),
    "semicolons.csv": (b"job_id;submit_time;run_time;nodes\n1;0;1;1\n", "found: 'job_id;submit_time;run_time;nodes'"),
    "noise.csv": (b"# tracebed-provenance: \xff\xfe\njob_id\n", "not a provenance record"),
    "lacks.csv": (b"job_id,submit_time,run_time\n1,0,1\n", "column 'nodes' is missing"),
    "theirs.csv": (b"job;start;end\n1;0;1\n", "`tracebed import` reads tables of other programs"),
    "twice.csv": (HEADER + b"1,0,1,1\n\n1,0,1,1\n", "twice.csv:4: job_id is not unique"),
    "same.csv": (b"job_id,submit_time,run_time,nodes,nodes\n1,0,1,1,1\n", "column"),
    "none.csv": (b"job_id,submit_time,run_time,nodes\n", "contains no jobs"),
    "none.swf": (b"; Version: 2.2\n", "contains no jobs"),
    "bad.csv": (b"# tracebed-provenance: {}\njob_id,submit_time\n", "not a provenance record"),
    "extras.csv": (b"# tracebed-extras: {\njob_id,submit_time\n", "tracebed-extras"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_bad_file_is_an_error_that_names_it(name: str, tmp_path: Path) -> None:
    content, what = BROKEN[name]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        read_workload(path)
    assert what in str(error.value)
    assert str(path) in str(error.value)


def test_a_missing_file_and_a_folder_are_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_workload(tmp_path / "absent.swf")
    with pytest.raises(InputError, match="the folder contains no files"):
        read_workload(tmp_path)


def test_an_unknown_format_or_option_is_an_error(tmp_path: Path) -> None:
    write_workload(small(), tmp_path / "w.csv")
    with pytest.raises(InputError, match="unknown format 'xls'"):
        read_workload(tmp_path / "w.csv", format="xls")
    with pytest.raises(InputError, match=r"does not support option 'by' \(available options: none\)"):
        read_workload(tmp_path / "w.csv", by="core")
    with pytest.raises(InputError, match="no known output format"):
        write_workload(small(), tmp_path / "w.xls")


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "w.csv"
    write_workload(small(), path)
    before = path.read_bytes()

    def fails(workload: Workload, file: Any) -> None:
        file.write(b"half of it")
        raise OSError(28, "No space left on device")

    failing = [replace(one, write=fails) for one in formats.known()]
    monkeypatch.setattr(formats, "known", lambda: failing)
    with pytest.raises(InputError, match="No space left"):
        write_workload(small(), path, replace=True)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("place", ["no/such/folder/w.csv", "."])
def test_an_unwritable_path_is_an_error(place: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="folder"):
        write_workload(small(), tmp_path / place, format="csv")


@pytest.mark.parametrize(
    ("column", "values", "what"),
    [
        ("nodes", [1, -1], "nodes is negative"),
        ("nodes", [1.5, 2], "not a whole number"),
        ("run_time", ["soon", "late"], "not a number"),
        ("submit_time", [0.0, math.nan], "submit_time is missing"),
        ("submit_time", pd.to_datetime(["2010-05-01", "2010-05-02"]), "submit_time contains dates"),
        ("job_id", ["a", None], "job_id is missing"),
        ("time_limit", [math.inf, 1.0], "time_limit is infinite"),
        ("logged_start", [1e300, 1.0], "logged_start is infinite, or beyond"),
        ("nodes", [1, 2**62], r"row 2: nodes is beyond 100,000,000 \(job 'b'\) \(correct or remove it\)"),
        ("kind", ["rigid", "elastic"], "kind is not one of"),
        ("cores_per_node", [0, 1], "cores_per_node is below 1"),
        ("nodes_min", [2, 2], "nodes_min <= nodes_pref"),
        ("colour", ["red", "blue"], "unknown column 'colour'"),
    ],
)
def test_an_impossible_table_is_refused(column: str, values: list[Any], what: str) -> None:
    with pytest.raises(InputError, match=what):
        Workload(small().table.assign(**{column: values}))


def test_missing_texts_are_empty_whatever_pandas_calls_them() -> None:
    workload = Workload(small().table.assign(user=["u", None], extra_x=["v", np.nan]))
    assert workload.column("user").tolist() == ["u", ""]
    assert workload.column("extra_x").tolist() == ["v", ""]


def test_missing_columns_have_defaults() -> None:
    workload = small()
    assert workload.ints("nodes_max").tolist() == [1, 2]
    assert workload.column("kind").tolist() == ["rigid", "rigid"]
    assert np.isnan(workload.floats("deadline")).all()


def test_runnable_leaves_out_and_counts_jobs_without_time_or_size() -> None:
    table = small().table.assign(nodes=[0, 2])
    kept, counts = Workload(table).runnable()
    assert len(kept) == 0
    assert list(counts.values()) == [1, 1]


def test_provenance_survives_its_json_and_refuses_other_json() -> None:
    provenance = replace(small().provenance, header={"Note": ["a", "b"]})
    assert Provenance.from_json(provenance.to_json()) == provenance
    for text in ("{}", "[1]", "no json", b"\xff", json.dumps({"system": {"cpus": 3}})):
        with pytest.raises(InputError, match="not a provenance record"):
            Provenance.from_json(text)
    record = json.loads(provenance.to_json())
    [step] = record["steps"][:1]
    for wrong in (
        *(
            {"system": record["system"] | size}
            for size in ({"nodes": "x"}, {"nodes": -4}, {"nodes": 10**20}, {"name": 7})
        ),
        *({"time_zone": 3}, {"unix_start": 1e300}, {"unix_start": True}, {"unix_start": float("nan")}),
        *({"header": {"Note": "a"}}, {"header": {"Note": [1]}}, {"sources": [{"name": 3, "sha256": "", "bytes": 1}]}),
        *(
            {"steps": [step | part]}
            for part in ({"name": 5}, {"counts": {"jobs": "b"}}, {"seed": "x"}, {"parameters": []})
        ),
    ):
        with pytest.raises(InputError, match="not a provenance record"):
            Provenance.from_json(json.dumps(record | wrong))


# Recognition by content: no format accepts another's files.

SWF = "1 0 10 100 4 -1 -1 4 200 2048 1 7 8 -1 2 1 -1 -1"
LINES: dict[str, list[str]] = {
    "csv": ["job_id,submit_time,run_time,nodes\n1,0,5,2\n"],
    "cori": ["Job,User,Host Name,Partition,QOS,Submit,Start,End,Elapsed Secs,Nodes Allocated,Raw Hours\n1\n"],
    "eagle": ["job_id,user,wallclock_req,nodes_req,processors_req,submit_time,start_time,end_time,run_time,state\n1\n"],
    "theta": ['"JOB_NAME","QUEUED_TIMESTAMP","WALLTIME_SECONDS","RUNTIME_SECONDS","NODES_REQUESTED","NODES_USED"\n1\n'],
    "sacct": ["JobID|User|Submit|Start|End|Elapsed|State|NNodes|ReqNodes|NCPUS|Partition\n1\n"],
    "ub-slurm": [
        "dt;job_id;wall_time;user;wall_limit;n_tasks;ntasks_per_node;account;partition;qos;constraint;mem;gres\n0;1\n",
        "-dt 0 -e submit_batch_job | -J jobid_1 -sim-walltime 5 --uid=user1 -t 00:01:00 -n 1 pseudo.job\n",
    ],
    "pbs": ["01/02/2021 10:00:00;E;7.server;user=ann queue=q ctime=1 start=2 end=3\n"],
    "elastisim": ['{"jobs": [{"type": "rigid", "submit_time": 0, "num_nodes": 1, "application_model": "a.json"}]}'],
    "batsim": ['{"nb_res": 4, "jobs": [{"id": "1", "subtime": 0, "res": 1, "profile": "p"}], "profiles": {}}'],
    "swf": [
        f"; Version: 2.2\n{SWF}\n",
        f"{SWF}\n",
        SWF.replace(" ", ";"),
        f"{SWF} 64 1800 frontier:excl:8x56\n",
        f"{SWF} {{a b c d e f g h}} q@server 8:ppn=2:x#excl\n",
    ],
}
EXAMPLES: dict[str, list[bytes]] = {name: [text.encode() for text in texts] for name, texts in LINES.items()} | {
    "amte": [b"281568387;/jobs/job_1; started; [host00, host01]\n22103801971;/jobs/job_1; terminated\n"],
    "shockwave": [
        b"LM (batch size 10)\tpython3 main.py\twikitext2\t--steps\t1\t9000\t2\tgns\t1\t-1.000000\t200\t30\n",
        b"ResNet-18 (batch size 32)\tpython3 main.py\tcifar10\t--n\t1\t6000\t1\tstatic\t1\t-1.0\t300.5\t0.5\n",
    ],
    "gwf": [GWF, GWF.split(b"\n")[2]],
    "mwf": [MWF, MWF.split(b"\n")[1]],
    "pm100": [
        VALID["pm100"],
        CSV["pm100"],
        parquet(marconi(run_time=[1800, 3600, 0], nodes="['r1']")),  # the mandatory columns of a workload
    ],
    "fdata": [VALID["fdata"], CSV["fdata"]],
    "lassen": [LASSEN],
    "supercloud": [SUPERCLOUD],
}


@pytest.mark.parametrize(("name", "data"), [(name, data) for name, files in EXAMPLES.items() for data in files])
def test_content_alone_determines_the_format(name: str, data: bytes) -> None:
    for content in (data, b"\xef\xbb\xbf" + data if b"," in data[:20] else data):
        file = Input.of(content, "log")
        found = recognized(file)
        assert found is not None
        assert found.name == name
        as_sure = [known.name for known in formats.known() if known.marks == found.marks and known.recognizes(file)]
        assert as_sure == [name], "the order among formats of equally sure marks must not matter"


@pytest.mark.parametrize("suffix", ["parquet", "csv", "swf"])
def test_files_written_by_tracebed_are_recognized_whatever_was_read(suffix: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(gzip.compress(VALID["pm100"]))
    path = tmp_path / f"w.{suffix}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Tolerated)
        write_workload(read_workload(tmp_path / "log", keep_extra=True), path)
    found = recognized(Input.of(path.read_bytes(), "unnamed"))
    assert found is not None
    assert found.name == suffix


def test_every_format_that_is_read_has_an_example() -> None:
    readable = {known.name for known in formats.known() if known.reader}
    assert readable - set(EXAMPLES) == {"parquet", "table"}  # above; no content tells a table, but a recipe


def test_formats_have_the_names_of_their_entry_points() -> None:
    assert {name: formats.named(name).name for name in formats.FORMATS.names()} == {
        name: name for name in formats.FORMATS.names()
    }
    assert len(formats.FORMATS.names()) >= 18


def test_help_and_docs_name_the_pseudonymized_formats() -> None:
    readers = {known.name: inspect.signature(known.reader).parameters for known in formats.known() if known.reader}
    plain = [name for name, options in readers.items() if "keep_names" not in options]
    assert re.findall(r"[\w-]+", PLAIN.replace(" and ", ", ")) == sorted(plain)
    docs = (Path(__file__).parents[2] / "docs" / "reference" / "formats" / "logs.md").read_text(encoding="utf-8")
    (sentence,) = re.findall(r"The readers of tracebed's own formats(.*?)replace no\s+names", docs, re.DOTALL)
    assert sorted(re.findall(r"`(\w+)`", sentence)) == sorted(plain)
