"""Public data sets: PM100, F-DATA, Lassen, MIT Supercloud. All tables here are synthetic."""

from __future__ import annotations

import io
import itertools
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from tests.fuzzing.fuzz import read_or_refuse
from tests.logs import tolerated
from tracebed.converters.cleaning.audit import jobs_of
from tracebed.converters.formats import fdata, lassen, pm100, supercloud
from tracebed.converters.formats.tools.files import Input
from tracebed.converters.log import Log
from tracebed.converters.workload import System, Workload
from tracebed.ground.errors import InputError


def parquet(columns: dict[str, Any]) -> bytes:
    """Return a table as the bytes of a Parquet file."""
    buffer = io.BytesIO()
    pd.DataFrame(columns).to_parquet(buffer, index=False, compression=None)
    return buffer.getvalue()


def read(reader: Callable[..., Log], data: bytes, **options: Any) -> tuple[Workload, dict[str, int]]:
    """Return the workload and the tolerated defects; `test_cori` covers ignored columns."""
    with tolerated() as counts:
        workload = jobs_of(reader([Input.of(data, "log")], **options))
    return workload, {what: count for what, count in counts.items() if not what.startswith("columns left out")}


def times(*texts: str | None, zone: str | None = "UTC") -> pd.Series[Any]:
    """Return dates as Parquet stores them."""
    return pd.Series(pd.to_datetime(pd.Series(texts), utc=zone is not None)).dt.tz_convert(zone)


# -- PM100


def marconi(**changes: Any) -> dict[str, Any]:
    """Return three jobs of PM100: the second got more than requested, the third never ended."""
    return {
        "job_id": [11, 12, 13],
        "user_id": [7, 7, 8],
        "group_id": [1, 1, 1],
        "partition": ["2", "2", "2"],
        "qos": ["0", "0", "1"],
        "time_limit": [60, 1440, 4294967295],
        "num_nodes_req": [1, 2, 4],
        "num_nodes_alloc": [1, 3, 4],
        "num_cores_req": [128, 256, 16],
        "num_cores_alloc": [128, 384, 16],
        "num_gpus_req": [4, 0, 0],
        "mem_req": [237, 474, 10],
        "submit_time": times("2020-05-02 10:00:00", "2020-05-02 10:00:30", "2020-05-02 11:00:00"),
        "start_time": times("2020-05-02 10:00:05", "2020-05-02 10:10:00", "2020-05-02 11:00:00"),
        "end_time": times("2020-05-02 10:30:05", "2020-05-02 11:10:00", None),
        "job_state": ["COMPLETED", "TIMEOUT", "OUT_OF_MEMORY"],
        "node_power_consumption": [[240.0, 260.0], [500.0], [90.0]],
        **changes,
    }


def test_pm100() -> None:
    workload, tolerated = read(pm100.SITE.read, parquet(marconi()))
    assert workload.provenance.system == System(980, 32, "CINECA Marconi100")
    assert workload.provenance.time_zone == "Europe/Rome"
    assert workload.provenance.unix_start == 1_588_413_600
    assert workload.column("job_id").tolist() == ["11", "12", "13"]
    assert workload.floats("submit_time").tolist() == [0, 30, 3600]
    np.testing.assert_array_equal(workload.floats("run_time"), [1800, 3600, np.nan])
    np.testing.assert_array_equal(workload.floats("time_limit"), [3600, 86400, np.nan])
    assert workload.ints("nodes").tolist() == [1, 2, 4]
    assert workload.ints("cores_per_node").tolist() == [32, 32, 1]
    assert workload.column("status").tolist() == ["completed", "killed", "failed"]
    np.testing.assert_array_equal(workload.floats("extra_gpus"), [4, np.nan, np.nan])
    assert workload.column("gres").tolist() == ["gpu:4", "", ""]
    np.testing.assert_array_equal(workload.floats("extra_allocated"), [np.nan, 96, np.nan])
    assert tolerated == {"cores counted as hardware threads, divided by 4": 3}
    assert "extra_node_power_consumption" not in workload.table
    assert workload.column("user")[0].startswith("user-")


def test_pm100_keeps_power_and_names_on_request() -> None:
    workload, _ = read(pm100.SITE.read, parquet(marconi()), keep_extra=True, keep_names=True)
    assert workload.column("extra_node_power_consumption")[0] == "[240.0, 260.0]"
    assert workload.column("extra_mem_req").tolist() == [237, 474, 10]
    assert workload.column("user").tolist() == ["7", "7", "8"]


