"""How long do the processes of jobs take to launch, join, exit and resize? On emulated nodes, beside the virtual ranks.

All times come from the journal of a replay of short jobs under the policy `pref`, in the same way on emulated
and on virtual nodes, so both columns contain the way of a message. The medians of the emulated nodes are those of
`tracebed.testing.virtual.machine.Times`.

    python rank_times.py --jobs 150
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from pathlib import Path

import click
import numpy as np
import pandas as pd

from tracebed.converters.workload import Workload
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.run import JOURNAL
from tracebed.orchestrator.testbeds.nodes import AGENTS, Group, Inventory, Node
from tracebed.orchestrator.testbeds.settings import ProviderSettings
from tracebed.testing.virtual.machine import Times
from tracebed.testing.virtual.provider import VirtualSettings

SPEED, NODES, CORES = 100.0, 4, 4


def workload(jobs: int) -> Workload:
    """Return jobs of 0.8 to 1.6 s at a load at which the malleable ones often shrink and expand."""
    draw = np.random.default_rng(1)
    size, rigid = draw.integers(1, NODES + 1, jobs), draw.random(jobs) < 0.4
    return Workload(
        pd.DataFrame(
            {
                "job_id": np.arange(jobs).astype(str),
                "submit_time": np.cumsum(draw.exponential(70.0, jobs)),
                "run_time": draw.uniform(80.0, 160.0, jobs),
                "time_limit": 400.0,
                "nodes": size,
                "cores_per_node": CORES,
                "kind": np.where(rigid, "rigid", "malleable"),
                "nodes_min": np.where(rigid, size, 1),
                "nodes_max": np.where(rigid, size, NODES),
                "speedup": "amdahl",
                "speedup_parameters": "0.95",
            }
        )
    )


def measure(provider: str, jobs: int, folder: Path) -> dict[str, list[float]]:
    """Replay the jobs, and return the times by their names in `Times`, s."""
    nodes = tuple(Node(f"n{number}", CORES, emulated=True, provider=provider) for number in range(NODES))
    settings = VirtualSettings() if provider == "virtual" else ProviderSettings()
    inventory = Inventory("nodes", AGENTS, nodes, groups=(Group("nodes", provider, settings, nodes),))
    output = folder / provider
    replay(workload(jobs), inventory, "pref", output, speed=SPEED)
    facts, entries = journal.read(output / JOURNAL)
    found: dict[str, list[float]] = defaultdict(list)
    before: dict[tuple[str, str | None, str | None], float] = {}  # kind, job, node -> time of the last entry, s
    for entry in entries:
        data, job = entry.data, entry.job
        time = data.get("time", facts["zero"] + entry.time / SPEED)
        if entry.kind == "listening":
            found["launch_s"].append(time - before["start", job, None])
        elif entry.kind == "started" and before["members", job, None] > 1:
            found["launch and join"].append(time - before["listening", job, entry.node])
        elif entry.kind == "resized" and data.get("members"):
            grown = len(data["members"]) > before.get(("members", job, None), 0)
            found["expand"].append(data["applied"] - data["decided"]) if grown else None
            if not grown:
                found["resize_s"].append(data["applied"] - data["decided"])
            before["members", job, None] = len(data["members"])
        elif entry.kind == "ended":
            found["exit_s"].append(time - before["work", job, entry.node])
        if entry.kind == "start":
            before["members", job, None] = len(data["nodes"])
        before[entry.kind, job, entry.node if entry.kind != "start" else None] = time
    return found


def main() -> None:
    """Print the quantiles of the times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=150)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        columns = {provider: measure(provider, chosen.jobs, Path(name)) for provider in ("local", "virtual")}
    click.echo(f"{'ms':16} {'provider':8} {'number':>6} {'5 %':>8} {'median':>8} {'95 %':>8}   constant")
    for what in ("launch_s", "launch and join", "exit_s", "resize_s", "expand"):
        for provider, found in columns.items():
            low, median, high = 1000 * np.quantile(found[what], (0.05, 0.5, 0.95))
            constant = f"{1000 * getattr(Times(), what):g}" if what in Times._fields else ""
            click.echo(f"{what:16} {provider:8} {len(found[what]):6} {low:8.2f} {median:8.2f} {high:8.2f}   {constant}")


if __name__ == "__main__":
    main()
