"""Small synthetic logs with the peculiarities of real ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

CORI = '"Job","Host Name","Partition","QOS","Submit","Start","End","Elapsed Secs","Nodes Allocated","Raw Hours"'
CORI_LONG = (
    '"Job","User","Project","Account Name","Host Name","Partition","QOS","Submit","Start","End","Wait Time",'
    '"Elapsed Secs","CPUs","Nodes Allocated","Node Hours Charged","Raw Hours","Machine Hours","Charge Factor"'
)
EAGLE = (
    "job_id,user,account,partition,qos,wallclock_req,nodes_req,processors_req,gpus_req,mem_req,submit_time,start_time,"
    "end_time,run_time,state,name,work_dir,submit_line"
)


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