def test_pm100_with_cores_and_with_the_names_of_exadata() -> None:
    few = marconi(num_cores_req=[32, 64, 16], num_cores_alloc=[32, 96, 16])
    workload, tolerated = read(pm100.SITE.read, parquet(few))
    assert workload.ints("cores_per_node").tolist() == [32, 32, 4]
    assert tolerated == {}
    raw = {name: values for name, values in marconi().items() if "alloc" not in name and "gpus" not in name}
    raw["num_nodes"], raw["num_cpus"] = raw.pop("num_nodes_req"), raw.pop("num_cores_req")
    data = parquet(raw | {"cpus_alloc_layout": ["{}"] * 3})
    assert pm100.SITE.recognizes(Input.of(data, "a"))
    workload, _ = read(pm100.SITE.read, data)
    assert workload.ints("nodes").tolist() == [1, 2, 4]
    assert workload.ints("cores_per_node").tolist() == [32, 32, 1]


# -- F-DATA


def fugaku(**changes: Any) -> dict[str, Any]:
    """Return three jobs of F-DATA: the first is of 3 AM in Japan, the second got 12 instead of 10 nodes."""
    return {
        "jid": ["jid_1", "jid_2", "jid_3"],
        "usr": ["usr_0", "usr_1", "usr_0"],
        "jnam": ["jnam_0", "jnam_1", "jnam_0"],
        "cnumr": [48, 480, 12],
        "nnumr": [1, 10, 1],
        "nnuma": [1, 12, 1],
        "elpl": [3600, 7200, 600],
        "adt": ["2021-04-01 03:00:00+09:00", "2021-04-01 03:00:10+09:00", "2021-04-01 03:01:00+09:00"],
        "sdt": ["2021-04-01 03:00:07+09:00", "2021-04-01 03:10:10+09:00", "2021-04-01 03:01:00+09:00"],
        "edt": ["2021-04-01 03:30:07+09:00", "2021-04-01 04:10:10+09:00", "2021-04-01 03:01:00+09:00"],
        "econ": [40.0, 900.0, 0.1],
        "avgpcon": [80.0, 950.0, 90.0],
        "exit state": ["completed", "failed", "completed"],
        "embedding": [[0.1] * 384] * 3,
        **changes,
    }


@pytest.mark.parametrize("stored", ["text", "dates"])
def test_fdata(stored: str) -> None:
    table = fugaku()
    if stored == "dates":
        table |= {name: times(*table[name], zone="Asia/Tokyo") for name in ("adt", "sdt", "edt")}
    workload, tolerated = read(fdata.SITE.read, parquet(table))
    assert workload.provenance.system == System(158_976, 48, "RIKEN Fugaku")
    assert workload.provenance.unix_start == 1_617_213_600  # 18:00 UTC of the day before
    assert workload.floats("submit_time").tolist() == [0, 10, 60]
    assert workload.floats("run_time").tolist() == [1800, 3600, 0]
    assert workload.floats("time_limit").tolist() == [3600, 7200, 600]
    assert workload.ints("nodes").tolist() == [1, 10, 1]
    assert workload.ints("cores_per_node").tolist() == [48, 48, 12]
    np.testing.assert_array_equal(workload.floats("extra_allocated"), [np.nan, 576, np.nan])
    assert workload.column("status").tolist() == ["completed", "failed", "completed"]
    assert not any("con" in name for name in workload.table)
    assert tolerated == {}


def test_fdata_keeps_energy_on_request_but_not_the_embedding() -> None:
    workload, _ = read(fdata.SITE.read, parquet(fugaku()), keep_extra=True, keep_names=True)
    assert workload.floats("extra_econ").tolist() == [40, 900, 0.1]
    assert workload.floats("extra_avgpcon").tolist() == [80, 950, 90]
    assert workload.column("extra_jnam").tolist() == ["jnam_0", "jnam_1", "jnam_0"]
    assert workload.column("user").tolist() == ["usr_0", "usr_1", "usr_0"]
    assert "extra_embedding" not in workload.table


def test_months_are_read_as_one_log(tmp_path: Path) -> None:
    folder = tmp_path / "fugaku"
    folder.mkdir()
    (folder / "21_04.parquet").write_bytes(parquet(fugaku()))
    later = {name: [text.replace("2021-04", "2021-05") for text in fugaku()[name]] for name in ("adt", "sdt", "edt")}
    (folder / "21_05.parquet").write_bytes(parquet(fugaku(jid=["jid_4", "jid_5", "jid_6"], **later)))
    from tracebed.converters.formats.reading import read_workload

    workload = read_workload(folder)
    assert len(workload) == 6
    assert workload.floats("submit_time")[3] == 30 * 86400
    assert [source.name for source in workload.provenance.sources] == ["21_04.parquet", "21_05.parquet"]


# -- Lassen

