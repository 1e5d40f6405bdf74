"""Prediction of the malleable run of the AMTE scheduler, made from its rigid run and its job scripts alone.

    python -m tests.oracles.amte_prediction AMTE-evaluation/fixedSchedule.csv docs/explanation/amte-malleable
    python -m tests.oracles.amte_prediction --judge malleableSchedule.csv docs/explanation/amte-malleable
    python -m tests.oracles.amte_prediction --why AMTE-evaluation/fixedSchedule.csv AMTE-evaluation

The first form writes `prediction.json`, an ensemble of simulations, and `prediction.csv`, the log of the simulation
that is nearest to the mean of the ensemble. The second form compares the log of the malleable run with both. The third
one measures the shrinks in `malleableSchedule.csv` of the folder, and predicts the run again with what they show.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from tracebed.converters.formats.amte import LoggedJob, logged_jobs, read, scripts_beside
from tracebed.converters.formats.tools.files import Input
from tracebed.converters.workload import FloatArray, Kind, Workload
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.simulation.delays import Delays
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.orchestrator.simulation.simulator import Simulator
from tracebed.validation.simulators.reading import import_run
from tracebed.validation.simulators.simulator import ReadOptions

# -- logs of the AMTE scheduler ----------------------------------------------------------------------------------------


def log_of(run: Run, folder: str = "/batch/job_{:02d}") -> str:
    """Return the log of a run with allocations: expansions as they were decided, shrinks as their nodes were idle."""
    held: dict[str, list[tuple[float, float, int]]] = {}  # job -> start, end and node of each period
    for job, node, count, start, end in run.allocations[["job_id", "node", "count", "start", "end"]].values.tolist():
        held.setdefault(job, []).extend((start, end, number) for number in range(node, node + count))
    lines: list[tuple[float, int, str]] = []
    last = 0.0
    jobs = run.jobs.sort_values("start", kind="stable")[["job_id", "start", "end"]].values.tolist()
    for number, (job, begin, done) in enumerate(jobs):
        name, last = folder.format(number), max(last, done)
        lines.append((done, 0, f"{name}; terminated"))
        for since in {start for start, *_ in held[job]}:
            added = sorted(node for start, _, node in held[job] if start == since)
            lines.append((since, 2, f"{name}; {'started' if since == begin else 'expand'}; {_hosts(run, added)}"))
        for until in {end for _, end, _ in held[job] if end < done}:
            dropped = sorted(node for _, end, node in held[job] if end == until)
            lines.append((until, 1, f"{name}; released; {_hosts(run, dropped)}"))
    written = [f"{round(time * 1e9)};{text}" for time, _, text in sorted(lines)]
    return "\n".join([*written, f"{round(last * 1e9) + 19_000_000_000}; all jobs completed"]) + "\n"


def _hosts(run: Run, nodes: list[int]) -> str:
    return f"[{', '.join(run.info.nodes[number].name for number in nodes)}]"


# -- the prediction ----------------------------------------------------------------------------------------------------

NODES = 12
POLICY = "fcfs-malleable"
SMALLER = 0.25
"""Work of a tree of depth 15 in parts of that of depth 16: the branching factor of the tree is 4."""
PASS_S = 5.0
DRAWS = 200
QUANTILES = (0.05, 0.5, 0.95)


@dataclass(frozen=True)
class Assumptions:
    """What the rigid run does not show, or not exactly."""

    startup_s: float
    """Part c of the run time c + W / n of a program that does not depend on its nodes."""
    work_s: float
    """W of a program that searches a tree of depth 16, node s."""
    shrink_s: float = 5.0
    """Time from the order of a shrink until its nodes are back at the scheduler, which waits for them."""
    expand_s: float = 6.0
    """Time from the order of an expansion until the new nodes work."""
    pause_s: float = 0.5
    """Time for which a program does no work at a resize."""


def programs(log: Path) -> tuple[Workload, FloatArray]:
    """Return the batch, and the work of each malleable program in parts of W, shape (jobs,); NaN: rigid.

    The depth of the tree, `-d 15` or `-d 16`, is read in the script of the rigid run.
    """
    workload = read(Input.at(log))
    part = np.full(len(workload), np.nan)
    for number, folder in enumerate(sorted(log.parent.glob("job_*"))):
        script = folder / "fixed.sh"
        text = script.read_text()
        if "\n" not in text:  # the path of the script, where a file system has no links
            text = (folder / text).read_text()
        if found := re.search(r"StartMultiworkerUTS -d (\d+)", text):
            part[number] = SMALLER ** (16 - int(found[1]))
    return workload, part


def fitted(workload: Workload, part: FloatArray, per_node_s: float = 0.0) -> tuple[FloatArray, FloatArray, float]:
    """Return c and W of the run times c + per_node_s n + W part / n, their covariance, and the deviation of one run, s.

    The fit is by least squares over the run times of the malleable programs in the rigid run.
    """
    known = np.isfinite(part)
    nodes, seconds = workload.ints("nodes")[known], workload.floats("run_time")[known]
    terms = np.column_stack([np.ones(len(nodes)), part[known] / nodes])
    wanted = seconds - per_node_s * nodes
    found, *_ = np.linalg.lstsq(terms, wanted, rcond=None)
    variance = float(((wanted - terms @ found) ** 2).sum() / (len(nodes) - 2))
    return found, variance * np.linalg.inv(terms.T @ terms), variance**0.5


def simulated(
    workload: Workload,
    part: FloatArray,
    assumed: Assumptions,
    noise_s: FloatArray | float = 0.0,
    *,
    waits: bool = False,
    shrinks_s: Mapping[str, float] | None = None,
) -> Run:
    """Return the simulated run. The startup of each program is an overhead, and its work has a linear speed-up.

    `part` is the work of each malleable program in parts of W, `noise_s` the deviation of each rigid run time, s. The
    blind prediction let a shrink take effect during the startup. With `waits`, it waits for the end of the startup, as
    tracebed simulates since. `shrinks_s` are times of the shrinks of single jobs, s, from the order on.
    """
    malleable = np.isfinite(part)
    own = workload.floats("run_time") - assumed.startup_s
    work = np.where(malleable, assumed.work_s * part / workload.ints("nodes"), own) + noise_s
    table = workload.table.assign(run_time=work, kind=np.where(malleable, Kind.MALLEABLE.value, Kind.RIGID.value))
    latency_s = float((workload.floats("logged_start") % PASS_S).mean())  # from a pass to the logged start
    overheads = Overheads(
        launch_s=latency_s + assumed.startup_s,
        release_s=assumed.shrink_s,
        expand_s=assumed.expand_s,
        reconfiguration_s=assumed.pause_s,
    )
    nodes = [NodeFacts(f"node{number:02d}", 1) for number in range(NODES)]
    with ExitStack() as stack:
        if not waits:
            stack.enter_context(patch.object(Simulator, "_malleability_point", lambda self, job, ready: ready))
        if shrinks_s:
            usual, ids = Delays.release, table["job_id"].tolist()
            timed = lambda self, row, job, added: shrinks_s.get(ids[job]) or usual(self, row, job, added)  # noqa: E731
            stack.enter_context(patch.object(Delays, "release", timed))
        return predict(Workload(table, workload.provenance), nodes, POLICY, overheads=overheads)


def drawn(workload: Workload, part: FloatArray, rng: np.random.Generator) -> tuple[Assumptions, FloatArray]:
    """Draw the assumptions within their uncertainty, and the noise of each run time, s."""
    per_node_s = rng.uniform(0.0, 0.3)
    found, covariance, deviation = fitted(workload, part, per_node_s)
    constant, work = rng.multivariate_normal(found, covariance)
    mean_size = float(workload.ints("nodes")[np.isfinite(part)].mean())
    assumed = Assumptions(
        startup_s=float(constant + per_node_s * mean_size),
        work_s=float(work),
        shrink_s=float(rng.triangular(2.0, 5.0, 8.0)),
        expand_s=float(rng.triangular(3.0, 6.0, 10.0)),
        pause_s=float(rng.uniform(0.0, 1.0)),
    )
    noise = np.where(np.isfinite(part), rng.normal(0.0, deviation, len(part)), rng.normal(0.0, 0.2, len(part)))
    return assumed, noise


def makespan(run: Run) -> float:
    """Return the end of the last job, s: all jobs are submitted at time 0."""
    return float(run.jobs["end"].max())


def resizes(run: Run) -> list[str]:
    """Return the resizes of a run in order: `4 6>2` for a shrink of job 4 from 6 to 2 nodes."""
    table = run.reconfigurations.sort_values("asked", kind="stable")
    rows = zip(table["job_id"], table["nodes_from"], table["nodes_to"], strict=True)
    return [f"{job} {before}>{after}" for job, before, after in rows]


CHANGES = {
    "startup_s": (-2.4, 2.4),
    "work_s": (-17.0, 17.0),
    "shrink_s": (-3.0, 3.0),
    "expand_s": (-3.0, 4.0),
    "pause_s": (-0.5, 0.5),
}
"""Changes of the assumptions, one at a time, for the sensitivity: two standard errors, or the range of the draws."""


def prediction(log: Path, draws: int = DRAWS) -> tuple[Run, dict[str, Any]]:
    """Return the simulation that is nearest to the mean of the ensemble, and the facts of the ensemble."""
    workload, part = programs(log)
    found, covariance, deviation = fitted(workload, part)
    rng = np.random.default_rng(2023)
    ensemble = [simulated(workload, part, *drawn(workload, part, rng)) for _ in range(draws)]
    times = np.array([np.concatenate([run.jobs["start"], run.jobs["end"]]) for run in ensemble])
    chosen = ensemble[int(np.abs(times - times.mean(axis=0)).mean(axis=1).argmin())]
    spans = np.array([makespan(run) for run in ensemble])
    central = Assumptions(startup_s=float(found[0]), work_s=float(found[1]))
    facts = {
        "made": date.today().isoformat(),
        "made_from": workload.provenance.sources[0].sha256,
        "draws": draws,
        "fit": {
            "c_s": round(float(found[0]), 2),
            "W_node_s": round(float(found[1]), 1),
            "standard_errors": [round(float(value), 2) for value in np.sqrt(np.diag(covariance))],
            "deviation_s": round(deviation, 2),
        },
        "makespan_s": round(float(spans.mean()), 1),
        "makespan_quantiles_s": _quantiles(spans),
        "shares_of_draws": {
            "shrink": _shares(ensemble, "shrink"),
            "expand": _shares(ensemble, "expand"),
            "resizes": _most_common(Counter(text for run in ensemble for text in set(resizes(run))), draws),
            "makespan": {f"below {limit} s": round(float((spans < limit).mean()), 3) for limit in (1050, 1090, 1130)},
        },
        "makespans_of_changed_assumptions_s": {
            name: [
                round(makespan(simulated(workload, part, replace(central, **{name: getattr(central, name) + by}))), 1)
                for by in (changes[0], 0.0, changes[1])
            ]
            for name, changes in CHANGES.items()
        },
        "starts_s": {job: _quantiles(times[:, row]) for row, job in enumerate(chosen.jobs["job_id"])},
    }
    return chosen, facts


def _quantiles(values: FloatArray) -> list[float]:
    return [round(float(np.quantile(values, q)), 1) for q in QUANTILES]


def _shares(ensemble: list[Run], kind: str) -> dict[str, float]:
    """Return the share of the simulations in which a job shrinks, or expands, by job."""
    jobs = Counter(job for run in ensemble for job in resized(run, kind))
    return {job: round(jobs[job] / len(ensemble), 3) for job in sorted(jobs, key=int)}


def _most_common(counts: Counter[str], draws: int) -> dict[str, float]:
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return {text: round(count / draws, 3) for text, count in ordered if count > draws / 20}


def resized(run: Run, kind: str) -> set[str]:
    """Return the jobs of which the log has a shrink, which must have ended, or the order of an expansion."""
    table = run.reconfigurations
    logged = (table["kind"] == kind) & ((table["state"] == "applied") | (kind == "expand"))
    return set(table["job_id"][logged])


def _document(facts: dict[str, Any]) -> str:
    """Return facts as JSON, with each list on one line."""
    return re.sub(r"\[[^\[\]]*\]", lambda found: " ".join(found[0].split()), json.dumps(facts, indent=1)) + "\n"


def judged(log: Path, folder: Path) -> list[str]:
    """Return the comparison of a log with the stored prediction: its makespan, and the jobs that were resized."""
    facts = json.loads((folder / "prediction.json").read_text())
    options = ReadOptions(side="real")
    real, predicted = (import_run(path, options) for path in (log, folder / "prediction.csv"))
    low, _, high = facts["makespan_quantiles_s"]
    span, expected = makespan(real), makespan(predicted)
    lines = [
        f"makespan {span:.1f} s, predicted {expected:.1f} s ({(expected / span - 1) * 100:+.2f} %), "
        f"{'within' if low <= span <= high else 'outside'} {low:.1f} to {high:.1f} s"
    ]
    for kind in ("shrink", "expand"):
        ours, theirs = resized(predicted, kind), resized(real, kind)
        parts = {"in both": ours & theirs, "only predicted": ours - theirs, "only real": theirs - ours}
        shown = ", ".join(f"{name} {' '.join(sorted(jobs, key=int)) or '-'}" for name, jobs in parts.items())
        lines.append(f"jobs that {kind}: {shown}")
    return lines


# -- after the fact: what the log of the malleable run shows, and the prediction with it -------------------------------


def measured(log: Path, latency_s: float) -> list[tuple[str, int, float, float, float]]:
    """Return job, released nodes, seconds since the start of the job, seconds of the shrink, and end of each shrink.

    The log has the end of a shrink only. The scheduler orders it in a pass, each 5 s after the start of the job before
    the head (`latency_s` before it is logged): in the first one at which the idle nodes and the released ones are as
    many as the head needs at least.
    """
    jobs = logged_jobs(Input.at(log))
    scripts = scripts_beside(log, len(jobs)) or []
    rows = []
    for number, job in enumerate(jobs):
        for change in job.changes:
            if change.expands:
                continue
            head = next(other for other, later in enumerate(jobs) if later.start > change.time)
            order = max(each.start for each in jobs[:head]) - latency_s + PASS_S
            while _idle(jobs, order) != scripts[head].least - len(change.hosts):
                order += PASS_S
            rows.append((str(number), len(change.hosts), order - job.start, change.time - order, change.time))
    return sorted(rows, key=lambda row: row[-1])


def _idle(jobs: list[LoggedJob], at: float) -> int:
    """Return the nodes that are idle at an instant."""
    held = 0
    for job in jobs:
        if job.start <= at < job.end:
            changes = (change for change in job.changes if change.time <= at)
            held += len(job.hosts) + sum(len(change.hosts) * (1 if change.expands else -1) for change in changes)
    return NODES - held


SHRINKS_S = {"4": 16.3, "8": 7.6, "10": 6.0, "13": 2.3, "16": 2.3, "22": 6.6}
"""Times of the shrinks in the log of the malleable run (`measured`), s."""


def explained(rigid: Path) -> dict[str, Run]:
    """Return the simulations that explain the shrinks of jobs 13 and 16, by the time of a shrink that they assume."""
    workload, part = programs(rigid)
    found, *_ = fitted(workload, part)
    central = Assumptions(startup_s=float(found[0]), work_s=float(found[1]))
    mean_s = round(sum(SHRINKS_S.values()) / len(SHRINKS_S), 1)
    return {
        "5 s, as predicted blindly": simulated(workload, part, central),
        "16.3 s for job 4 only": simulated(workload, part, central, shrinks_s={"4": SHRINKS_S["4"]}),
        "each as measured": simulated(workload, part, central, shrinks_s=SHRINKS_S),
        f"{mean_s} s, the mean": simulated(workload, part, replace(central, shrink_s=mean_s)),
        **{
            f"{seconds:g} s, after the startup": simulated(
                workload, part, replace(central, shrink_s=seconds), waits=True
            )
            for seconds in (2.0, 5.0, 8.0)
        },
    }


def explanation(rigid: Path, folder: Path) -> list[str]:
    """Return the measured shrinks of the malleable run, and the errors of the simulations that explain it."""
    log = folder / "malleableSchedule.csv"
    workload, part = programs(rigid)
    latency_s = float((workload.floats("logged_start") % PASS_S).mean())
    lines = ["job, nodes, s after the start of the job, s, end"]
    lines += [
        f"{job}, {count}, {after:.1f}, {took:.1f}, {end:.1f}"
        for job, count, after, took, end in measured(log, latency_s)
    ]
    real = import_run(log, ReadOptions(side="real"))
    lines.append("shrink, makespan, error, mean error of the starts, resizes")
    lines.append(f"real, {makespan(real):.1f}, {', '.join(sorted(resizes(real)))}")
    for name, run in explained(rigid).items():
        apart = (run.jobs["start"] - real.jobs["start"]).abs().mean()
        error = (makespan(run) / makespan(real) - 1) * 100
        lines.append(f"{name}, {makespan(run):.1f}, {error:+.2f} %, {apart:.1f}, {', '.join(sorted(resizes(run)))}")
    rng = np.random.default_rng(2023)
    ensemble = [simulated(workload, part, *drawn(workload, part, rng), waits=True) for _ in range(DRAWS)]
    spans = np.array([makespan(run) for run in ensemble])
    lines.append(f"the ensemble, after the startup: {spans.mean():.1f} s, {_quantiles(spans)}")
    lines += [f"jobs that {kind}: {_shares(ensemble, kind)}" for kind in ("shrink", "expand")]
    return lines


def main() -> None:
    """Write the prediction, judge it, or explain it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--judge", action="store_true", help="compare the log with the prediction in the folder")
    parser.add_argument("--why", action="store_true", help="explain the malleable run by that in the folder")
    parser.add_argument("log", type=Path, help="log of the scheduler")
    parser.add_argument("folder", type=Path, help="folder of the prediction")
    given = parser.parse_args()
    log, folder = given.log, given.folder
    if given.judge or given.why:
        sys.stdout.write("\n".join([*(judged if given.judge else explanation)(log, folder), ""]))
        return
    run, facts = prediction(log)
    folder.mkdir(exist_ok=True)
    (folder / "prediction.csv").write_text(log_of(run))
    (folder / "prediction.json").write_text(_document(facts))


if __name__ == "__main__":
    main()
