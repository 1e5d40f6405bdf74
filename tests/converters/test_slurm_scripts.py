"""Exports for Slurm: a script that submits the jobs, and the events of a simulator."""

from __future__ import annotations

import math
import os
import re
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.converters.test_elastisim import VALUES, workload_of
from tests.executables import write_program
from tests.logs import tolerated
from tests.patience import GUARD_S
from tracebed.converters.formats import slurm, ub_slurm
from tracebed.converters.formats.writing import write_workload
from tracebed.converters.workload import SCHEMA, Provenance, System, Workload
from tracebed.ground.errors import InputError

SBATCH = """#!/bin/bash
echo "$EPOCHREALTIME" >> "$RECORD.times"
printf '%s\\0' "$#" "$@" >> "$RECORD"
case "$*" in *refuse*) exit 1;; esac
/bin/sleep 0.05
"""
SLEEP = """#!/bin/bash
echo "$1" >> "$RECORD.sleeps"
/bin/sleep "$1"
"""


def written(workload: Workload, path: Path, format: str, **options: Any) -> dict[str, int]:
    with tolerated() as counts:
        write_workload(workload, path, format, **options)
    return counts


def test_demands_of_a_cluster_are_written_if_wanted(tmp_path: Path) -> None:
    table = {
        **{"job_id": ["1", "2"], "submit_time": [0.0, 0.0], "run_time": [1.0, 1.0], "nodes": [1, 2]},
        **{"partition": ["gpu", ""], "queue": ["high", ""], "features": ["a|b", ""], "gres": ["gpu:2", ""]},
        **{"memory_mib": [999.5, math.nan], "licenses": ["", "matlab:2"], "reservation": ["", "it's"]},
        **{"dependency": ["", "afterok:1"]},
    }
    path, workload = tmp_path / "s.sh", Workload(pd.DataFrame(table))
    left = written(workload, path, "slurm", demands=True)
    assert [what for what in left if "dependency" in what] == [
        "columns without a field in the script (dependency), left out"
    ]
    first, second = submitted(path, tmp_path)[0]
    names = ("--partition", "--qos", "--constraint", "--gres", "--mem", "--licenses", "--reservation")
    assert [word for word in first if word.startswith(names)] == [
        *("--partition=gpu", "--qos=high", "--constraint=a|b", "--gres=gpu:2", "--mem=1000M"),
    ]
    assert [word for word in second if word.startswith(names)] == ["--licenses=matlab:2", "--reservation=it's"]
    written(workload, tmp_path / "plain.sh", "slurm")
    assert "--partition" not in (tmp_path / "plain.sh").read_text().partition("\nat 0")[2]


def submitted(
    script: Path, tmp_path: Path, *more: str, **variables: str
) -> tuple[list[list[str]], list[float], int, str]:
    """Run a script with substitutes of sbatch and sleep.

    Return the arguments of each call of sbatch, its time (s since the start of the script), status and error.
    """
    for name, text in (("sbatch", SBATCH), ("sleep", SLEEP)):
        write_program(tmp_path / "bin" / name, text)
    record = tmp_path / "record"
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "RECORD": str(record)} | variables
    before = time.time()
    done = subprocess.run(
        ["bash", str(script), *more], env=environment, capture_output=True, text=True, timeout=GUARD_S
    )
    calls, words = [], record.read_bytes().split(b"\0")[:-1]
    while words:
        count = int(words[0])
        calls.append([word.decode() for word in words[1 : count + 1]])
        words = words[count + 1 :]
    times = [float(line) - before for line in Path(f"{record}.times").read_text().split()]
    return calls, times, done.returncode, done.stderr


def test_a_script_submits_each_job_at_its_time(tmp_path: Path) -> None:
    names = ["plain", "two words", 'it\'s "$HOME" `x` \\ ;|&', "-dash", "line\nbreak", "Zürich"]
    jobs = [
        {"job_id": name, "submit_time": 50.0 + 10 * number, "run_time": 30.5, "cores_per_node": 2, "time_limit": 4000.0}
        for number, name in enumerate(names)
    ]
    jobs[1]["time_limit"] = math.nan
    script = tmp_path / "s.sh"
    tolerated = written(workload_of(*jobs), script, "slurm", speed=100)
    assert subprocess.run(["bash", "-n", str(script)], check=True).returncode == 0
    calls, times, status, error = submitted(script, tmp_path, "--partition=a b")
    assert (status, error) == (0, "")
    kept = [name.replace("\n", "_") for name in names]
    for number, (call, name) in enumerate(zip(calls, kept, strict=True)):
        limit = [] if number == 1 else ["--time=1"]  # 4,000 s are 40 s at this speed, and Slurm's limits are in minutes
        sizes = ["--nodes=4", "--ntasks-per-node=2", *limit, "--output=/dev/null", "--partition=a b"]
        assert call == [f"--job-name={name}", *sizes, "--wrap=sleep 0.305"]
    for number, instant in enumerate(times):  # submissions may be late on a loaded machine, but never early
        assert instant >= 0.1 * number
    assert tolerated == {
        "time limits rounded up to whole minutes": 5,
        "job ids with control characters, written as _": 1,
    }


