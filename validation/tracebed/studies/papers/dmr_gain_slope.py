"""The sizes of a malleable job by gain slope: tables 1 and 3 of the paper on the malleable HPG-aligner, and our times.

Of the p processes of HPG-aligner, one is the manager and one is the writer, so p - 2 compute (S. Iserte et al., "HPG-
aligner malleable version"). Here p processes are p - 2 ranks: the leader of a job gives chunks to all ranks, as the
manager does, beside its own work. All runs do the same work, in the same number of iterations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

import pandas as pd

from tracebed.converters.malleability import gain_slopes, sizes_by_gain_slope
from tracebed.converters.models.papers import HPG_ALIGNER
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.testbeds.nodes import Inventory, Node
from tracebed.studies.ledger.ledger import Measured
from tracebed.studies.papers import base

SPEED = 100.0
ALONE_S = 600.0  # run time on one node, trace s
GAP_S = 100.0  # time between the expected end of a run and the start of the next one, trace s
IDLE_PROCESSES = 2  # the manager and the writer
PAPER: Mapping[str, Mapping[int, float]] = {"table 1": HPG_ALIGNER["production"], "table 3": HPG_ALIGNER["large"]}
"""Processes -> execution time, s: 40 million reads of 100 nucleotides, and 80 million reads of 400."""
APPLICATION = "aligner"
SENSITIVE = (
    "The greatest size is the last one with a gain above 0. It depends on the cores of the machine and on its load: the"
    " messages between the ranks need the cores, and take longer the more ranks share a core. Runs on a loaded machine"
    " give the sizes of that load."
)


def _replays(settings: base.Settings) -> Iterator[base.Replay]:
    inventory = _inventory(settings)
    workload = _workload(_ranks(len(inventory.nodes)) * settings.repetitions, inventory)
    speed = settings.speed or SPEED
    yield base.Replay("all", workload, inventory, "dmr", None, "dmr-gain-slope", speed, balance="dynamic")


@base.study(_replays, SPEED)
def run(settings: base.Settings) -> base.Findings:
    """Run time over the number of processes, and the sizes by gain slope (DMR paper, tables 1 and 3)."""
    (wanted,) = _replays(settings)
    ranks = _ranks(len(wanted.inventory.nodes))
    settings.on_step(f"{settings.repetitions} runs on each of {', '.join(map(str, ranks))} nodes")
    finished = base.replayed(settings, wanted)
    each = _times(finished, ranks * settings.repetitions, wanted.speed)
    times = {processes: median(values) for processes, values in each.items()}
    by_repetition = [{processes: values[k] for processes, values in each.items()} for k in range(settings.repetitions)]
    return findings(times, _notes(wanted.inventory, settings, finished), by_repetition)


def findings(
    times: Mapping[int, float], notes: tuple[str, ...] = (), by_repetition: Sequence[Mapping[int, float]] = ()
) -> base.Findings:
    """Return the findings for measured times: number of processes -> run time, s."""
    columns = {"tracebed": times, **PAPER}
    slopes = {name: gain_slopes(column) for name, column in columns.items()}
    headings = [heading for name in columns for heading in (f"{name}: s", f"{name}: gain")]
    rows = []
    for size in sorted({size for column in columns.values() for size in column}):
        cells = []
        for name, column in columns.items():
            cells += [
                f"{column[size]:.4g}" if size in column else "",
                f"{slopes[name][size]:.2%}" if size in slopes[name] else "",
            ]
        rows.append([size, *cells])
    sizes = [sizes_by_gain_slope(column) for column in columns.values()]
    names = ("minimum", "preferred", "maximum")
    tables: tuple[base.FindingsTable, ...] = (
        base.FindingsTable("run time over the number of processes", ("processes", *headings), rows),
        base.FindingsTable(
            "sizes by gain slope",
            ("size", *columns),
            [[name, *values] for name, values in zip(names, zip(*sizes, strict=True), strict=True)],
        ),
    )
    if len(by_repetition) > 1:
        tables = (*tables, _spread(by_repetition))
    figures: list[dict[str, float]] = [
        {"processes": size, "seconds": seconds}
        | ({"gain": slopes["tracebed"][size]} if size in slopes["tracebed"] else {})
        for size, seconds in times.items()
    ]
    figures.append({"processes": 0, **dict(zip(names, sizes[0], strict=True))})
    measured = Measured.of(figures, ("processes",))
    return base.Findings("Sizes of a malleable job by gain slope", tables, notes, measured)


def _spread(by_repetition: Sequence[Mapping[int, float]]) -> base.FindingsTable:
    """Return the least and the greatest of each gain and size over the repetitions."""
    gains = [gain_slopes(times) for times in by_repetition]
    sizes = [sizes_by_gain_slope(times) for times in by_repetition]
    rows = [
        [
            f"gain of {size} processes",
            f"{min(each[size] for each in gains):.2%}",
            f"{max(each[size] for each in gains):.2%}",
        ]
        for size in gains[0]
    ]
    names = zip(("minimum", "preferred", "maximum"), zip(*sizes, strict=True), strict=True)
    rows += [[name, str(min(values)), str(max(values))] for name, values in names]
    return base.FindingsTable(
        f"tracebed, spread over {len(by_repetition)} repetitions", ("of", "least", "greatest"), rows
    )


def _ranks(nodes: int) -> list[int]:
    """Return the numbers of ranks: those of the paper that fit, or powers of two if fewer than three of them fit."""
    paper = [size - IDLE_PROCESSES for size in PAPER["table 1"] if size - IDLE_PROCESSES <= nodes]
    return paper if len(paper) > 2 else [2**power for power in range(nodes.bit_length())]


def _inventory(settings: base.Settings) -> Inventory:
    """Return the inventory of the settings, or as many emulated nodes as the paper had workers."""
    inventory = base.inventory_of(settings, _emulated)
    if len(inventory.nodes) < 2:
        raise InputError("the inventory has one node", where=inventory.where, hint="give two nodes or more")
    return inventory


def _emulated() -> Inventory:
    count = max(PAPER["table 1"]) - IDLE_PROCESSES
    nodes = tuple(Node(f"n{number}", 1, emulated=True) for number in range(count))
    return Inventory("emulated nodes", "agents", nodes)


def _workload(order: list[int], inventory: Inventory) -> Workload:
    """Return a job on each of these numbers of nodes, one after the other, all with the same work."""
    submits, submit = [], 0.0
    for ranks in order:
        submits.append(submit)
        submit += ALONE_S / ranks + GAP_S
    return Workload(
        pd.DataFrame(
            {
                "job_id": [str(job) for job in range(len(order))],
                "submit_time": submits,
                "run_time": ALONE_S,
                "nodes": 1,  # the work is sized for one node
                "cores_per_node": min(node.cores for node in inventory.nodes),
                "kind": "malleable",
                "nodes_min": order,
                "nodes_pref": order,
                "nodes_max": order,
                "application": APPLICATION,
            }
        )
    )


def _times(run: Run, order: list[int], speed: float) -> dict[int, list[float]]:
    """Return the run times of the repetitions for each number of processes, wall s. Every job must complete."""
    jobs = run.jobs.set_index("job_id")
    if len(jobs) != len(order) or set(jobs["state"]) != {"completed"}:
        what = "a job has not completed, or the runs are those of other settings"
        raise InputError(what, hint="start the experiment with another output folder")
    spans = zip(jobs.index, jobs["end"], jobs["start"], strict=True)
    seconds = {str(job): float(end - start) for job, end, start in spans}
    times: dict[int, list[float]] = {}
    for job, ranks in enumerate(order):
        times.setdefault(ranks + IDLE_PROCESSES, []).append(seconds[str(job)] / speed)
    return times


def _notes(inventory: Inventory, settings: base.Settings, run: Run) -> tuple[str, ...]:
    text = f"{APPLICATION} on {inventory.name} ({inventory.execution}), median of {settings.repetitions} runs"
    note = f"{text}; wall time. p processes are p - {IDLE_PROCESSES} ranks: manager and writer do not compute."
    notes = [note, SENSITIVE]
    if inventory.execution == "emulated":
        notes.append("On emulated nodes the time of the work is slept; the messages between the ranks are real.")
    notes += [f"The runs were disturbed: {cause['text']}." for cause in run.info.health.get("causes", [])]
    return tuple(notes)
