"""An operator's export of sacct, from its cleaning to the simulation of the cluster of its slurm.conf."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest

import tracebed.api as tb
from tests.recorders import sacct_dumps
from tracebed.converters.formats.reading import read_workload
from tracebed.ground.errors import ExitCode
from tracebed.orchestrator.run import Run

ROWS = sacct_dumps.rows(jobs=300, seed=3)
FIELDS = sacct_dumps.FIELDS
SLURM = ("--policy", "slurm", "-P", "@slurm.conf", "--over-limit", "kill")
Rows = list[dict[str, str]]


@pytest.fixture
def simulated(call: Callable[..., Any]) -> Callable[..., tuple[pd.DataFrame, str]]:
    """Return a function that cleans and simulates an export; it returns the jobs of the run, and what was said."""

    def simulated(text: str, conf: str = sacct_dumps.CONF, *options: str) -> tuple[pd.DataFrame, str]:
        Path("sacct.txt").write_text(text)
        Path("slurm.conf").write_text(conf)
        options = (*options, "--time-zone", sacct_dumps.ZONE, "-o", "w.parquet", "--replace")
        status, _, cleaned = call("clean", "sacct.txt", "--recipe", "slurm", *options)
        assert status == ExitCode.OK, cleaned
        status, _, said = call("simulate", "w.parquet", *SLURM, "-o", "run", "--replace")
        assert status == ExitCode.OK, said
        return Run.load(Path("run")).jobs.set_index("job_id"), cleaned + said

    return simulated


def test_an_export_goes_to_the_simulation_without_a_hand_written_line(
    simulated: Callable[..., tuple[pd.DataFrame, str]], call: Callable[..., Any]
) -> None:
    jobs, said = simulated(sacct_dumps.text(ROWS))
    ran = [row for row in ROWS if "." not in row["JobID"] and row["NodeList"] != "None assigned"]
    assert len(jobs) == len(ran)
    assert set(jobs["state"]) == {"completed", "killed"}  # nothing is rejected
    limits = sum(row["Timelimit"] in ("Partition_Limit", "UNLIMITED") for row in ran)
    assert f"{limits} jobs without a time limit: DefaultTime or MaxTime" in said
    assert "run time used as limit" not in said
    assert "time zone, taken as UTC" not in said
    workload = read_workload("w.parquet")
    first = datetime.fromtimestamp(workload.provenance.unix_start or 0.0, ZoneInfo(sacct_dumps.ZONE))
    assert f"{first:%Y-%m-%dT%H:%M:%S}" == ROWS[0]["Submit"]
    assert set(workload.column("gres")) == {"", "gpu:a100:1", "gpu:a100:2", "gpu:a100:4"}
    assert set(workload.column("features")) == {"", "cpu&ib"}
    assert {"course", ""} == set(workload.column("reservation"))
    assert any(name.endswith("%2") for name in workload.column("array"))
    assert any(name.startswith("afterany:") for name in workload.column("dependency"))
    assert any(name.startswith("matlab:") for name in workload.column("licenses"))
    assert workload.ints("spread").sum() > 0
    for command in (["describe", "w.parquet", "--system", "@slurm.conf"], ["describe", "sacct.txt"]):
        assert call(*command)[0] == ExitCode.OK


FIRST_GPU_NODE = len(sacct_dumps.NODES["cpu"])
"""Number of the first GPU node, in the order of the slurm.conf."""


def test_gpu_jobs_stay_on_gpu_nodes_and_parts_of_nodes_are_parts(
    simulated: Callable[..., tuple[pd.DataFrame, str]],
) -> None:
    simulated(sacct_dumps.text(ROWS))
    jobs, held = read_workload("w.parquet").table.set_index("job_id"), Run.load(Path("run")).allocations
    partition, cores = jobs.loc[held["job_id"], "partition"].to_numpy(), jobs.loc[held["job_id"], "cores_per_node"]
    assert (held["node"][partition == "gpu"] >= FIRST_GPU_NODE).all()
    assert (held["node"][partition == "cpu"] < FIRST_GPU_NODE).all()
    alone = (jobs.loc[held["job_id"], "spread"] == 0).to_numpy()
    np.testing.assert_array_equal(held["cores"][alone], cores[alone])


def renamed(rows: Rows, **columns: Callable[[str], str]) -> Rows:
    return [{**row, **{name: change(row[name]) for name, change in columns.items()}} for row in rows]


def clock(text: str) -> str:
    """Return a time of the export in s since 1970."""
    if not text[0].isdigit():
        return text
    return f"{datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(sacct_dumps.ZONE)).timestamp():.0f}"


TIMES = ("Submit", "Eligible", "Start", "End")
USUAL = sacct_dumps.text(ROWS)
HEADER, *LINES = USUAL.splitlines(keepends=True)
HARMLESS = {
    "steps left out by -X": sacct_dumps.text(row for row in ROWS if "." not in row["JobID"]),
    "exports that overlap": USUAL + "".join(LINES[:200]),
    "the header of a second export": "".join([HEADER, *LINES[:100], HEADER, *LINES[100:]]),
    "Windows line ends": USUAL.replace("\n", "\r\n"),
    "a delimiter at the end of lines (-p)": USUAL.replace("\n", "|\n"),
    "another delimiter": sacct_dumps.text(ROWS, delimiter="^"),
    "times in s since 1970": sacct_dumps.text(
        renamed(ROWS, **dict.fromkeys(("Submit", "Eligible", "Start", "End"), clock))
    ),
    "another order of fields": sacct_dumps.text(ROWS, (*FIELDS[5:], *FIELDS[:5])),
    "a byte order mark": "\ufeff" + USUAL,
    "spaces after the rows": USUAL + "\n\n",
}


@pytest.mark.parametrize("what", HARMLESS)
def test_a_harmless_difference_changes_no_job(what: str, tmp_path: Path) -> None:
    expected = cleaned(tmp_path / "usual.txt", USUAL)
    pd.testing.assert_frame_equal(cleaned(tmp_path / "other.txt", HARMLESS[what]), expected)


def cleaned(path: Path, text: str) -> pd.DataFrame:
    """Return the jobs of an export."""
    path.write_text(text, encoding="utf-8", newline="")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tb.clean(path, "slurm", keep_names=True, time_zone=sacct_dumps.ZONE).table


NO_DEMANDS = tuple(name for name in FIELDS if name not in ("Constraints", "Reservation", "SubmitLine", "ReqNodes"))
NO_RESOURCES = tuple(name for name in FIELDS if name not in ("AllocTRES", "ReqTRES", "SubmitLine"))


def test_what_an_export_lacks_is_unknown(tmp_path: Path) -> None:
    fewer = cleaned(tmp_path / "a.txt", sacct_dumps.text(ROWS, NO_DEMANDS))
    assert not {"features", "reservation", "dependency"} & set(fewer)
    assert set(fewer["gres"]) == {"", "gpu:a100:1", "gpu:a100:2", "gpu:a100:4"}
    assert not any("%" in name for name in fewer["array"]) or any("[" in row["JobID"] for row in ROWS)
    usual = cleaned(tmp_path / "b.txt", USUAL)
    np.testing.assert_array_equal(fewer["memory_mib"], usual["memory_mib"])
    none = cleaned(tmp_path / "c.txt", sacct_dumps.text(ROWS, NO_RESOURCES))
    assert "gres" not in none
    np.testing.assert_array_equal(none["memory_mib"], usual["memory_mib"])


WRONG = {
    "a partition that the slurm.conf lacks": (
        USUAL.replace("|debug|", "|old|"),
        "jobs rejected by the policy",
    ),
    "an unknown state": (USUAL.replace("|FAILED|", "|BROKEN|"), "unknown state: BROKEN"),
    "no limits": (sacct_dumps.text(renamed(ROWS, Timelimit=lambda _: "UNLIMITED")), "limit: DefaultTime or MaxTime"),
    "a last line that is cut off": (USUAL[:-40], "last line cut off, left out"),
    "an end before the start": (
        sacct_dumps.text([*ROWS, {**ROWS[0], "JobID": "1", "End": ROWS[0]["Submit"]}]),
        "end before their start",
    ),
    "jobs larger than their partition": (
        USUAL.replace("|2|96|2|", "|20|960|20|"),
        "jobs rejected by the policy",
    ),
    "GPUs that the slurm.conf lacks": (USUAL.replace("gres/gpu", "gres/fpga"), "jobs rejected by the policy"),
}


@pytest.mark.parametrize("what", WRONG)
def test_one_thing_wrong_is_said_and_the_rest_is_simulated(
    what: str, simulated: Callable[..., tuple[pd.DataFrame, str]]
) -> None:
    text, message = WRONG[what]
    assert text != USUAL
    jobs, said = simulated(text)
    assert message in said
    assert (jobs["state"] != "rejected").mean() > 0.5


REFUSED = {
    "no submissions": (sacct_dumps.text(ROWS, tuple(name for name in FIELDS if name != "Submit")), "submit is missing"),
    "columns for the eye": (USUAL.replace("|", "  "), "padded with blanks"),
    "a word for a number": (sacct_dumps.text([{**ROWS[0], "NCPUS": "many"}, *ROWS[1:]]), "'many' is not a number of"),
    "no rows": (HEADER, "contains no jobs"),
    "two clusters": (USUAL.replace("|harbor|", "|other|", 5), "machines: "),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_read_is_one_line(what: str, call: Callable[..., Any]) -> None:
    text, message = REFUSED[what]
    Path("sacct.txt").write_text(text)
    status, _, said = call("clean", "sacct.txt", "--recipe", "slurm", "--from", "sacct", "-o", "w.parquet")
    assert (status, message in said.splitlines()[-1]) == (ExitCode.USAGE, True), said


def test_a_log_by_core_is_no_workload_of_a_slurm_conf(call: Callable[..., Any]) -> None:
    Path("sacct.txt").write_text(USUAL)
    Path("slurm.conf").write_text(sacct_dumps.CONF)
    assert call("clean", "sacct.txt", "--recipe", "slurm", "--by", "core", "-o", "w.parquet")[0] == ExitCode.OK
    status, _, said = call("simulate", "w.parquet", *SLURM, "-o", "run")
    assert (status, "read the log again: convert --by node" in said) == (ExitCode.USAGE, True)


def test_cpus_of_a_log_are_hardware_threads(simulated: Callable[..., tuple[pd.DataFrame, str]]) -> None:
    twice = [{**row, "NCPUS": str(2 * int(row["NCPUS"]))} for row in ROWS]
    usual, _ = simulated(sacct_dumps.text(ROWS))
    threaded, _ = simulated(sacct_dumps.text(twice), sacct_dumps.CONF.replace("ThreadsPerCore=1", "ThreadsPerCore=2"))
    pd.testing.assert_series_equal(threaded["start"], usual["start"])