def test_a_job_may_run_a_program_with_the_application_of_the_workload(tmp_path: Path) -> None:
    parameters = ["units=2 shape='a b'", '$HOME `x` "y" \\ }']
    jobs = [{"application": "stream", "application_parameters": text, "run_time": 3.5} for text in parameters]
    script = tmp_path / "s.sh"
    assert not written(workload_of(*jobs), script, "slurm")
    assert [call[-1] for call in submitted(script, tmp_path)[0]] == ["--wrap=sleep 3.5"] * 2
    (tmp_path / "record").unlink()
    calls, *_ = submitted(script, tmp_path, JOB="srun ./job")
    for call, text in zip(calls, parameters, strict=True):
        assert shlex.split(call[-1].removeprefix("--wrap=")) == ["srun", "./job", "3.5", "stream", text]


def test_lateness_does_not_add_up(tmp_path: Path) -> None:
    script = tmp_path / "s.sh"
    written(workload_of(*({"submit_time": 0.5 * number} for number in range(6))), script, "slurm")
    lines = [line for line in script.read_text().splitlines() if line.startswith("at ")]
    assert [int(line.split()[1].rstrip(";")) for line in lines] == [500_000 * number for number in range(6)]
    submitted(script, tmp_path)
    # each sbatch takes 0.05 s or more, so that there is no more than the rest of 0.5 s to wait for the next job
    sleeps = [float(line) for line in (tmp_path / "record.sleeps").read_text().split()]
    assert all(0 < asked <= 0.45 for asked in sleeps[1:])


def test_refused_jobs_are_counted(tmp_path: Path) -> None:
    script = tmp_path / "s.sh"
    written(workload_of({"job_id": "refuse1"}, {"job_id": "good"}, {"job_id": "refuse2"}), script, "slurm")
    calls, _, status, error = submitted(script, tmp_path)
    assert (len(calls), status, error) == (3, 1, "2 of 3 jobs were rejected\n")


@pytest.mark.parametrize(("limit", "minutes"), [(60.0, 1), (61.0, 2), (0.0, 1), (3600.0, 60)])
def test_limits_are_minutes_rounded_up(tmp_path: Path, limit: float, minutes: int) -> None:
    written(workload_of({"time_limit": limit, "run_time": 0.0}), tmp_path / "s.sh", "slurm")
    assert f" --time={minutes} " in (tmp_path / "s.sh").read_text()


def test_an_invalid_speed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="speed 0"):
        written(workload_of({}), tmp_path / "s.sh", "slurm", speed=0)
    with pytest.raises(InputError, match="does not support option 'iterations'"):
        written(workload_of({}), tmp_path / "s.sh", "slurm", iterations=2)


@pytest.mark.parametrize(("format", "held"), [("slurm", slurm.HELD), ("ub-slurm", ub_slurm.HELD)])
def test_each_column_is_held_or_warned_of(tmp_path: Path, format: str, held: set[str]) -> None:
    workload = Workload(pd.DataFrame([VALUES]).assign(extra_n=[1.5]), Provenance(system=System(16, 4)))
    tolerated = written(workload, tmp_path / "w", format)
    (warning,) = (what for what in tolerated if "columns without a field" in what)
    warned = set(re.search(r"in .* \((.*)\), left out", warning)[1].split(", "))  # type: ignore[index]
    assert warned == {*SCHEMA, "extra_n"} - held
    text = (tmp_path / "w").read_text()
    for name in held & {"user", "group", "partition", "queue"}:
        assert re.search(rf"[ =]{VALUES[name]} ", text)


def test_events_of_the_simulator(tmp_path: Path) -> None:
    usual = {"cores_per_node": 1, "user": "", "group": "", "queue": "", "partition": ""}
    workload = workload_of(
        usual
        | {
            "job_id": "17",
            "submit_time": 10.0,
            "run_time": 20.0,
            "time_limit": 90061.5,
            "user": "ann",
            "group": "chem",
        },
        usual
        | {"job_id": "4", "submit_time": 11.6, "run_time": 2.4, "cores_per_node": 3, "memory_mib": 100.2, "nodes": 2},
        usual | {"job_id": "9", "submit_time": 12.0, "user": "a b|c", "queue": "long", "partition": "gpu"},
    )
    tolerated = written(workload, tmp_path / "w.events", "ub-slurm")
    lines = (tmp_path / "w.events").read_text().splitlines()
    head = "-e submit_batch_job |"
    assert lines == [
        f"-dt 0 {head} -J jobid_17 -sim-walltime 20 -t 1-01:01:02 -n 4 --ntasks-per-node=1 --uid=ann -A chem "
        "pseudo.job",
        f"-dt 2 {head} -J jobid_4 -sim-walltime 2 -n 6 --ntasks-per-node=3 --mem=101 --uid=user1 pseudo.job",
        f"-dt 2 {head} -J jobid_9 -sim-walltime 100 -n 4 --ntasks-per-node=1 --uid=a_b_c -p gpu -q long pseudo.job",
    ]
    assert tolerated == {
        "submissions and run times rounded to whole seconds": 1,
        "time limits rounded up to whole seconds": 1,
        "names with unsupported characters, written with _": 1,
        "jobs without a user, submitted by user1": 1,
    }
    for line in lines:
        command, bar, details = line.partition("|")
        assert (len(shlex.split(command)), bar) == (4, "|")
        assert "|" not in details


def test_ids_that_are_not_numbers_are_numbered(tmp_path: Path) -> None:
    tolerated = written(workload_of({"job_id": "4"}, {"job_id": "4[2]"}), tmp_path / "w.events", "ub-slurm")
    assert tolerated["job ids that are not numbers, written as 1, 2, ..."] == 2
    assert re.findall(r"jobid_(\d+)", (tmp_path / "w.events").read_text()) == ["1", "2"]
