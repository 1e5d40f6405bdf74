"""Logs of Cori and Eagle: their records, and the workloads that `convert` makes."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from tests.logs import CORI, CORI_LONG, CORI_ROWS, EAGLE, RESERVATION, cori_row, write
from tracebed.cli import tracebed
from tracebed.converters.cleaning.audit import records_of
from tracebed.converters.formats.reading import read_raw, read_workload
from tracebed.converters.log import Log
from tracebed.converters.workload import System
from tracebed.ground.errors import InputError, Tolerated

DAY = "2019-01-01"
EAGLE_ROWS = [
    f"7,ann,a1,std,q,3600.0,2,72,0,0.0,{DAY} 08:00:00,{DAY} 08:00:10,{DAY} 09:00:20,3610.0,TIMEOUT,n,d,s",
    f"7,ann,a1,std,q,3600.0,2,72,0,0.0,{DAY} 08:00:00,{DAY} 08:30:10,{DAY} 08:40:10,600.0,COMPLETED,n,d,s",
    f"8,bob,a1,gpu,q,7200.0,1,18,2,1024.0,{DAY} 08:10:00,{DAY} 08:30:10,{DAY} 08:40:10,600.0,COMPLETED,n,d,s",
    "9,ann,a2,std,q,60.0,1,36,0,0.0,2019-01-02 00:00:00,,,,CANCELLED by 17,n,d,s",
]


def test_cori_records_become_jobs(tmp_path: Path) -> None:
    workload = read_workload(write(tmp_path / "a.csv", CORI, CORI_ROWS))
    table = workload.table.set_index("job_id")
    assert list(table.index) == ["11", "12", "13", "14_1", "15_[2-9]", "11-2"]
    # From 22:00 to 01:00 two days later, including the cuts.
    assert table.loc["11", "run_time"] == 2 * 3600 + 86_400 + 3600
    assert table.loc["11", "logged_end"] - table.loc["11", "logged_start"] == table.loc["11", "run_time"]
    assert table.loc["11-2", "submit_time"] == 40 * 3600
    assert table.loc["13", "extra_node_share"] == pytest.approx(0.25)
    assert np.isnan(table.loc["11", "extra_node_share"])
    assert workload.provenance.system == System(9688, 68, "NERSC Cori KNL")
    assert workload.provenance.time_zone == "America/Los_Angeles"
    assert workload.provenance.unix_start == pd.Timestamp("2022-11-07 18:00:00", tz="UTC").timestamp()


def test_jobs_of_perlmutter_have_the_gpus_of_their_nodes(tmp_path: Path) -> None:
    header = "Job,Host Name,Partition,QOS,Submit,Start,End,Elapsed Secs,CPUs,Nodes Allocated"
    rows = [
        f"{job},perlmutter gpu,{partition},q,{DAY} 08:00:00,{DAY} 08:00:00,{DAY} 09:00:00,3600,{cpus},{nodes}"
        for job, partition, cpus, nodes in [(1, "gpu_ss11", 256, 2), (2, "shared_gpu_ss11", 64, 1), (3, "cron", 1, 1)]
    ]
    table = read_workload(write(tmp_path / "a.csv", header, rows)).table.set_index("job_id")
    assert table["gres"].tolist() == ["gpu:4", "gpu:2", ""]
    assert table["extra_gpus"].fillna(0).tolist() == [8, 2, 0]
    assert table["partition"].tolist() == ["gpu_ss11", "shared_gpu_ss11", "cron"]


def test_the_real_sample_of_perlmutter_has_gpus(reference_data: Callable[[str], Path]) -> None:
    workload = read_workload(reference_data("logs/nersc_perlmutter_gpu_sample.csv"))
    held = workload.table[workload.ints("nodes") > 0]
    assert (held["gres"][held["partition"] == "gpu_ss11"] == "gpu:4").all()
    assert not (held["gres"][held["partition"] == "cron"] != "").any()


def test_the_real_sample_of_eagle_has_gpus(reference_data: Callable[[str], Path]) -> None:
    workload = read_workload(reference_data("logs/eagle_sample_1000.csv"))
    table = workload.table
    assert ((table["gres"] != "") == (table["extra_gpus"] > 0)).all()
    assert set(table["gres"]) == {"", "gpu:2"}


def test_both_layouts_in_a_folder_are_one_log(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    write(folder / "1.csv", CORI, CORI_ROWS[:1])
    long = '"11","Ann","proj","proj","cori knl","regular_knl","flex","2022-11-07 10:00:00","2022-11-08 00:00:00",'
    long += '"2022-11-08 01:00:00","1","3600","272","4","0","4","1","80"'
    (folder / "2.csv.gz").write_bytes(gzip.compress("\n".join([CORI_LONG, long]).encode()))
    (folder / "README").write_text("where this comes from")
    with pytest.warns(Tolerated, match="files that are not in format cori, ignored: README"):
        workload = read_workload(folder)
    assert len(workload) == 1
    assert workload.floats("run_time")[0] == 3 * 3600
    assert [source.name for source in workload.provenance.sources] == ["1.csv", "2.csv.gz"]


def test_segments_of_a_job_are_joined_only_without_a_gap(tmp_path: Path) -> None:
    rows = [
        cori_row("1", "p", "07 10:00:00", "07 22:00:00", "07 23:59:59", nodes=4),
        cori_row("1", "p", "07 10:00:00", "08 00:00:00", "08 00:10:00", nodes=5),  # other nodes
        cori_row("2", "p", "07 10:00:00", "07 22:00:00", "07 23:00:00"),
        cori_row("2", "p", "07 10:00:00", "07 23:00:05", "07 23:10:00"),  # five seconds later
    ]
    workload = read_workload(write(tmp_path / "a.csv", CORI, rows))
    assert sorted(workload.column("job_id")) == ["1", "1-2", "2", "2-2"]


def test_reservations_are_left_out_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", CORI, [CORI_ROWS[0], RESERVATION])
    with pytest.warns(Tolerated, match=r"a\.csv:3: records without a submit time, left out \(1 time\)"):
        assert len(read_workload(path)) == 1


def test_names_become_pseudonyms_unless_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "eagle.csv", EAGLE, EAGLE_ROWS)
    users = read_workload(path).column("user")
    assert users[0] == users[1] == users[3] != users[2]
    assert not {"ann", "bob"} & set(users)
    assert list(read_workload(path).column("user")) == list(users), "the same file gives the same pseudonyms"
    other = write(tmp_path / "other.csv", EAGLE, [*EAGLE_ROWS, EAGLE_ROWS[0].replace("7,ann", "10,ann")])
    assert set(read_workload(other).column("user")).isdisjoint(users), "another file has another salt"
    assert list(read_workload(path, keep_names=True).column("user")) == ["ann", "ann", "bob", "ann"]


def test_eagle(tmp_path: Path) -> None:
    table = read_workload(write(tmp_path / "eagle.csv", EAGLE, EAGLE_ROWS), keep_extra=True).table.set_index("job_id")
    assert list(table.index) == ["7", "7-2", "8", "9"]
    assert list(table["run_time"].iloc[:3]) == [3610.0, 600.0, 600.0]
    assert np.isnan(table.loc["9", "run_time"])
    assert list(table["status"]) == ["killed", "completed", "completed", "cancelled"]
    assert table.loc["7", "cores_per_node"] == 36
    assert table.loc["8", ["extra_gpus", "gres", "partition"]].tolist() == [2.0, "gpu:2", "gpu"]
    assert table.loc["7", "gres"] == ""
    assert table.loc["8", "memory_mib"] == 1024.0
    assert np.isnan(table.loc["7", "memory_mib"]), "0 means not requested"
    assert list(table["extra_submit_line"]) == ["s"] * 4


def test_eagle_as_parquet_is_the_same_log(tmp_path: Path) -> None:
    frame = pd.read_csv(write(tmp_path / "eagle.csv", EAGLE, EAGLE_ROWS))
    for name in ("submit_time", "start_time", "end_time"):
        frame[name] = pd.to_datetime(frame[name])
    pq.write_table(pa.Table.from_pandas(frame), tmp_path / "eagle.parquet")
    a = read_raw([tmp_path / "eagle.csv"])
    b = read_raw([tmp_path / "eagle.parquet"])
    assert isinstance(a, Log)
    pd.testing.assert_frame_equal(a.table.drop(columns=["user", "group"]), b.table.drop(columns=["user", "group"]))


def test_summer_time_counts(tmp_path: Path) -> None:
    rows = [
        "1,a,b,p,q,9e9,1,36,0,0,2019-03-10 01:00:00,2019-03-10 01:30:00,2019-03-10 03:30:00,3600.0,COMPLETED,n,d,s",
        "2,a,b,p,q,9e9,1,36,0,0,2019-11-03 00:30:00,2019-11-03 00:30:00,2019-11-03 02:30:00,10800.0,COMPLETED,n,d,s",
    ]
    workload = read_workload(write(tmp_path / "eagle.csv", EAGLE, rows))
    spans = workload.floats("logged_end") - workload.floats("logged_start")
    assert list(spans) == [3600.0, 10_800.0]  # one hour is skipped in March and repeated in November


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda t: t.replace('"2022-11-07 22:00:00"', '"11/07/2022 22:00"'),
            r"a\.csv:2: Start '11/07/2022 22:00'.*time",
        ),
        (lambda t: t.replace('"Nodes Allocated"', '"Nodes"'), r"a\.csv:1: column 'nodes allocated' is missing"),
        (lambda t: t.split("\n")[0] + "\n", "contains no jobs"),
        (lambda t: t.split("\n")[0], "contains no jobs"),
        (lambda t: t.replace('"End"', '"Start"'), r"a\.csv:1: column 'Start' occurs twice"),
        (lambda t: "\n\n" + t.replace('"10000"', '"many"'), r"a\.csv:10: Nodes Allocated 'many' is not a number"),
        (lambda t: t.replace('"10000"', '"many"'), r"a\.csv:8: Nodes Allocated 'many' is not a number"),
        (lambda t: t.replace('"0.0"', '"0.0","one","two"'), r"a\.csv:9: 12 values, but the header has 10"),
    ],
)
def test_bad_input_is_one_line_with_its_place(change: Callable[[str], str], says: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(change("\n".join([CORI, *CORI_ROWS])))
    with pytest.raises(InputError, match=says) as caught:
        read_workload(path, format="cori")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change", [lambda t: "\n\n" + t, lambda t: t.replace("\n", "\r\n"), lambda t: t.replace("\n", "\r"), str]
)
def test_blank_lines_before_the_header_and_any_line_ends_are_accepted(
    change: Callable[[str], str], tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(change("\n".join([CORI, *CORI_ROWS])).encode())
    assert len(read_workload(path)) == 6


def test_a_record_after_an_unclosed_quote_is_not_lost(tmp_path: Path) -> None:
    rows = [*CORI_ROWS]
    rows[4] = '"' + rows[4].replace('"', "")
    with pytest.raises(InputError, match=r"a\.csv:6: Job '12,cori knl,xfer.*contains a line break"):
        read_workload(write(tmp_path / "a.csv", CORI, rows))


@pytest.mark.parametrize("nodes", ["-4", "1e400", "", "1e12"])
def test_an_impossible_size_is_unknown_and_counted(nodes: str, tmp_path: Path) -> None:
    rows = [CORI_ROWS[5].replace('"1",', f'"{nodes}",'), CORI_ROWS[4]]
    with pytest.warns(Tolerated, match=r"a\.csv:2: jobs of unknown size \(1 time\)"):
        assert list(read_workload(write(tmp_path / "a.csv", CORI, rows)).ints("nodes")) == [1, 0]
    row = EAGLE_ROWS[1].split(",")
    row[6] = nodes
    with pytest.warns(Tolerated, match=r"e\.csv:2: jobs of unknown size \(1 time\)"):
        assert read_workload(write(tmp_path / "e.csv", EAGLE, [",".join(row)])).ints("nodes")[0] == 0


def test_an_invalid_time_has_its_line_whatever_form_the_others_have(tmp_path: Path) -> None:
    rows = [row.replace('"2022-11-07 10:00:05"', '"soon"') for row in CORI_ROWS]
    zoned = [re.sub(r"(\d\d:\d\d:\d\d)", r"\1+01:00", row) for row in rows]
    for lines in (rows, zoned):
        with pytest.raises(InputError, match=r"a\.csv:6: Submit 'soon' is not a time"):
            read_workload(write(tmp_path / "a.csv", CORI, lines))


def test_a_file_is_not_read_twice(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", CORI, CORI_ROWS)
    (tmp_path / "copy of a.csv").write_bytes((tmp_path / "a.csv").read_bytes())
    with pytest.raises(InputError, match=r"copy of a\.csv: has the same content as .*a\.csv"):
        read_workload(tmp_path)
    with pytest.raises(InputError, match="has the same content as"):
        read_raw([tmp_path / "a.csv", tmp_path / "a.csv"])


def test_ignored_files_of_a_folder_are_reported(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    (folder / "sub").mkdir(parents=True)
    write(folder / "sub" / "a.csv", CORI, CORI_ROWS)
    (tmp_path / "elsewhere").mkdir()
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.warns(Tolerated, match="links to folders, not followed"):
        assert len(read_workload(folder)) == 6
    (folder / "b.csv").symlink_to("absent")
    with pytest.raises(InputError, match=r"b\.csv: no such file"):
        read_workload(folder)


def test_another_delimiter_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("\n".join([CORI, *CORI_ROWS]).replace('","', '";"'))
    assert len(read_workload(path)) == 6


def test_a_truncated_gzip_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress("\n".join([CORI, *CORI_ROWS * 1000]).encode())[:2000])
    with pytest.raises(InputError, match="broken gzip"):
        read_workload(path, format="cori")


def test_inconsistent_times_are_tolerated_and_counted(tmp_path: Path) -> None:
    rows = [
        EAGLE_ROWS[1],
        "20,a,b,p,q,60,1,36,0,0,2019-01-01 09:00:00,2019-01-01 08:00:00,2019-01-01 08:01:00,60.0,COMPLETED,n,d,s",
        "21,a,b,p,q,60,1,36,0,0,2019-01-01 08:00:00,2019-01-01 08:00:00,2019-01-01 07:01:00,-3540.0,COMPLETED,n,d,s",
        "22,a,b,p,q,1e12,1,36,0,0,2019-01-01 08:00:00,2019-01-01 08:00:00,2019-01-01 08:01:00,1e12,COMPLETED,n,d,s",
    ]
    with pytest.warns(Tolerated) as caught:
        table = read_workload(write(tmp_path / "e.csv", EAGLE, rows)).table.set_index("job_id")
    said = [str(warning.message) for warning in caught]
    assert any("e.csv:3: records submitted after their start" in text for text in said), said
    assert any("e.csv:4: run times that are negative" in text and "(2 times)" in text for text in said), said
    assert any("e.csv:5: time limits" in text for text in said), said
    assert table.loc["20", "submit_time"] == table.loc["20", "logged_start"]
    assert table.loc[["21", "22"], "run_time"].isna().all()


def test_the_raw_records_of_a_log_can_be_read(tmp_path: Path) -> None:
    log = read_raw([write(tmp_path / "a.csv", CORI, CORI_ROWS)])
    assert isinstance(log, Log)
    assert len(records_of(log)) == len(CORI_ROWS)
    assert "11-4" in set(records_of(log).column("job_id"))


def test_ignored_columns_are_reported(tmp_path: Path) -> None:
    path = write(tmp_path / "eagle.csv", EAGLE, EAGLE_ROWS)
    with pytest.warns(Tolerated, match=r"\(convert --keep extra keeps them\): name, work_dir, submit_line \(3 times\)"):
        workload = read_workload(path)
    assert workload.provenance.steps[0].parameters["left_out"] == ["name", "work_dir", "submit_line"]
    kept = read_workload(path, keep_extra=True)
    assert kept.provenance.steps[0].parameters["left_out"] == []


PERLMUTTER = [
    cori_row(str(job), "regular", f"07 10:00:0{job}", "07 11:00:00", "07 12:00:00").replace("cori knl", machine)
    for job, machine in enumerate(["Perlmutter GPU", "Perlmutter CPU", "Perlmutter CPU", "Perlmutter GPU"])
]


@pytest.mark.filterwarnings("ignore::tracebed.ground.errors.Tolerated")
def test_a_folder_of_two_machines_is_refused_until_one_is_chosen(tmp_path: Path) -> None:
    """One export of NERSC has both partitions of Perlmutter, with different sizes and queues."""
    log = write(tmp_path / "log.csv", CORI, PERLMUTTER)
    with pytest.raises(InputError, match=r"2 machines: Perlmutter (GPU|CPU), Perlmutter (GPU|CPU) .choose one"):
        read_raw([log])
    with pytest.raises(InputError, match=r"unknown machine 'Perlmuter CPU' .did you mean Perlmutter CPU"):
        read_workload(log, machine="Perlmuter CPU")
    cpu, gpu = (read_workload(log, machine=f"perlmutter {kind}") for kind in ("cpu", "gpu"))
    assert [cpu.provenance.system.nodes, gpu.provenance.system.nodes] == [3072, 1792]
    assert (list(cpu.column("job_id")), list(gpu.column("job_id"))) == (["1", "2"], ["0", "3"])
    assert list(cpu.floats("submit_time")) == [0.0, 1.0], "time 0 is the first submission of the machine"
    assert cpu.provenance.steps[0].counts["records of other machines, left out"] == 2


def test_a_defect_has_its_line_though_records_of_another_machine_are_ignored(tmp_path: Path) -> None:
    late = cori_row("9", "regular", "07 12:00:00", "07 11:00:00", "07 12:30:00").replace("cori knl", "Perlmutter GPU")
    log = write(tmp_path / "log.csv", CORI, [*PERLMUTTER, late])
    with pytest.warns(Tolerated, match="log.csv:6: records submitted after their start"):
        read_raw([log], machine="Perlmutter GPU")


@pytest.mark.filterwarnings("ignore::tracebed.ground.errors.Tolerated")
def test_the_machine_can_be_chosen_by_convert_by_clean_and_by_a_recipe(tmp_path: Path) -> None:
    log = write(tmp_path / "log.csv", CORI, PERLMUTTER)
    recipes = {"plain": "steps: [unique_ids]", "gpu": "steps: [unique_ids]\nread: {machine: Perlmutter GPU}"}
    for name, text in recipes.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    out, machine = str(tmp_path / "w.csv"), ["--machine", "Perlmutter GPU"]
    plain, gpu = (["--recipe", str(tmp_path / f"{name}.yaml")] for name in recipes)
    refused = (["convert", str(log)], ["clean", str(log), *plain])
    taken = (["convert", str(log), *machine], ["clean", str(log), *plain, *machine], ["clean", str(log), *gpu])
    for words in (*refused, *taken):
        result = CliRunner().invoke(tracebed, [*words, "-o", out, "--replace", "--json"])
        if words in refused:
            assert isinstance(result.exception, InputError)
        else:
            assert result.exit_code == 0, result.output
            assert json.loads(result.stdout)["jobs"] == 2
