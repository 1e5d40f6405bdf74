"""Small synthetic logs with the peculiarities of real ones."""

from __future__ import annotations

import gzip
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import tracebed.api as tb
from tracebed.ground.errors import Tolerated

CORI = '"Job","Host Name","Partition","QOS","Submit","Start","End","Elapsed Secs","Nodes Allocated","Raw Hours"'
CORI_LONG = (
    '"Job","User","Project","Account Name","Host Name","Partition","QOS","Submit","Start","End","Wait Time",'
    '"Elapsed Secs","CPUs","Nodes Allocated","Node Hours Charged","Raw Hours","Machine Hours","Charge Factor"'
)
EAGLE = (
    "job_id,user,account,partition,qos,wallclock_req,nodes_req,processors_req,gpus_req,mem_req,submit_time,start_time,"
    "end_time,run_time,state,name,work_dir,submit_line"
)


@contextmanager
def tolerated() -> Iterator[dict[str, int]]:
    """Yield the defects that a block tolerates and their counts, which are known after the block."""
    counts: dict[str, int] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield counts
    counts |= {w.message.what: w.message.count for w in caught if isinstance(w.message, Tolerated)}


def read_counted(path: Path, **options: Any) -> tuple[tb.Workload, dict[str, int]]:
    """Read a log; return its workload and the tolerated defects."""
    with tolerated() as counts:
        workload = tb.read(path, **options)
    return workload, counts


def cori_row(job: str, partition: str, submit: str, start: str, end: str, nodes: int = 1, share: float = 1.0) -> str:
    """Return a record of the short layout; times are day and clock in November 2022: `08 22:04:02`."""
    seconds = _seconds(end) - _seconds(start)
    times = ",".join(f'"2022-11-{time}"' for time in (submit, start, end))
    hours = seconds * nodes * share / 3600
    return f'"{job}","cori knl","{partition}","regular_1",{times},"{seconds}","{nodes}","{hours}"'


def _seconds(time: str) -> int:
    day, clock = time.split()
    hours, minutes, seconds = map(int, clock.split(":"))
    return ((int(day) * 24 + hours) * 60 + minutes) * 60 + seconds


CORI_ROWS = [
    cori_row("11", "regular_knl", "07 10:00:00", "07 22:00:00", "07 23:59:59", nodes=4),
    cori_row("11", "regular_knl", "07 10:00:00", "08 00:00:00", "08 23:59:59", nodes=4),
    cori_row("11", "regular_knl", "07 10:00:00", "09 00:00:00", "09 01:00:00", nodes=4),
    cori_row("11", "regular_knl", "09 02:00:00", "09 03:00:00", "09 04:00:00", nodes=4),  # requeued
    cori_row("12", "xfer", "07 10:00:05", "07 10:00:06", "07 10:00:16", share=0.1),
    cori_row("13", "regular_knl", "07 10:00:07", "07 11:00:00", "07 11:30:00", share=0.25),
    cori_row("14_1", "regular_knl", "07 10:00:09", "07 11:00:00", "07 12:00:00", nodes=10_000),
    cori_row("15_[2-9]", "regular_knl", "07 10:00:10", "07 11:00:00", "07 11:00:00", nodes=0),
]
RESERVATION = '"RESERVE:1:root","cori knl","","RESERVE","","2022-11-07 00:00:00","2022-11-07 00:00:32","32","","0.008"'


