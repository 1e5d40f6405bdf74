"""Conversions of data sets whose form is their own, to tables that `tracebed import` reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from tracebed.errors import InputError

LINE = re.compile(r"(?P<time>\d+);(?P<job>[^;]+); (?P<event>started; \[(?P<hosts>[^\]]*)\]|terminated)")
NANOSECONDS = 1e9


def amte(files: Mapping[str, bytes]) -> bytes:
    """Return the table of the jobs of the AMTE scheduler's log: a line per start and end, in ns after the submission.

    The jobs were submitted together, so that all have the submit time 0. Hosts are numbered in the order of their
    names.

    Raises:
        InputError: a job starts or ends twice, or ends before it starts.
    """
    name, content = next(iter(files.items()))
    starts: dict[str, tuple[float, list[str]]] = {}
    ends: dict[str, float] = {}
    for line in content.decode("utf-8", "replace").splitlines():
        found = LINE.fullmatch(line.strip())
        if found is None:  # the last line says that all jobs have ended
            continue
        job, time = found["job"].rpartition("/")[2], int(found["time"]) / NANOSECONDS
        began = found["hosts"] is not None
        if (job in starts) == began or job in ends:
            raise InputError(f"job {job} starts or ends twice, or ends before its start", where=name)
        if began:
            starts[job] = time, [host.strip() for host in found["hosts"].split(",")]
        else:
            ends[job] = time
    numbers = {host: number for number, host in enumerate(sorted({host for _, own in starts.values() for host in own}))}
    rows = ["job_id,submit,start,end,nodes,held_nodes"]
    for job, (start, hosts) in starts.items():
        held = " ".join(str(numbers[host]) for host in sorted(hosts))
        rows.append(f"{job},0,{start:.9f},{ends[job]:.9f},{len(hosts)},{held}" if job in ends else f"{job},0,,,,")
    return ("\n".join(rows) + "\n").encode()


CONVERSIONS: dict[str, Callable[[Mapping[str, bytes]], bytes]] = {"amte": amte}
"""Name -> function from the contents of the files of a data set to the table."""
