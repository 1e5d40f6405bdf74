"""A trace for Perfetto's viewer (ui.perfetto.dev) and chrome://tracing: the JSON of Chrome's trace events.

The process `nodes` has a track per node, on which each allocation of a job is a slice. A guest that shares a node has
a second track of that node, because slices of one track must not overlap. The process `scheduler` has two counters:
waiting jobs and utilization. Times are trace time after the first submission.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
import pandas as pd

from tracebed.orchestrator.run import Run
from tracebed.orchestrator.runs.steps import Steps
from tracebed.validation.export.exporter import Exporter, export_allocations, unknown_nodes
from tracebed.validation.metrics import busy_cores, origin, total_cores, waiting

SLICES = 200_000  # most slices of a trace: about 50 MB of JSON, which the viewer opens in seconds
SAMPLES = 20_000  # most values of a counter; a counter with more changes is averaged over that many bins
SCHEDULER, NODES = 1, 2  # process ids of the two groups of tracks
MICROSECONDS = 1e6

MARK = rb'\A\{"displayTimeUnit": "ms", "otherData": \{"source": '


def write(run: Run, file: BinaryIO) -> list[str]:
    """Write the trace, an event a line, and return what the trace lacks."""
    slices, notes = _slices(run)
    events = [*_counter("waiting jobs", "jobs", waiting(run)), *_utilization(run, notes), *_jobs(run, slices)]
    events.sort(key=lambda event: event["ts"])
    facts = {"source": run.info.source, "policy": run.info.policy, "speed": run.info.speed, "notes": notes}
    file.write(f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(facts)}, "traceEvents": [\n'.encode())
    first = True
    for event in (*_tracks(run, slices), *events):
        file.write((("" if first else ",\n") + json.dumps(event)).encode())
        first = False
    file.write(b"\n]}\n")
    return notes


def _slices(run: Run) -> tuple[pd.DataFrame, list[str]]:
    """Return the slices with their node, number of nodes, and lane (0, or more where jobs share a node)."""
    rows, notes = export_allocations(run), unknown_nodes(run)
    if rows["count"].sum() <= SLICES:
        place = np.arange(rows["count"].sum()) - np.repeat(rows["count"].cumsum() - rows["count"], rows["count"])
        rows = rows.loc[rows.index.repeat(rows["count"])].reset_index(drop=True)
        rows = rows.assign(node=rows["node"] + place.to_numpy(), count=1)
    else:
        notes.append(
            f"more than {SLICES:,} slices: neighboring nodes held alike have one slice, on the track of the first node"
        )
        if len(rows) > SLICES:
            weight = rows["count"] * (rows["end"] - rows["start"])
            left_out = len(rows) - SLICES
            rows = rows.loc[weight.nlargest(SLICES).index].sort_index()
            notes.append(f"{left_out:,} allocations with the fewest node seconds have no slice")
    rows = rows.sort_values(["node", "start", "end"], kind="stable", ignore_index=True)
    return rows.assign(lane=_lanes(rows)), notes


def _lanes(rows: pd.DataFrame) -> list[int]:
    """Return the lowest lane of its node in which each slice overlaps no other; slices by node and start."""
    lanes = []
    node, ends = -1, [0.0]
    for at, start, end in zip(rows["node"].tolist(), rows["start"].tolist(), rows["end"].tolist(), strict=True):
        if at != node:
            node, ends = at, []
        lane = next((lane for lane, until in enumerate(ends) if until <= start), len(ends))
        ends[lane : lane + 1] = [end]
        lanes.append(lane)
    return lanes


def _tracks(run: Run, slices: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the names of processes and tracks, in the order in which the viewer shows them."""
    for process, name in ((SCHEDULER, "scheduler"), (NODES, "nodes")):
        yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": name}}
        yield {"ph": "M", "pid": process, "name": "process_sort_index", "args": {"sort_index": process}}
    for index, (node, lane) in enumerate(_keys(slices)):
        name = run.info.nodes[node].name + (f" ({lane + 1})" if lane else "")
        track = {"ph": "M", "pid": NODES, "tid": index + 1}
        yield {**track, "name": "thread_name", "args": {"name": name}}
        yield {**track, "name": "thread_sort_index", "args": {"sort_index": index}}


def _keys(slices: pd.DataFrame) -> list[tuple[int, int]]:
    return sorted(set(zip(slices["node"].tolist(), slices["lane"].tolist(), strict=True)))


def _jobs(run: Run, slices: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield a complete event (`X`) per slice."""
    tracks = {key: index + 1 for index, key in enumerate(_keys(slices))}
    jobs = run.jobs.drop_duplicates("job_id").set_index("job_id")
    times = jobs[["submit", "start", "end"]] - origin(run)
    facts = pd.concat([jobs[["kind", "state", "nodes", "user"]], times], axis=1).to_dict("index")
    names = [node.name for node in run.info.nodes]
    for row in slices.to_dict("records"):
        begin, end = round(row["start"] * MICROSECONDS), round(row["end"] * MICROSECONDS)
        args = {"job": row["job_id"], **facts.get(row["job_id"], {}), "cores": row["cores"], "cpus": row["cpus"]}
        if row["count"] > 1:
            args["held"] = f"{names[row['node']]} to {names[row['node'] + row['count'] - 1]}"
        args = {
            f"{name}_s" if name in times else name: value for name, value in args.items() if value not in ("", None)
        }
        yield {
            "ph": "X",
            "pid": NODES,
            "tid": tracks[row["node"], row["lane"]],
            "name": f"job {row['job_id']}",
            "cat": str(args.get("kind", "job")),
            "ts": begin,
            "dur": end - begin,
            "args": {name: value for name, value in args.items() if value == value and value != ""},
        }


def _utilization(run: Run, notes: list[str]) -> Iterator[dict[str, Any]]:
    capacity = total_cores(run)
    if not capacity:
        notes.append("the run has no nodes: no utilization")
        return
    busy = busy_cores(run)
    yield from _counter("utilization (%)", "percent", Steps(busy.times, 100.0 * busy.values / capacity))


def _counter(name: str, unit: str, steps: Steps) -> Iterator[dict[str, Any]]:
    """Yield a counter's values, each from its instant on; averages of bins where there are too many."""
    times, values = steps.times, steps.values
    if len(times) > SAMPLES:
        edges = np.linspace(times[0], times[-1], SAMPLES + 1)
        times, values = edges, np.append(steps.means(edges), 0.0)
    for time, value in zip(times.tolist(), values.tolist(), strict=True):
        yield {
            "ph": "C",
            "pid": SCHEDULER,
            "name": name,
            "ts": round(time * MICROSECONDS),
            "args": {unit: round(value, 6)},
        }


PERFETTO = Exporter("trace for ui.perfetto.dev: a track per node, a slice per allocation, counters", write, MARK)