def write(path: Path, header: str, rows: Sequence[str]) -> Path:
    """Write a log with a header, rows, and the byte order mark of the real logs."""
    path.write_text("\ufeff" + "\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


# -- generated logs with the shape of those of the papers


def times(start: str, seconds: Any) -> list[str]:
    return [f"{instant:%Y-%m-%d %H:%M:%S}" for instant in pd.Timestamp(start) + pd.to_timedelta(seconds, unit="s")]


def drawn_jobs(
    jobs: int, sizes: dict[int, float], short: float, longest: int, days: float, seed: int
) -> tuple[Any, Any, Any]:
    """Return submit times, nodes, and run times of which a share is at most 10,000 s."""
    rng = np.random.default_rng(seed)
    end = round(days * 86_400) - 60
    submit = np.sort(rng.integers(0, end, jobs))
    submit[[0, -1]] = 0, end
    nodes = rng.permutation(np.repeat(list(sizes), np.floor(np.array(list(sizes.values())) * jobs + 0.5).astype(int)))
    nodes = np.resize(nodes, jobs)
    run_time = np.where(
        np.arange(jobs) < short * jobs, rng.integers(30, 9_000, jobs), rng.integers(10_001, longest, jobs)
    )
    return submit, nodes, rng.permutation(run_time)


def eagle_log(path: Path, jobs: int, days: float = 28) -> None:
    """Write an Eagle log: the jobs of the paper's window, one with a GPU, and one before and one after the window.

    With 143,829 jobs, it has the printed shares of jobs and, by the sizes of the others, the printed utilization.
    """
    submit, nodes, run_time = drawn_jobs(jobs, {1: 0.966, 8: 0.02, 72: 0.014}, 0.868, 20_000, days, 1)
    submit, nodes, run_time = (
        np.append(column, extra)
        for column, extra in ((submit, [90, -60, 28 * 86_400]), (nodes, [1] * 3), (run_time, [600] * 3))
    )
    columns = {
        "job_id": np.arange(len(submit)), "user": "u", "account": "a", "partition": "p", "qos": "normal",
        "wallclock_req": 36_000.0, "nodes_req": nodes, "processors_req": 36 * nodes,
        "gpus_req": 0, "mem_req": 0.0,
        "submit_time": times("2022-09-01", submit), "start_time": times("2022-09-01", submit + 5),
        "end_time": times("2022-09-01", submit + 5 + run_time), "run_time": run_time.astype(float),
        "state": "COMPLETED", "name": "n", "work_dir": "d", "submit_line": "s",
    }  # fmt: skip
    table = pd.DataFrame(columns)
    table.loc[jobs, "gpus_req"] = 2
    table.to_csv(path, index=False)


def theta_log(path: Path, jobs: int) -> None:
    """Write a Theta log: the jobs of the paper's window, some in debug queues, one without nodes, and one before.

    With 2,550 jobs, it has the printed shares of jobs and, by the sizes and run times of the others, about the printed
    utilization.
    """
    sizes = {1: 0.348, 8: 0.203, 256: 0.126, 128: 0.2, 2048: 0.123}
    submit, nodes, run_time = drawn_jobs(jobs, sizes, 0.847, 64_000, 28, 2)
    submit, nodes, run_time = (
        np.append(column, extra) for column, extra in ((submit, [90, -60]), (nodes, [0, 8]), (run_time, [600] * 2))
    )
    columns = {
        "JOB_NAME": [f"{number}.theta" for number in range(len(submit))], "MACHINE_NAME": "theta",
        "QUEUED_TIMESTAMP": times("2023-08-01", submit), "START_TIMESTAMP": times("2023-08-01", submit + 5),
        "END_TIMESTAMP": times("2023-08-01", submit + 5 + run_time), "USERNAME_GENID": 1,
        "PROJECT_NAME_GENID": 1,
        "QUEUE_NAME": np.where(nodes <= 8, "debug-flat-quad", "default"), "WALLTIME_SECONDS": 86_400.0,
        "RUNTIME_SECONDS": run_time.astype(float), "NODES_USED": nodes, "NODES_REQUESTED": nodes,
        "CORES_USED": 64 * nodes, "CORES_REQUESTED": 64 * nodes, "EXIT_STATUS": 0,
    }  # fmt: skip
    pd.DataFrame(columns).to_csv(path, index=False)


def cori_log(folder: Path, jobs: int, partition: str = "regular_knl") -> None:
    """Write a log of Cori: jobs of two days from 7 November 2022, most of them short, on up to 32 nodes."""
    folder.mkdir()
    rng = np.random.default_rng(3)
    submit = np.sort(rng.integers(0, 2 * 86_400, jobs))
    start = submit + rng.integers(0, 3600, jobs)
    end = start + np.where(rng.random(jobs) < 0.75, rng.integers(10, 1000, jobs), rng.integers(1000, 30_000, jobs))
    instants = (
        [f"{7 + at // 86_400:02} {at // 3600 % 24:02}:{at // 60 % 60:02}:{at % 60:02}" for at in column]
        for column in (submit, start, end)
    )
    sizes = rng.choice([1, 4, 8, 32], jobs, p=[0.4, 0.4, 0.1, 0.1])
    rows = [cori_row(str(job), partition, *row) for job, row in enumerate(zip(*instants, sizes, strict=True), 1)]
    write(folder / "2022-11-07.csv", CORI, rows)


def swf_row(job: int, submit: float, wait: float, run_time: float, cores: int, limit: float, partition: int = 1) -> str:
    """Return a record of the Standard Workload Format, of a job that completed."""
    fields = [job, int(submit), int(wait), int(run_time), cores, -1, -1, cores, int(limit), -1, 1, job % 9, 1, -1, 1]
    return " ".join(map(str, [*fields, partition, -1, -1]))


def ricc_log(path: Path, jobs: int) -> None:
    """Write a log with RICC's header and fields, compressed: the first jobs of the paper, each of 1 to 64 cores."""
    header = ["; Computer: RICC", "; UnixStartTime: 1283266800", "; TimeZoneString: Asia/Tokyo", "; MaxNodes: 1024"]
    rows = [
        swf_row(414_970 + k, 600 * k, k % 50, run_time, 2 ** (k % 7), 2 * run_time)
        for k in range(jobs)
        for run_time in [60 + 37 * k % 1800]
    ]
    path.write_bytes(gzip.compress("\n".join([*header, "; MaxProcs: 8192", *rows, ""]).encode()))


def curie_log(path: Path, jobs: int) -> None:
    """Write a log of CEA Curie, compressed: jobs of the primary partition, and a hundredth of them in another one.

    Run times, and sizes in proportion, are those of Cirne's model; arrivals are spread so that 198,509 jobs take the
    printed makespan, and sizes scaled so that they wait about as long as printed. The largest has the printed size.
    """
    table = tb.generate("cirne", jobs=jobs, nodes=5040, cores_per_node=16, seed=1, parameters={"cancelled": 0}).table
    nodes = np.minimum(np.ceil(3.2 * table["nodes"].to_numpy()), 4988).astype(int)
    nodes[nodes.argmax()] = 4988
    submit = table["submit_time"] * 21_500_000 / 198_509 * jobs / table["submit_time"].max()
    columns = (submit, np.maximum(1, table["run_time"]), 16 * nodes, np.maximum(60, table["time_limit"]))
    rows = [
        swf_row(job + other * jobs, submit, 5, run_time, cores, limit, 1 + other)
        for job, (submit, run_time, cores, limit) in enumerate(zip(*columns, strict=True), 1)
        for other in ([0, 1] if job % 100 == 0 else [0])
    ]
    text = "\n".join(["; MaxNodes: 5544", "; MaxProcs: 93312", *rows, ""])
    path.write_bytes(gzip.compress(text.encode(), compresslevel=1))