LASSEN = (
    b"allocation_id,primary_job_id,secondary_job_id,num_nodes,num_processors,num_gpus,hashed_user_id,begin_time,"
    b"end_time,exit_status,job_submit_time,queue,time_limit\n"
    b"1,100,0,16,0,0,abc,2020-06-01 10:00:01.5,2020-06-01 11:00:01.5,0,2020-06-01 10:00:00,pbatch,7200\n"
    b"2,101,0,795,0,0,def,2020-06-01 10:30:00.25,2020-06-01 10:30:10.25,139,2020-06-01 10:00:30.5,pbatch,43200\n"
    b"3,102,0,1,0,0,abc,2020-06-01 12:00:00,2020-06-01 12:00:00,,2020-06-01 11:59:59,pdebug,0\n"
)


def test_lassen() -> None:
    workload, tolerated = read(lassen.SITE.read, LASSEN)
    assert workload.provenance.system == System(795, 44, "LLNL Lassen")
    assert workload.provenance.unix_start == 1_591_030_800  # 10:00 in Los Angeles, in summer
    assert workload.floats("submit_time").tolist() == [0, 30.5, 7199]
    assert workload.floats("run_time").tolist() == [3600, 10, 0]
    np.testing.assert_array_equal(workload.floats("time_limit"), [7200, 43200, np.nan])
    assert workload.ints("nodes").tolist() == [16, 795, 1]
    assert workload.ints("cores_per_node").tolist() == [44, 44, 44]
    assert workload.column("status").tolist() == ["completed", "failed", ""]
    assert workload.column("queue").tolist() == ["pbatch", "pbatch", "pdebug"]
    assert "extra_gpus" not in workload.table
    assert tolerated == {}


# -- Supercloud

SUPERCLOUD = (
    b"id_job,id_array_job,id_user,nodes_alloc,nodelist,cpus_req,partition,priority,state,timelimit,time_submit,"
    b"time_eligible,time_start,time_end,tres_alloc,tres_req,gres_used\n"
    b"71,0,900,1,\"['n1']\",20,normal,10000,3,525600,1610000000,1610000000,1610000010,1610003610,"
    b'"1=40,2=170000,4=1,5=40,1002=2","1=20,2=170000,4=1,5=20","gpu:volta:2"\n'
    b"72,0,901,2,\"['n1', 'n2']\",96,normal,10000,6,60,1610000005,1610000005,1610000100,1610003700,"
    b'"1=96,2=8000,4=2,5=96,1001=1,1002=1","1=96,2=8000,4=2,5=96",\n'
    b'73,0,900,0,[],48,normal,10000,4,4294967295,1610000007,0,0,1610000500,,"1=48,2=4000,4=2,5=48",\n'
    b"74,0,900,1,\"['n3']\",1,normal,10000,1024,1440,1610000008,1610000008,1610000008,1610000009,1=1,,\n"
)


def test_supercloud() -> None:
    workload, tolerated = read(supercloud.SITE.read, SUPERCLOUD)
    assert workload.provenance.system == System(name="MIT Supercloud")
    assert workload.floats("submit_time").tolist() == [0, 5, 7, 8]
    np.testing.assert_array_equal(workload.floats("run_time"), [3600, 3600, np.nan, 1])
    np.testing.assert_array_equal(workload.floats("time_limit"), [np.nan, 3600, np.nan, 86400])
    assert workload.ints("nodes").tolist() == [1, 2, 2, 1]
    assert workload.ints("cores_per_node").tolist() == [20, 48, 24, 1]
    np.testing.assert_array_equal(workload.floats("memory_mib"), [170000, 4000, 2000, np.nan])
    np.testing.assert_array_equal(workload.floats("extra_gpus"), [2, 2, np.nan, np.nan])
    np.testing.assert_array_equal(workload.floats("extra_allocated"), [40, np.nan, np.nan, np.nan])
    assert workload.column("status").tolist() == ["completed", "killed", "cancelled", "pending"]
    assert tolerated == {"limits of one year, the default, read as no limit": 1}


@pytest.mark.parametrize(
    ("number", "status"),
    [
        *(("0", "pending"), ("1", "running"), ("2", "suspended"), ("5", "failed"), ("7", "failed"), ("8", "preempted")),
        *(("9", "failed"), ("10", "killed"), ("11", "failed"), ("12", "unknown"), ("CANCELLED by 4", "cancelled")),
        ("1" * 5000, "unknown"),
    ],
)
def test_states_by_their_numbers(number: str, status: str) -> None:
    data = SUPERCLOUD.replace(b"10000,3,", f"10000,{number},".encode(), 1)
    assert read(supercloud.SITE.read, data)[0].column("status")[0] == status


# -- all of them

VALID = {
    "pm100": parquet(marconi()),
    "fdata": parquet(fugaku(embedding=[0, 0, 0])),
    "lassen": LASSEN,
    "supercloud": SUPERCLOUD,
}
CSV = {
    "pm100": pd.DataFrame(marconi(node_power_consumption="[1.0]")).to_csv(index=False).encode(),
    "fdata": pd.DataFrame(fugaku(embedding=0)).to_csv(index=False).encode(),
    "lassen": LASSEN,
    "supercloud": SUPERCLOUD,
}


