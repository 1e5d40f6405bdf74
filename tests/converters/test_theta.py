"""The reader of ALCF's job logs, and the shipped recipe."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tracebed.converters.cleaning import audit, recipes
from tracebed.converters.formats.reading import read_raw, read_workload
from tracebed.converters.workload import System, Workload
from tracebed.ground.errors import InputError, Tolerated

COLUMNS = (
    *("JOB_NAME", "COBALT_JOBID", "MACHINE_NAME", "QUEUED_TIMESTAMP", "QUEUED_DATE_ID", "START_TIMESTAMP"),
    *("START_DATE_ID", "END_TIMESTAMP", "END_DATE_ID", "USERNAME_GENID", "PROJECT_NAME_GENID", "QUEUE_NAME"),
    *("WALLTIME_SECONDS", "RUNTIME_SECONDS", "NODES_USED", "NODES_REQUESTED", "CORES_USED", "CORES_REQUESTED"),
    *("LOCATION", "EXIT_STATUS", "ELIGIBLE_WAIT_SECONDS", "MODE", "OVERBURN_CORE_HOURS"),
)


def row(job: int, submit: str, start: str, seconds: float, nodes: int = 128, **values: object) -> str:
    """Return a record of August 2023; times are day and clock: `01 10:00:00`."""
    end = pd.Timestamp(f"2023-08-{start}") + pd.Timedelta(seconds=seconds)
    usual = {
        **{"JOB_NAME": f"{job}.theta", "COBALT_JOBID": job, "MACHINE_NAME": "theta", "QUEUED_DATE_ID": "20230801"},
        **{"QUEUED_TIMESTAMP": f"2023-08-{submit}", "START_TIMESTAMP": f"2023-08-{start}", "END_TIMESTAMP": str(end)},
        **{"USERNAME_GENID": 11, "PROJECT_NAME_GENID": 12, "QUEUE_NAME": "default", "WALLTIME_SECONDS": "3600.0"},
        **{"RUNTIME_SECONDS": f"{seconds}", "NODES_USED": f"{nodes}.0", "NODES_REQUESTED": f"{nodes}.0"},
        **{"CORES_USED": f"{64 * nodes}.0", "CORES_REQUESTED": f"{64 * nodes}.0", "LOCATION": '"1-64,70"'},
        **{"EXIT_STATUS": "0.0", "ELIGIBLE_WAIT_SECONDS": "5.0", "MODE": "script", "OVERBURN_CORE_HOURS": "0.0"},
    }
    return ",".join(str({**usual, **values}.get(name, "")) for name in COLUMNS)


ROWS = [
    row(1, "01 10:00:00", "01 11:00:00", 1800.0),
    row(2, "01 10:00:00.250000", "01 11:00:00.500000", 3600.5, EXIT_STATUS="143.0"),
    row(3, "01 12:00:00", "01 11:30:00", 60.0, EXIT_STATUS="1.0"),
    row(4, "01 13:00:00", "01 13:10:00", 60.0, nodes=8, QUEUE_NAME="debug-flat-quad"),
    row(5, "02 10:00:00", "02 10:30:00", 0.0, NODES_USED="0.0"),
    row(6, "02 11:00:00", "02 12:00:00", 600.0, nodes=4400),
    row(7, "02 11:00:00", "02 12:00:00", 600.0, nodes=0, WALLTIME_SECONDS="0.0", EXIT_STATUS=""),
    row(1, "03 10:00:00", "03 11:00:00", 1800.0),
]
HEADER = ",".join(COLUMNS)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "ANL-ALCF-DJC-THETA_20230101_20231231.csv"


def read(path: Path, text: str, **options: object) -> Workload:
    path.write_text(text, encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return read_workload(path, **options)


def text(rows: list[str], header: str = HEADER) -> str:
    return "\n".join([header, *rows]) + "\n"


def test_rows_become_jobs(log: Path) -> None:
    workload = read(log, text(ROWS))
    jobs = workload.table.set_index("job_id")
    assert list(jobs.index) == ["1", "2", "3", "4", "5", "6", "7", "1-2"]
    assert jobs.loc["2", ["submit_time", "logged_start", "run_time"]].tolist() == [0.25, 3600.5, 3600.5]
    assert jobs.loc["3", "submit_time"] == jobs.loc["3", "logged_start"] == 5400.0  # submitted after it started
    assert jobs["status"].tolist() == ["completed", "killed", "failed", *["completed"] * 3, "", "completed"]
    assert jobs["nodes"].tolist() == [128, 128, 128, 8, 128, 4400, 0, 128]
    assert set(jobs["cores_per_node"]) == {64}
    assert jobs.loc["1", "time_limit"] == 3600.0 and np.isnan(jobs.loc["7", "time_limit"])
    assert jobs.loc["1", "user"].startswith("user-")
    assert workload.provenance.system == System(4392, 64, "ALCF Theta")
    assert workload.provenance.unix_start == pd.Timestamp("2023-08-01 10:00:00", tz="UTC").timestamp()
    assert workload.provenance.time_zone == "UTC"


def test_columns_are_found_by_name_in_any_case_and_order(log: Path) -> None:
    expected = read(log, text(ROWS), keep_names=True).table
    turned = [",".join(reversed(line.replace('"1-64,70"', "1-64").split(","))) for line in ROWS]
    header = ",".join(["SCIENCE_FIELD", *(name.lower() for name in reversed(COLUMNS))])
    found = read(log, text([f"physics,{line}" for line in turned], header), keep_names=True)
    pd.testing.assert_frame_equal(found.table, expected)
    assert (
        "extra_SCIENCE_FIELD" in read(log, text([f"physics,{line}" for line in turned], header), keep_extra=True).table
    )


def test_another_machine_has_its_name_only(log: Path) -> None:
    rows = [row(1, "01 10:00:00", "01 11:00:00", 60.0, MACHINE_NAME="polaris", CORES_USED="4096", COBALT_JOBID=77)]
    workload = read(log, text(rows))
    assert workload.provenance.system == System(name="ALCF polaris")
    assert workload.table.loc[0, ["job_id", "cores_per_node"]].tolist() == ["1", 32]


def test_years_of_several_machines_are_refused_until_one_is_chosen(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    (folder / "a.csv").write_text(text(ROWS[:1]))
    (folder / "b.csv").write_text(text([ROWS[1].replace("theta,2", "mira,2")]))
    with pytest.raises(InputError, match=r"log: contains jobs of 2 machines: theta, mira .choose one"):
        read_workload(folder)
    with pytest.warns(Tolerated, match=r"records of other machines, left out .1 time"):
        mira = read_workload(folder, machine="Mira")
    assert (mira.provenance.system, len(mira)) == (System(name="ALCF mira"), 1)
    assert mira.provenance.steps[0].parameters["machine"] == "Mira"


def test_the_shipped_recipe(log: Path) -> None:
    log.write_text(text(ROWS))
    recipe = recipes.load_recipe("theta")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cleaned = audit.clean(read_raw([log]), recipe.steps, system=recipe.system)
    jobs = cleaned.workload.table.set_index("job_id")
    assert list(jobs.index) == ["1", "2", "3", "4", "6", "1-2"], "the paper left the debug queues in"
    assert jobs.loc["6", "nodes"] == 4392
    assert jobs.loc["2", "time_limit"] == 3600.5  # the job exceeded its limit
    dropped = {row.step: row.dropped for row in cleaned.audit if row.dropped}
    assert dropped == {"drop_zero_nodes": 1, "drop_short": 1}


BAD = {
    "no row": (text([]), "contains no jobs"),
    "a column missing": (text(ROWS).replace("END_TIMESTAMP", "ENDED"), r"csv:1: column 'end_timestamp' is missing"),
    "another locale": (
        text(ROWS).replace("2023-08-01 13:00:00", "01/08/2023 13:00"),
        r"csv:5: QUEUED_TIMESTAMP '01/08",
    ),
    "a word for a number": (text(ROWS).replace("4400.0", "many"), r"csv:7: NODES_USED 'many' is not a number"),
    "a line cut": (text(ROWS).replace(",default,3600.0", "", 1), r"csv:2: 21 values, but the header has 23"),
    "another delimiter": (HEADER + "\n" + text(ROWS, "").replace(",", ";"), "1 values, but the header has 23"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_clear_line(log: Path, what: str) -> None:
    content, message = BAD[what]
    with pytest.raises(InputError, match=message):
        read(log, content)
