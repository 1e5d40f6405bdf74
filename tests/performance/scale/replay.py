"""What does a replay on many emulated nodes cost the orchestrator on this machine?

The workload is drawn from the model `cirne`, 70 % of the rigid jobs malleable, and its times are scaled to the given
span at an offered load of 0.9. `tracebed replay` runs it under `pref`. The script prints the CPU time and the largest
memory of that process alone, without the agents and the jobs, and the lateness of its submissions.

    python replay.py -o two-days                                        # 2,000 jobs on 49 x 48, two days in 30 minutes
    python replay.py --nodes 500 --cores 8 --jobs 10000 --widest 4 --minutes 45 -o ten-thousand
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import time
from pathlib import Path

import click
import psutil

import tracebed.api as tb

DAY_S = 86400.0


def draw(nodes: int, cores: int, jobs: int, widest: int, span_s: float) -> tb.Workload:
    """Draw jobs of 1 to `widest` nodes, submitted within `span_s` at an offered load of 0.9 on all nodes."""
    drawn = tb.scale(tb.generate("cirne", nodes=widest, jobs=jobs, seed=1), nodes=widest, cores_per_node=cores)
    run_time = 0.9 * nodes * span_s / drawn.work.sum()
    scaled = tb.scale(drawn, run_time=run_time, arrivals=span_s / drawn.span)
    return tb.make_malleable(scaled, share=0.7, seed=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=49)
    parser.add_argument("--cores", type=int, default=48)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--widest", type=int, help="nodes of the widest job [default: all]")
    parser.add_argument("--days", type=float, default=2.0, help="span of the submissions in the trace")
    parser.add_argument("--minutes", type=float, default=30.0, help="span of the submissions in the replay")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the workload and the run")
    chosen = parser.parse_args()
    chosen.output.mkdir(parents=True)
    workload, nodes, run = (chosen.output / name for name in ("w.parquet", "nodes.yaml", "run"))
    span_s = chosen.days * DAY_S
    tb.write(draw(chosen.nodes, chosen.cores, chosen.jobs, chosen.widest or chosen.nodes, span_s), workload)
    group = f"{{nodes: 'n[1-{chosen.nodes}]', cores: {chosen.cores}, emulated: true}}"
    nodes.write_text(f"groups: {{all: {group}}}\n", encoding="utf-8")
    program = shutil.which("tracebed") or "tracebed"
    options = [*("--policy", "pref", "--inventory", str(nodes), "--speed", f"{span_s / (60 * chosen.minutes):g}")]
    begun = time.monotonic()
    child = subprocess.Popen([program, "replay", str(workload), *options, "-o", str(run)])
    process = psutil.Process(child.pid)
    cpu_s = memory = 0.0
    while child.poll() is None:
        try:
            times = process.cpu_times()
            cpu_s, memory = times.user + times.system, max(memory, process.memory_info().rss)
        except psutil.Error:
            break
        time.sleep(0.5)
    child.wait()
    wall_s = time.monotonic() - begun
    late = json.loads((run / "run.json").read_text(encoding="utf-8"))["lateness_ms"]
    click.echo(
        f"{chosen.jobs:,} jobs on {chosen.nodes} x {chosen.cores}: {wall_s:.0f} s, exit status {child.returncode}"
    )
    click.echo(f"orchestrator: {cpu_s:.0f} s of CPU, {cpu_s / wall_s:.2f} cores, {memory / 2**20:.0f} MiB")
    click.echo(
        f"submissions: {late['p50']:.1f} ms late (p50), {late['p99']:.1f} ms (p99), {late['max']:.1f} ms (largest)"
    )


if __name__ == "__main__":
    main()
