"""The commands that make workloads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tracebed.cli.describe import bars, columns, duration_text
from tracebed.converters.formats.reading import read_workload
from tracebed.converters.formats.writing import write_workload
from tracebed.converters.workload import System, Workload
from tracebed.ground.errors import ExitCode

SWF = "; MaxNodes: 4\n; MaxProcs: 16\n; UnixStartTime: 86400\n1 0 5 100 4 -1 -1 8 200 -1 1 1 1 -1 1 1 -1 -1\n"


def test_a_workload_from_model_to_plot(call: Callable[..., Any]) -> None:
    status, out, _ = call("generate", "cirne", "--nodes", "16", "--jobs", "200", "--seed", "7", "-o", "w.parquet")
    assert status == ExitCode.OK
    assert "jobs 200" in out
    assert "nodes 16" in out
    status, out, _ = call("scale", "w.parquet", "--nodes", "4", "--window", "3d", "--runtime", "0.1", "-o", "s.csv")
    assert status == ExitCode.OK
    assert "before" in out
    status, out, _ = call("malleable", "s.csv", "--share", "0.5", "--seed", "1", "-o", "m.swf.gz")
    assert status == ExitCode.OK
    mixed = read_workload("m.swf.gz")
    assert [step.name for step in mixed.provenance.steps] == ["cirne", "scale", "malleable"]
    assert mixed.provenance.system == System(4, 1, "Cirne and Berman anl")
    assert (mixed.column("kind") == "malleable").sum() == round(len(mixed) / 2 + 1e-9)
    status, out, err = call("describe", "m.swf.gz", "--plot", "m.png")
    assert status == ExitCode.OK
    for word in (
        "offered load",
        "scaled",
        "Requested nodes",
        "Run time",
        "Arrivals by hour",
        "step 3: malleable",
    ):
        assert word in out
    assert Path("m.png").exists()
    assert "m.png" in err


def test_json_is_one_document_and_nothing_else(call: Callable[..., Any]) -> None:
    _, out, _ = call("generate", "cirne", "--jobs", "50", "-o", "w.parquet", "--json")
    drawn = json.loads(out)
    assert (drawn["jobs"], drawn["nodes"], drawn["step"]["name"]) == (50, 120, "cirne")
    assert drawn["sha256"] == read_workload("w.parquet").sha256
    _, out, _ = call("scale", "w.parquet", "--nodes", "12", "--runtime", "max=600s", "-o", "s.parquet", "--json")
    scaled = json.loads(out)
    assert scaled["longest_run_time_s"] == pytest.approx(600)
    assert scaled["before"]["nodes"] == 120
    _, out, _ = call("describe", "s.parquet", "--json")
    assert json.loads(out)["offered_load"] == scaled["offered_load"]
    _, out, _ = call("malleable", "s.parquet", "--share", "1", "-o", "m.parquet", "--json")
    assert json.loads(out)["malleable_jobs"] == 50
    _, out, _ = call("convert", "m.parquet", "-o", "m.csv", "--json")
    assert json.loads(out)["sha256"] == json.loads(call("convert", "m.csv", "-o", "n.parquet", "--json")[1])["sha256"]


def test_the_same_command_writes_the_same_bytes(call: Callable[..., Any]) -> None:
    for name in ("a.parquet", "b.parquet"):
        call("generate", "cirne", "--jobs", "100", "--set", "site=kth", "--seed", "3", "-o", name)
    assert Path("a.parquet").read_bytes() == Path("b.parquet").read_bytes()


def test_convert_counts_and_makes_nodes(call: Callable[..., Any]) -> None:
    Path("log.swf").write_text(SWF)
    status, out, err = call("convert", "log.swf", "-o", "w.parquet")
    assert status == ExitCode.OK
    assert "warning: log.swf: jobs with different requested and allocated processors (1 time)" in err
    assert "nodes 4" in out
    assert read_workload("w.parquet").ints("nodes").tolist() == [2]
    call("convert", "log.swf", "--by", "core", "--from", "swf", "-o", "c.parquet")
    assert read_workload("c.parquet").ints("nodes").tolist() == [8]
    assert read_workload("c.parquet").provenance.system == System(16, 1)


def test_a_defect_gives_one_warning(call: Callable[..., Any]) -> None:
    Path("log.swf").write_text(f"; TimeZoneString: Mars/Base\n{SWF}")
    status, _, err = call("describe", "log.swf", "--plot", "log.svg")
    assert status == ExitCode.OK
    assert err.count("Mars/Base") == 1


def test_constants_of_the_model_are_options(call: Callable[..., Any]) -> None:
    call("generate", "cirne", "--jobs", "9", "--set", "cancelled=0", "--set", "reduction=2", "-o", "w.parquet")
    parameters = read_workload("w.parquet").provenance.steps[0].parameters
    assert (parameters["cancelled"], parameters["reduction"]) == (0.0, 2)


def test_an_inventory_stands_for_its_size(call: Callable[..., Any]) -> None:
    Path("i.yaml").write_text('nodes:\n  - {name: "e[1-3]", cores: 2, emulated: true}\n')
    call("generate", "cirne", "--jobs", "9", "--cores-per-node", "8", "-o", "w.parquet")
    status, _, err = call("scale", "w.parquet", "--inventory", "i.yaml", "-o", "s.parquet")
    assert status == ExitCode.OK, err
    assert read_workload("s.parquet").provenance.system == System(3, 2, "Cirne and Berman anl")


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ("convert absent.swf -o w.csv", "absent.swf: no such file (check the path)"),
        ("convert log.swf -o w.xls", "w.xls: the name has no known output format"),
        ("convert log.swf -o no/w.csv", "folder does not exist"),
        ("convert log.swf --from xls -o w.csv", "unknown format 'xls'"),
        ("convert broken.swf -o w.csv", "broken.swf:2: line has 3 fields instead of 18"),
        ("describe log.swf --plot w.gif", "w.gif: unsupported picture format"),
        ("describe .", "is in format"),
        ("describe run", "run: is a run, not a workload (`tracebed metrics` reads runs"),
        (
            "metrics late",
            "late: is not a run: run.json is missing (a replay to it has not ended: `tracebed watch",
        ),
        ("scale log.swf --runtime fast -o w.csv", "--runtime 'fast' is no factor"),
        ("scale log.swf --runtime max=soon -o w.csv", "'soon' is not a duration"),
        ("scale log.swf --start tomorrow -o w.csv", "'tomorrow' is not a time"),
        ("scale log.swf --start 1999-01-01 -o w.csv", "submit times are from 0 s to 0 s"),
        ("scale log.swf --system big -o w.csv", "--system 'big' is not a machine"),
        ("scale broken.csv --nodes 2 -o w.csv", "the nodes of the workload's system are unknown"),
        ("scale log.swf --nodes 2 --inventory i.yaml -o w.csv", "give one of them"),
        ("malleable broken.csv --share 1 -o w.csv", "the size of the workload's system is unknown"),
        ("malleable log.swf --share 1 --set most=0 -o w.csv", "threshold most"),
        ("malleable log.swf --share 2 -o w.csv", "'--share'"),
        ("malleable log.swf --share nan -o w.csv", "nan is not a finite number"),
        ("malleable log.swf --share 1 --nodes 99999999999999999999 -o w.csv", "'--nodes'"),
        ("scale log.swf --nodes 99999999999999999999 -o w.csv", "'--nodes'"),
        ("scale log.swf --system 4x0 -o w.csv", "--system '4x0' is not a machine: 0 is not in the range"),
        ("scale log.swf --window 1e400 -o w.csv", "'1e400' is not a duration"),
        ("scale log.swf --window -1 -o w.csv", "'-1' is not from 0 to"),
        ("generate cirne --jobs 99999999999999 -o w.csv", "99999999999999 jobs is out of range"),
        (f"convert log.swf -o {'w' * 300}.csv", "File name too long"),
        ("generate cirne --jobs 1 --set load=x -o w.csv", "'x' is not a number"),
        ("generate cirne --jobs 1 --set weight=1 -o w.csv", "unknown constant 'weight'"),
        ("generate cirne --jobs 0 -o w.csv", "'--jobs'"),
        ("generate lublin", "unknown model 'lublin' (did you mean lublin99?"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments: str, what: str, call: Callable[..., Any]) -> None:
    Path("log.swf").write_text(SWF)
    Path("broken.swf").write_text("; Version: 2.2\n1 2 3\n")
    Path("broken.csv").write_text("job_id,submit_time,run_time,nodes\n1,0,1,1\n")
    Path("run").mkdir()
    Path("run/run.json").write_text("{}")
    Path("late.partial-0a1b").mkdir()
    status, out, err = call(*arguments.split())
    assert status == ExitCode.USAGE
    assert what in err
    assert "Traceback" not in err
    assert out == ""
    assert not Path("w.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ("convert log.swf -o log.swf", "log.swf: would replace what it is made from (name another file)"),
        ("convert link.swf -o ./log.swf", "would replace"),
        ("convert log.swf -o link.swf", "would replace"),
        ("convert daily -o daily/log.swf", "would replace"),
        ("convert es/jobs.json --to elastisim -o es", "would replace"),
        ("scale log.swf --nodes 2 -o log.swf", "would replace"),
        ("malleable log.swf --share 1 -o log.swf", "would replace"),
        ("generate jann97 --jobs 9 --log log.swf -o log.swf", "would replace"),
        ("clean daily --recipe least.yaml -o daily/log.swf", "would replace"),
        ("clean log.swf --recipe least.yaml --explain log.csv -o log.csv", "log.csv: two results under one name"),
        ("clean log.csv --recipe least.yaml --explain log.csv -o w.csv", "would replace"),
    ],
)
def test_no_command_writes_over_what_it_reads(arguments: str, what: str, call: Callable[..., Any]) -> None:
    Path("daily").mkdir()
    for name in ("log.swf", "daily/log.swf"):
        Path(name).write_text(SWF)
    Path("link.swf").symlink_to("log.swf")
    Path("log.csv").write_text("job_id,submit_time,run_time,nodes\n1,0,1,1\n")
    Path("least.yaml").write_text("steps: [merge_split, unique_ids]\n")
    call("convert", "log.swf", "--to", "elastisim", "-o", "es")
    before = {path: path.read_bytes() for path in sorted(Path().rglob("*.*")) if path.is_file()}
    status, out, err = call(*arguments.split())
    assert (status, out) == (ExitCode.USAGE, "")
    assert what in err
    assert {path: path.read_bytes() for path in sorted(Path().rglob("*.*")) if path.is_file()} == before


def test_a_name_of_any_kind_is_one_line(call: Callable[..., Any]) -> None:
    for name in ("two\nlines\x1b[1m.swf", os.fsdecode(b"latin\xfc.swf"), "ü [red].swf"):
        Path(name).write_text(SWF.replace(" 100 4 ", " 500 4 "))
        status, out, err = call("convert", name, "-o", "w.csv", "--replace")
        assert status == ExitCode.OK, err
        assert err.splitlines()[0].endswith("jobs that ran longer than their limit (1 time)")
        assert len(err.splitlines()) == 2
        Path(name).write_text("; Version: 2.2\n1 2 3\n")
        status, out, err = call("convert", name, "-o", "w.csv", "--replace")
        assert (status, out, err.count("\n")) == (ExitCode.USAGE, "", 1)
        assert "\x1b" not in err
    status, _, err = call("convert", "", "-o", "w.csv")
    assert (status, "the name is empty" in err) == (ExitCode.USAGE, True)


def test_a_pipe_is_read_and_a_device_is_not(call: Callable[..., Any]) -> None:
    os.mkfifo("pipe")
    writer = subprocess.Popen(["sh", "-c", f"printf %s '{SWF}' > pipe"])
    status, _, err = call("convert", "pipe", "-o", "w.csv")
    assert writer.wait() == 0
    assert status == ExitCode.OK, err
    assert len(read_workload("w.csv")) == 1
    for device in ("/dev/zero", "/dev/null"):
        status, _, err = call("convert", device, "-o", "w.csv", "--replace")
        assert (status, "is a device, not a file" in err) == (ExitCode.USAGE, True)


def test_unusual_output_paths(call: Callable[..., Any]) -> None:
    Path("log.swf").write_text(SWF)
    Path("loop.csv").symlink_to("loop.csv")
    for name in ("loop.csv", "w" * 250 + ".csv"):
        status, _, err = call("convert", "log.swf", "-o", name)
        assert status == ExitCode.OK, err
        assert len(read_workload(name)) == 1


def test_a_simulation_imports_only_what_it_needs(tmp_path: Path) -> None:
    table = pd.DataFrame({"job_id": ["a", "b"], "submit_time": [0.0, 1.0], "run_time": [9.0, 3.0], "nodes": [1, 2]})
    write_workload(Workload(table), tmp_path / "w.parquet")
    code = (
        "import sys; from tracebed import cli; sys.argv[0] = 'tracebed'\n"
        "try: cli.main()\nexcept SystemExit as end: status = end.code\n"
        "spare = {'docker', 'fabric', 'matplotlib', 'paramiko', 'pydantic', 'scipy', 'tracebed.benchmarks.program',\n"
        "  'tracebed.converters.cleaning', 'tracebed.converters.formats.swf', 'tracebed.converters.scaling',\n"
        "  'tracebed.converters.description', 'tracebed.converters.log', 'tracebed.orchestrator.replay',\n"
        "  'tracebed.orchestrator.scheduling.policies.sd', 'tracebed.orchestrator.scheduling.policies.slurm',\n"
        "  'tracebed.orchestrator.scheduling.scheduler', 'tracebed.orchestrator.scheduling.shapes',\n"
        "  'tracebed.orchestrator.testbeds.nodes', 'tracebed.validation.verdict', 'tracebed.validation.report'}\n"
        "print(status, sorted(spare & set(sys.modules)), 'pandas' in sys.modules)"
    )
    words = ["simulate", "w.parquet", "--policy", "pref", "--nodes", "2", "-o", "run"]
    for arguments, frames in ((words, False), (["metrics", "run"], True)):
        result = subprocess.run(
            [sys.executable, "-c", code, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert result.stdout.splitlines()[-1] == f"0 [] {frames}", arguments


def test_durations_in_words() -> None:
    assert [duration_text(s) for s in (None, 0.5, 60.0, 5400.0, 86_400.0, 220_000.0)] == [
        *("not known", "0.5 s", "1 min", "1.5 h", "1 d", "2.5 d"),
    ]


def test_charts_show_every_count() -> None:
    lines = bars("Sizes", {"1": 100, "2–3": 1, "4": 0}, width=8)
    assert "████████" in lines[1]
    assert "▏" in lines[2]
    assert not set(lines[3]) & set("▏▎▍▌▋▊▉█")
    assert len(set(map(len, lines))) == 1
    drawn = columns("Hours", {"0": 0, "1": 8, "2": 16}, height=2)
    assert [line.split() for line in drawn[1:3]] == [["██"], ["██", "██"]]


def test_convert_sets_a_system_that_the_file_lacks(call: Callable[..., Any]) -> None:
    Path("w.csv").write_text("job_id,submit_time,run_time,nodes\na,0,5,2\nb,9,5,80\n")
    status, _, err = call("convert", "w.csv", "--system", "64x48", "-o", "w.parquet")
    assert status == ExitCode.OK
    assert "jobs with more nodes than the machine has, kept (clean: over_machine) (1 time)" in err
    workload = read_workload("w.parquet")
    assert workload.provenance.system == System(64, 48)
    step = workload.provenance.steps[-1]
    assert (step.name, step.parameters) == ("system", {"nodes": 64, "cores_per_node": 48})
    assert list(step.counts.values()) == [1]
    Path("log.swf").write_text(SWF)
    assert call("convert", "log.swf", "--system", "9", "-o", "s.parquet")[0] == ExitCode.OK
    assert read_workload("s.parquet").provenance.system == System(9, 4), "the cores stay as known"
    for wrong in ("64x", "x48", "0x1", "64x48x2", "1e9x1", "99999999999x1"):
        status, _, err = call("convert", "w.csv", "--system", wrong, "-o", "no.parquet")
        assert (status, err.count("\n")) == (ExitCode.USAGE, 1)
        assert f"--system {wrong!r} is not a machine" in err
