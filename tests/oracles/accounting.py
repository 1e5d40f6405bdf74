"""What Slurm's accounting says about the resizes of a replay, beside the run: nodes and times of each size of a job."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise

import tracebed.api as tb
from tests.servers.slurmd import Slurm
from tracebed.ground.host_lists import host_names
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.run import JOURNAL

SECOND_S = 1.5
"""Largest difference of two times that agree: Slurm records whole seconds. Slurm may change the nodes of a job at any
time from the request for a resize to its end, between which seconds lie on a busy machine."""
SAME_S = 0.1
"""Largest difference of two times of a run that are one."""
APART_S = 2.0
"""Time between two changes that have rows of their own: Slurm has one row for all changes within a second."""


@dataclass
class Agreement:
    """The comparison of a run with `sacct`, which has a row for each size of a job.

    `differences` are the times of Slurm minus those of the run, for each start, change and end of a job, s.
    """

    jobs: int = 0
    rows: int = 0
    differences: list[float] = field(default_factory=list)
    defects: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        low, high = min(self.differences, default=0.0), max(self.differences, default=0.0)
        found = f"{self.jobs} jobs, {self.rows} sizes, {len(self.differences)} times"
        return f"{found}: {low:+.2f} to {high:+.2f} s; {len(self.defects)} defects"


def prefix_of(run: tb.Run) -> str:
    """Return the beginning of the names of the jobs of a replay."""
    assert run.folder is not None
    return str(journal.read(run.folder / JOURNAL)[0]["prefix"])


def agreement(slurm: Slurm, run: tb.Run) -> Agreement:
    """Compare the nodes and times of the jobs of a replay with those of `sacct`."""
    accounted, found = rows_of(slurm, prefix_of(run)), Agreement()
    for number, job in enumerate(run.jobs["job_id"]):
        sizes = sizes_of(run, job)
        if (number in accounted) != bool(sizes):
            found.defects.append(f"{job} is in one of them only")
        elif sizes:
            found.jobs += 1
            _compare(job, accounted[number], sizes, _changes(run, job), _unworked_s(run, job, sizes), found)
    return found


def _changes(run: tb.Run, job: str) -> list[tuple[float, float]]:
    """Return the spans in which Slurm may change the nodes of a job: begin and end, s since 1970.

    These are its resizes, and the pauses of the replay: a resumed replay finds what has changed when it goes on.
    """
    resizes, epoch_s, speed = run.reconfigurations, run.info.batch["epoch_s"], run.info.speed
    applied = resizes[(resizes["job_id"] == job) & (resizes["state"] == "applied")]
    pauses = [(each["at"], each["at"] + each["wall_s"] * speed) for each in run.info.pauses]
    spans = [*zip(applied["asked"], applied["ended"], strict=True), *pauses]
    return [(epoch_s + begin / speed, epoch_s + end / speed) for begin, end in spans]


def _unworked_s(run: tb.Run, job: str, sizes: list[tuple[float, float, set[str]]]) -> float:
    """Return the time (s since 1970) after which a job may have sizes in Slurm that the run does not have.

    A job whose script ends between the merge of a resize and the start of its ranks never works at that size. The run
    has such a resize as not applied. On a busy machine, seconds lie between the two.
    """
    resizes = run.reconfigurations
    asked = resizes[(resizes["job_id"] == job) & (resizes["state"] != "applied")]["asked"]
    times = run.info.batch["epoch_s"] + asked / run.info.speed
    return min([sizes[-1][1], *times[times >= sizes[-1][0]]]) - SECOND_S


def rows_of(slurm: Slurm, prefix: str) -> dict[int, list[tuple[float, float, set[str]]]]:
    """Return for each job of a replay its allocations by `sacct`, ascending: start, end (s since 1970) and nodes."""
    fields = ("-o", "JobName,Start,End,NodeList")
    text = slurm("sacct", "-D", "-X", "-n", "-P", *fields, "-S", "now-1day", SLURM_TIME_FORMAT="%s")
    found: dict[int, list[tuple[float, float, set[str]]]] = {}
    for line in text.splitlines():
        name, start, end, nodes = line.split("|")
        if (match := re.fullmatch(rf"{prefix}([0-9]+)", name)) and start.isdigit():
            found.setdefault(int(match[1]), []).append((float(start), float(end), {*host_names(nodes)}))
    return {number: sorted(rows, key=lambda row: row[:2]) for number, rows in found.items()}


def sizes_of(run: tb.Run, job: str) -> list[tuple[float, float, set[str]]]:
    """Return the times in which a job held the same nodes, ascending: start, end (s since 1970) and nodes."""
    rows, names = run.allocations[run.allocations["job_id"] == job], [node.name for node in run.info.nodes]
    held = [
        (round(start, 3), round(end, 3), {*names[node : node + count]})
        for start, end, node, count in zip(rows["start"], rows["end"], rows["node"], rows["count"], strict=True)
    ]
    times = sorted({time for start, end, _ in held for time in (start, end)})
    sizes: list[tuple[float, float, set[str]]] = []
    for since, until in pairwise(times):
        nodes = {name for start, end, names in held if start <= since and until <= end for name in names}
        if sizes and sizes[-1][2] == nodes:
            since = sizes.pop()[0]
        sizes.append((since, until, nodes))
    epoch_s, speed = run.info.batch["epoch_s"], run.info.speed
    return [(epoch_s + since / speed, epoch_s + until / speed, nodes) for since, until, nodes in sizes if nodes]


def _compare(
    job: str,
    rows: list[tuple[float, float, set[str]]],
    sizes: list[tuple[float, float, set[str]]],
    changes: list[tuple[float, float]],
    unworked_s: float,
    found: Agreement,
) -> None:
    """Compare the rows of `sacct` for a job with its sizes in the run, all of which it has until `unworked_s`."""

    def apart(end: float, until: float) -> float:
        """Return the time of Slurm minus that of the run; a change may be at any time of its span until then."""
        covering = (begin for begin, end in changes if begin - SAME_S <= until <= end + SAME_S)
        since = min(covering, default=until)
        return end - min(max(end, since), until)

    found.rows += len(rows)
    late = rows[0][0] - sizes[0][0]
    found.differences.append(late)
    if abs(late) > SECOND_S:
        found.defects.append(f"{job}: start {late:.1f} s from the run")
    for _, end, nodes in rows:
        nearest = min((apart(end, until) for _, until, held in sizes if held == nodes), key=abs, default=None)
        if nearest is not None and abs(nearest) <= SECOND_S:
            found.differences.append(nearest)
        elif end < unworked_s or not any(nodes <= held or held <= nodes for *_, held in sizes[-2:]):
            found.defects.append(f"{job}: {sorted(nodes)} until {end:.0f}, {nearest} s from the run")
    for (since, until, _), (_, later, _) in pairwise(sizes):
        if min(until - since, later - until) > APART_S and not any(
            abs(apart(end, until)) <= SECOND_S for _, end, _ in rows
        ):
            found.defects.append(f"{job}: no change at {until:.1f}")