@pytest.mark.parametrize("name", VALID)
def test_a_missing_column_is_named(name: str) -> None:
    column = {"pm100": "submit_time", "fdata": "elpl", "lassen": "time_limit", "supercloud": "cpus_req"}[name]
    data = CSV[name].replace(column.encode(), b"other", 1)
    reader = {"pm100": pm100, "fdata": fdata, "lassen": lassen, "supercloud": supercloud}[name]
    with pytest.raises(InputError, match=f"column '{column}' is missing") as error:
        reader.SITE.read([Input.of(data, "log.csv")])
    assert error.value.where == "log.csv:1"
    assert error.value.hint


def test_invalid_values_are_counted_and_unknown() -> None:
    strange = marconi(num_nodes_req=[10**10, -3, 4], num_nodes_alloc=[1, 1, 4], time_limit=[10**12, 60, 60])
    strange["end_time"] = times("2020-05-02 09:00:00", "2520-05-02 11:10:00", "2020-05-02 12:00:00")
    with tolerated() as counts:
        workload = jobs_of(pm100.SITE.read([Input.of(parquet(strange), "log")]))
    assert workload.ints("nodes").tolist() == [0, 0, 4]
    np.testing.assert_array_equal(workload.floats("run_time"), [np.nan, np.nan, 3600])
    assert counts["jobs of unknown size"] == 2
    assert counts["run times that are negative or longer than 300 years, set to unknown"] == 2
    assert counts["records that end before their start, end set to unknown"] == 1


def test_numbers_too_large_to_multiply_are_unknown() -> None:
    changes = {"num_nodes_req": [1e200, 2, 4], "num_cores_req": [1e308, 256, 16], "time_limit": [-1e308, 1440, 60]}
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        workload, _ = read(pm100.SITE.read, parquet(marconi(**changes)))
    assert list(workload.ints("nodes")) == [0, 2, 4]
    assert np.isnan(workload.floats("time_limit")[0])


@pytest.mark.parametrize("number", [2.0**63, 1e300, np.inf, -np.inf])
def test_no_number_in_the_place_of_a_text_is_an_internal_error(number: float) -> None:
    workload, _ = read(pm100.SITE.read, parquet(marconi(job_id=[number, 2.0, 3.0])))
    assert len(workload) == 3


def test_jobs_larger_than_the_machine_are_counted_and_kept() -> None:
    workload, tolerated = read(lassen.SITE.read, LASSEN.replace(b",795,", b",796,"))
    assert workload.ints("nodes").tolist() == [16, 796, 1]
    assert tolerated == {"jobs with more nodes than the machine has, kept (clean: over_machine)": 1}


def test_a_date_of_another_locale_is_an_error_with_its_line() -> None:
    data = LASSEN.replace(b"2020-06-01 10:30:00.25", b"01.06.2020 10:30")
    with pytest.raises(InputError, match=r"begin_time '01.06.2020 10:30' is not a time") as error:
        lassen.SITE.read([Input.of(data, "log.csv")])
    assert error.value.where == "log.csv:3"


@pytest.mark.slow
def test_no_damaged_byte_of_the_metadata_of_parquet_ends_the_process() -> None:
    buffer = io.BytesIO()  # without the JSON of pandas, which no reader parses: more than half of the metadata
    pq.write_table(pq.read_table(io.BytesIO(VALID["fdata"])).replace_schema_metadata(None), buffer, compression="none")
    data = buffer.getvalue()
    assert read_or_refuse(data, "log.parquet", "fdata") is not None
    metadata = range(len(data) - 8 - int.from_bytes(data[-8:-4], "little"), len(data) - 8)
    for place, change in zip(metadata, itertools.cycle((1, 2, 254)), strict=False):
        damaged = bytearray(data)
        damaged[place] = (damaged[place] + change) % 256
        read_or_refuse(bytes(damaged), "log.parquet", "fdata")


def test_parquet_with_texts_that_are_not_utf8_is_refused() -> None:
    data = parquet(marconi()).replace(b"OUT_OF_MEMORY", b"OUT_OF\xffMEMORY")
    with pytest.raises(InputError, match="not a readable Parquet file"):
        pm100.SITE.read([Input.of(data, "log.parquet")])


def test_the_fixtures_are_valid() -> None:
    for name, data in {**VALID, **{f"{name}-csv": data for name, data in CSV.items()}}.items():
        workload = read_or_refuse(data, "log", name.removesuffix("-csv"))
        assert workload is not None
        assert replace(workload.provenance.steps[0]).parameters["format"] == name.removesuffix("-csv")
