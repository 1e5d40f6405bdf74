"""Files that are not logs: refused with one line that names the place, without much memory."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import re
import socket
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.converters.test_workload_formats import EXAMPLES
from tests.fuzzing import fuzz_harness
from tests.fuzzing.fuzz import read_or_refuse
from tracebed.api import import_run
from tracebed.cli import groups, setup_options
from tracebed.converters.cleaning.recipes import load_recipe
from tracebed.converters.formats.reading import read_workload
from tracebed.converters.formats.tools import files
from tracebed.converters.formats.writing import write_workload
from tracebed.ground import input_files, parquet_file
from tracebed.ground.errors import InputError
from tracebed.ground.yaml_file import YamlFile
from tracebed.orchestrator.replay.programs import AllowedCommands
from tracebed.orchestrator.replay.thresholds import HealthThresholds
from tracebed.orchestrator.testbeds.calibration import Calibration
from tracebed.orchestrator.testbeds.checking.health import read_limits
from tracebed.slurm import conf as slurm_conf
from tracebed.validation.experiments.file import load_experiment
from tracebed.validation.simulators.pairing import read_mapping
from tracebed.validation.verdict.baseline import Baseline
from tracebed.validation.verdict.tolerances import Tolerances


@pytest.mark.parametrize("format", ["swf", "mwf", "gwf", "pbs", "sacct", "elastisim", "batsim"])
def test_a_line_without_end_costs_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str) -> None:
    monkeypatch.setattr(files, "MAX_LINE", 2**20)
    path = tmp_path / "log"
    start = EXAMPLES[format][0].partition(b'"application_model')[0].partition(b'"profile')[0].rstrip(b", ") + b"\n"
    with path.open("wb") as file:
        file.write(start)
        file.truncate(64 * 2**20)
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=r"log:\d+: (line|value) longer than 1 MiB") as error:
            read_workload(path, format=format)
        assert tracemalloc.get_traced_memory()[1] < 24 * 2**20
    finally:
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


# -- files that are named by mistake: each refusal is one line, quick and small


def refused(call: Callable[[], object]) -> str:
    """Return the one line with which a call refuses its file."""
    with pytest.raises(InputError) as raised:
        call()
    assert "\n" not in str(raised.value)
    return str(raised.value)


def pipe_without_writer(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


def listening_socket(folder: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "socket"))
    return folder / "socket"


READERS: dict[str, Callable[[Path], object]] = {
    "workload": read_workload,
    "slurm.conf": slurm_conf.read,
    "policy option": lambda path: setup_options.settings_of({"policy_parameters": [f"@{path}"]}),
    "configuration": lambda path: groups._read(path),
    "calibration": Calibration.load,
    "baseline": Baseline.load,
    "tolerances": Tolerances.load,
    "thresholds": HealthThresholds.read,
    "node thresholds": read_limits,
    "allowed commands": AllowedCommands.read,
    "experiment": lambda path: load_experiment(str(path)),
    "recipe": lambda path: load_recipe(str(path)),
    "mapping": read_mapping,
    "table": lambda path: import_run(path, side="real", nodes=2),
}
"""Kind of file -> its reader."""


@pytest.mark.parametrize("kind", READERS)
def test_no_device_fills_the_memory(kind: str) -> None:
    assert "is a device, not a file" in refused(lambda: READERS[kind](Path("/dev/zero")))


@pytest.mark.parametrize("kind", READERS)
def test_no_pipe_without_a_writer_blocks_for_ever(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_files, "WRITER_S", 0.01)
    assert "no program writes" in refused(lambda: READERS[kind](pipe_without_writer(tmp_path)))


@pytest.mark.parametrize("kind", READERS)
def test_no_socket_is_opened(kind: str, tmp_path: Path) -> None:
    assert "is a socket, not a file" in refused(lambda: READERS[kind](listening_socket(tmp_path)))


@pytest.mark.parametrize("kind", [kind for kind in READERS if kind not in ("workload", "table", "mapping")])
def test_no_large_file_is_read_as_a_small_one(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "log.yaml"
    with path.open("wb") as file:
        file.write(b"# ")
        file.truncate(2**30)
    tracemalloc.start()
    refused(lambda: READERS[kind](path))
    assert tracemalloc.get_traced_memory()[1] < 4 * input_files.MAX_RUN_JSON
    tracemalloc.stop()


def test_no_silent_writer_blocks_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_files, "WRITER_S", 0.01)
    monkeypatch.setattr(input_files, "SILENCE_S", 0.05)
    path = pipe_without_writer(tmp_path)
    silent = os.open(path, os.O_RDWR)
    try:
        assert "is a pipe without data for 0.05 s" in refused(lambda: slurm_conf.read(path))
    finally:
        os.close(silent)


def test_a_pipe_of_the_shell_is_read(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"SchedulerType=sched/backfill\nSchedulerParameters=bf_interval=7\n")
    os.close(writing)
    assert slurm_conf.read(Path(f"/dev/fd/{reading}")).parameters["bf_interval"] == "7"
    os.close(reading)


@pytest.mark.parametrize("form", ["gz", "bz2", "zst", "zip"])
def test_no_compressed_file_expands_without_bound(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FREE_BYTES", 2**20)
    path, line = tmp_path / f"log.swf.{form}", b"1 0 10 100 4 -1 -1 4 200 2048 1 7 8 -1 2 1 -1 -1\n"
    content = b"; Version: 2.2\n" + line * 2**15
    if form == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("log.swf", content)
    else:
        pack = {"gz": gzip.compress, "bz2": bz2.compress, "zst": lambda data: pa.compress(data, "zstd", asbytes=True)}
        path.write_bytes(pack[form](content))
    tracemalloc.start()
    said = refused(lambda: read_workload(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "expands to more than" in said and "decompress it" in said
    assert peak < 2**24


@pytest.mark.parametrize("bomb", ["rows", "texts", "mixed"])
def test_no_parquet_file_expands_without_bound(bomb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_file, "FREE_BYTES", 2**20)
    rows = 2**20 if bomb == "rows" else 2**10
    ids = pa.repeat(pa.scalar("x" if bomb == "rows" else "x" * 2**16), rows)
    if bomb == "mixed":  # so many others that the writer gives up its dictionary
        ids = pa.concat_arrays([ids, pa.array([f"{number:0100}" for number in range(20_000)])])
    table = pa.table({"job_id": ids, "nodes": pa.repeat(pa.scalar(1), len(ids))})
    pq.write_table(table, tmp_path / "w.parquet", compression="zstd")
    for read in (READERS["workload"], lambda path: parquet_file.read_frame(path, hint="")):
        assert "MiB, more than 200 times the file" in refused(lambda: read(tmp_path / "w.parquet"))  # noqa: B023


def test_no_alias_of_yaml_grows_exponentially(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    (tmp_path / "bomb.yaml").write_text("\n".join(lines))
    (tmp_path / "self.yaml").write_text("a: &a [*a]\n")
    for name in ("bomb.yaml", "self.yaml"):
        assert "aliases expand" in refused(lambda: YamlFile.read(tmp_path / name, "suite", hint="", unreadable=""))  # noqa: B023
    (tmp_path / "good.yaml").write_text("a: &a {x: 1}\nb: *a\nc: {<<: *a, y: 2}\n")
    assert YamlFile.read(tmp_path / "good.yaml", "suite", hint="", unreadable="").raw["c"] == {"x": 1, "y": 2}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": NaN}', "NaN is not a JSON number"),
        ('{"a": -Infinity}', "-Infinity is not a JSON number"),
        ('{"a": 1e999}', "too large a number"),
        ('{"a": ' + "9" * 5000 + "}", "is not JSON"),
        ('{"a": 1, "a": 2}', "key 'a' occurs twice"),
        ("[" * 200 + "]" * 200, "nested more than 100 deep"),
        ("[" * 100_000, "nested too deeply"),
        ("", "is not JSON"),
    ],
)
def test_no_json_is_read_that_is_none(text: str, says: str) -> None:
    assert says in refused(lambda: input_files.parse_json(text, where="x.json", hint="check it"))


def test_no_zst_output_is_an_internal_error(tmp_path: Path) -> None:
    (tmp_path / "log.swf").write_bytes(EXAMPLES["swf"][0])
    write_workload(read_workload(tmp_path / "log.swf"), tmp_path / "w.csv.zst")
    assert len(read_workload(tmp_path / "w.csv.zst")) == 1


def test_no_metadata_of_pandas_is_an_internal_error(tmp_path: Path) -> None:
    table = pa.table({"job_id": ["1"], "submit_time": [0.0], "run_time": [5.0], "nodes": [1]})
    table = table.replace_schema_metadata({"pandas": '{"index_columns": [7], "columns": {}, "column_indexes": 3}'})
    pq.write_table(table, tmp_path / "w.parquet")
    assert len(read_workload(tmp_path / "w.parquet")) == 1
    assert list(parquet_file.read_frame(tmp_path / "w.parquet", hint="")) == table.column_names


@pytest.mark.parametrize("key", ["tolerances", "noise", "baseline", "recorded"])
def test_no_empty_name_of_a_file_is_ignored(key: str, tmp_path: Path) -> None:
    content = {"workloads": {"w": "w.csv"}, "policies": ["easy"], "recorded": "real/*"}
    text = json.dumps({**content, "simulators": {"tracebed": {}}, key: ""})
    (tmp_path / "suite.yaml").write_text(text)
    assert re.search(
        rf"suite.yaml:1: {key}(\.runs)?: must not be empty",
        refused(lambda: load_experiment(str(tmp_path / "suite.yaml"))),
    )


# -- every kind of file, mutated (`python -m tests.fuzzing.fuzz` does more of it)


@pytest.mark.slow
def test_no_mutated_file_is_an_internal_error(tmp_path: Path) -> None:
    outcomes = fuzz_harness.fuzz(tmp_path, 75, seed=7)
    assert not [found for found in outcomes if found.defect], fuzz_harness.summary(outcomes)
