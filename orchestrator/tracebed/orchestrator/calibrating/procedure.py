"""The procedure of a calibration: measure the work rate, replay the probes several times, and estimate."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tracebed.benchmarks.kernels.stream import KERNELS
from tracebed.converters.workload import Workload
from tracebed.ground import bounds
from tracebed.ground.errors import InputError, TestbedError
from tracebed.ground.progress import reporter
from tracebed.ground.version import version
from tracebed.orchestrator.calibrating import probes
from tracebed.orchestrator.calibrating.estimates import (
    FEW_RESAMPLES,
    FloatArray,
    by_size,
    estimates,
    factors,
    joins,
    linear,
    mean_of,
    of_all,
    of_joining_ranks,
    of_ranks,
    with_step,
)
from tracebed.orchestrator.calibrating.probes import OverheadSamples, samples_of
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.replay.options import Options
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.run import JOURNAL, Run
from tracebed.orchestrator.scheduling.policies.kassel import Pref
from tracebed.orchestrator.scheduling.state import Policy
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.testbeds import rates
from tracebed.orchestrator.testbeds.base import Testbed, made_testbed
from tracebed.orchestrator.testbeds.calibration import (
    Calibration,
    DutyProposal,
    OverheadEstimate,
    RateEstimate,
    SpeedupEstimate,
    host_of,
)
from tracebed.orchestrator.testbeds.checking.survey import load_with_facts
from tracebed.orchestrator.testbeds.nodes import Inventory

REPETITIONS = 3
DUTY_WINDOWS = 60  # number of windows of the length of an iteration from which the duty is proposed
SHARING_WINDOWS = 10
DUTIES = tuple(round(1 - 0.05 * step, 2) for step in range(15))  # The duties that can be proposed: 1, 0.95, ..., 0.3.
QUANTILE = 0.99  # share of the iterations whose work must fit into the plan
DRIFT = 3.0  # multiple of the shortfall of the slowest ranks that is left free
# Number of rounds. Each round measures each kernel alone and beside each kernel, so that a drift of the machine changes
# both.
INTERFERENCE_ROUNDS = 3
INTERFERENCE_WINDOWS = 5  # number of windows of each core in a round
INTERFERENCE_WINDOW_S = 0.1  # duration of a window, CPU s


@dataclass
class _Cores:
    """The measurements without jobs. All fields but `host` are None or empty if the nodes are emulated."""

    host: dict[str, Any]
    rate: RateEstimate | None = None
    proposal: DutyProposal | None = None
    sharing: OverheadEstimate | None = None
    interference: dict[str, dict[str, OverheadEstimate]] = field(default_factory=dict)


@dataclass
class _Probes:
    """The measurements by replays, one item for each repetition."""

    samples: list[OverheadSamples] = field(default_factory=list)
    speedups: list[dict[str, float]] = field(default_factory=list)


def calibrate(
    nodes: Inventory | Path | str,
    *,
    speed: float = 100.0,
    repetitions: int = REPETITIONS,
    seconds: float = 1.0,
    name: str | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> Calibration:
    """Measure what replays on an inventory take time for, by replays of small workloads.

    The work rate of computing nodes is also stored for later replays on this machine.

    Args:
        nodes: an inventory, or the name or path of one. Its nodes are all computing or all emulated.
        speed: trace seconds per wall second of the probes.
        repetitions: number of replays of each probe.
        seconds: factor on the duration of the probes.
        name: name of the calibration; None: the name of the inventory.
        on_progress: called with the share of the work that is done.

    Returns:
        the calibration. `Calibration.save` writes it.

    Raises:
        InputError: the inventory cannot be used, or a number is out of its range.
        TestbedError: the agents of the testbed do not start, or a probe was interrupted.
        KeyboardInterrupt: a signal interrupted a probe.

    Example:
        >>> import tracebed.api as tb
        >>> made = tb.calibrate("emulated-4", repetitions=1, seconds=0.1)
        >>> made.overheads["launch_s"].value > 0
        True
    """
    # A probe may have any node: what a replay takes time for does not depend on partitions.
    inventory = replace(load_with_facts(nodes), partitions=())
    bounds.check("speed", speed, bounds.MIN_SPEED, bounds.MAX_SPEED)
    bounds.check("repetitions", repetitions, 1, 1000)
    bounds.check("seconds", seconds, 0.01, 100)
    inventory.check_real()
    if "+" in inventory.execution:
        what = "the inventory mixes computing and emulated nodes"
        raise InputError(what, where=inventory.where, hint="calibrate one kind of node")
    report = reporter(f"calibrating {len(inventory.nodes)} nodes", 1.0, on_progress)
    with tempfile.TemporaryDirectory(prefix="tracebed-calibrate-") as folder:
        cores = _measure_cores(inventory, Path(folder))
        duty = inventory.duty(cores.proposal.duty if cores.proposal else None)
        if isinstance(duty, list):
            what = "the nodes have different duties"
            raise InputError(what, where=inventory.where, hint="calibrate nodes with one duty")
        plan: list[tuple[Workload, Policy]] = [
            (probes.ladder(inventory, speed, seconds), probes.Ladder(2 * inventory.grain_s * speed)),
            (probes.mix(inventory, speed, seconds), Pref()),
        ]
        if duty == 1.0:
            plan.append((probes.speedup_probe(inventory, speed, seconds), probes.Ladder()))
        made, steps = _Probes(), 1 + repetitions * len(plan)
        report(1 / steps)
        for repetition in range(repetitions):
            parts = []
            for number, (workload, policy) in enumerate(plan):
                target = Path(folder, f"probe-{repetition}-{number}")
                run = _replayed(workload, inventory, Setup.of(policy, speed=speed), target, duty or None)
                if number < 2:
                    _, entries = journal.read(target / JOURNAL)
                    parts.append(samples_of(run, workload, entries, inventory.grain_s))
                else:
                    made.speedups.append(_times(run))
                report((2 + repetition * len(plan) + number) / steps)
            made.samples.append(OverheadSamples.joined(parts))
    return Calibration(
        name=name or inventory.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        tracebed=version(),
        inventory=inventory.name,
        execution="emulated" if inventory.execution == "emulated" else "computed",
        nodes=len(inventory.nodes),
        cores=sorted({node.cores for node in inventory.nodes}),
        host=cores.host,
        speed=speed,
        grain_s=inventory.grain_s,
        repetitions=repetitions,
        units_per_core_second=cores.rate,
        duty=duty,
        duty_proposal=cores.proposal,
        **_estimated(made.samples),
        speedups=_speedups(made.speedups),
        sharing=cores.sharing,
        interference=cores.interference,
        skipped=_skipped(inventory, duty, cores.interference),
        workloads=[workload.sha256 for workload, _ in plan],
    )


def _measure_cores(inventory: Inventory, folder: Path) -> _Cores:
    """Measure the work rate of the cores, store it, propose a duty, and measure the slowdown of neighbors."""
    testbed = made_testbed(inventory.testbed, inventory, folder / "cores")
    try:
        testbed.start()
        host = host_of(testbed.hosts[0])
        rate = rates.rate_of(testbed, again=True)
        if rate is None:
            return _Cores(host)
        nodes, estimate = range(len(testbed.nodes)), rate.units_per_core_second
        measured = rates.measure(testbed, nodes, DUTY_WINDOWS, inventory.grain_s) or []
        speeds = np.concatenate([np.ravel(node[..., 0] * node[..., 1]) for node in measured]) / estimate.median
        ranks = sum(node.cores for node in testbed.nodes)
        sharing, factors = None, {}
        if min(node.cores for node in testbed.nodes) > 1:
            half = min(node.cores for node in testbed.nodes) // 2
            alone = rates.measure(testbed, nodes, SHARING_WINDOWS, rates.WINDOW_S, cores=half) or []
            beside = rates.measure(testbed, nodes, SHARING_WINDOWS, rates.WINDOW_S) or []
            sharing = mean_of([_slowdown(alone[node], beside[node][:half]) for node in nodes])
            factors = interference(testbed)
        return _Cores(host, estimate, propose_duty(speeds, ranks), sharing, factors)
    finally:
        testbed.stop()


def _slowdown(alone: FloatArray, beside: FloatArray) -> FloatArray:
    """Return the slowdown of cores by work on the others, shape (cores x windows,), from (cores, windows, 2)."""
    slowdown: FloatArray = np.ravel(np.median(alone.prod(axis=2), axis=1, keepdims=True) / beside.prod(axis=2))
    return slowdown


def _replayed(workload: Workload, inventory: Inventory, setup: Setup, target: Path, duty: float | None) -> Run:
    run = replay(workload, inventory, setup, target, name=target.name, options=Options(proposed_duty=duty))
    if run.info.state == "interrupted":
        (reason,) = run.info.interruptions
        if run.info.stopped_by_signal:
            raise KeyboardInterrupt
        raise TestbedError(f"a probe was interrupted: {reason}", hint="calibrate again")
    if done := run.info.counts["jobs"] - run.info.counts.get("completed", 0):
        raise TestbedError(f"{done} jobs of a probe have not completed", hint="calibrate again")
    return run


def _estimated(samples: Sequence[OverheadSamples]) -> dict[str, Any]:
    """Return the fields of the calibration that are estimated from `samples`, one item for each repetition."""
    launch, end, ready = ([getattr(one, name) for one in samples] for name in ("launch", "end", "ready"))
    overheads: dict[str, OverheadEstimate | None] = {
        **dict(zip(("launch_s", "launch_join_s", "launch_rank_s"), estimates(launch, with_step), strict=True)),
        **dict(zip(("end_s", "end_rank_s"), estimates(end, linear), strict=True)),
        **dict(zip(("expand_s", "expand_rank_s"), estimates(ready, joins, resamples=FEW_RESAMPLES), strict=False)),
        "reconfiguration_s": mean_of([one.shrink[:, 2] for one in samples]),
        "release_s": mean_of([one.shrink[:, 2] + one.shrink[:, 3] for one in samples]),
    }
    stages = {
        f"{kind} {stage}": mean_of([getattr(one, kind)[:, column] for one in samples])
        for kind in ("expand", "shrink")
        for column, stage in enumerate(("asked to decided", "decided to applied", "applied to ended"), 1)
    }
    launches = factors(launch, of_joining_ranks)
    drawn = {
        "launch": launches,
        "end": factors(end, of_ranks),
        "expand": launches,  # the instant at which new ranks have joined is not observed, and they are launched alike
        "reconfiguration": factors([one.shrink[:, [0, 2]] for one in samples], of_all),
        "release": factors(
            [np.column_stack([one.shrink[:, 0], one.shrink[:, 2] + one.shrink[:, 3]]) for one in samples], of_all
        ),
    }
    return {
        "overheads": {name: estimate for name, estimate in overheads.items() if estimate},
        "factors": {step: values for step, values in drawn.items() if values},
        "launch": by_size(launch),
        "end": by_size(end),
        "resizes": {stage: estimate for stage, estimate in stages.items() if estimate},
        "grain": mean_of([one.shrink[:, 1] / one.shrink[:, 4] for one in samples]),
    }


def _times(run: Run) -> dict[str, float]:
    """Return the wall time of the work of each job of the speedup probe, s."""
    jobs = run.jobs
    return dict(zip(jobs["job_id"], (jobs["end"] - jobs["launched"]) / run.info.speed, strict=True))


def _speedups(times: Sequence[dict[str, float]]) -> list[SpeedupEstimate]:
    """Return the speedup of the benchmark on each allocation, relative to one core, from its times by repetition."""
    speedups: list[SpeedupEstimate] = []
    for name in times[0] if times else ():
        nodes, cores = map(int, name.removeprefix("speedup-").split("-"))
        seconds = mean_of([np.array([one[name]]) for one in times])
        assert seconds is not None
        alone = speedups[0].seconds.value if speedups else seconds.value
        speedup = float(f"{alone / seconds.value:.5g}")
        speedups.append(SpeedupEstimate(benchmark="pils", nodes=nodes, cores=cores, seconds=seconds, speedup=speedup))
    return speedups


def _skipped(inventory: Inventory, duty: float, factors: Mapping[str, object]) -> list[str]:
    """Return the measurements that are impossible on these nodes, and why."""
    emulated = inventory.execution == "emulated"
    skipped = []
    if emulated:
        skipped.append("work rate and duty: jobs on emulated nodes do not compute")
    if duty < 1:
        reason = "the nodes are emulated" if emulated else f"the duty is {duty:g}"
        skipped.append(f"speedup of benchmarks: run times are imposed, since {reason}")
    if emulated or min(node.cores for node in inventory.nodes) < 2:
        reason = "jobs on emulated nodes do not compute" if emulated else "the nodes have one core"
        skipped.append(f"slowdown of jobs that share a node: {reason}")
    elif not factors:
        skipped.append("interference between applications: a node lacks the memory of a compute kernel")
    if len(inventory.nodes) < 2:
        skipped.append("launch of further ranks and resizes: there is one node")
    return skipped


def propose_duty(speeds: npt.NDArray[np.float64], ranks: int) -> DutyProposal:
    """Return the proposed duty for jobs of `ranks` ranks, which wait for each other.

    A rank with duty d computes d times the units that fit into an iteration at the calibrated rate R. On a core with
    the rate r (units per wall second) this takes d R / r of the iteration, so the work fits if r / R >= d. The ranks of
    a job wait for the slowest one, so the work of N ranks fits with probability (1 - F(d))^N, with F the distribution
    of r / R over windows of the length of an iteration (`speeds`, shape (windows,)). Let q be the value with (1 -
    F(q))^N = `QUANTILE`. The windows of a calibration span seconds, but the rate of a machine drifts over hours. So
    `DRIFT` times the shortfall 1 - q is left free.
    """
    slowest = float(np.quantile(speeds, 1 - QUANTILE ** (1 / ranks)))
    bound = 1 - DRIFT * max(0.0, 1 - slowest)
    duty = next((duty for duty in DUTIES if duty <= bound), DUTIES[-1])
    late = 1 - float(np.mean(speeds >= duty)) ** ranks
    return DutyProposal(duty=duty, quantile=QUANTILE, ranks=ranks, late=round(late, 6))


def interference(testbed: Testbed) -> dict[str, dict[str, OverheadEstimate]]:
    """Measure how much the kernels slow each other down on one node: kernel -> kernel beside it -> factor.

    A factor is the rate of a kernel on half of the cores of a node while another kernel runs on the other half, divided
    by its rate while the other half is idle; its estimate is the median of the windows with its interval. Rates are
    units per CPU second, so time in which other processes have the core does not count. All nodes are measured at once,
    as they compute in a replay. They have at least two cores each, and no job may be running. The result is empty if an
    agent cannot measure a kernel, for example because its node lacks the memory.
    """
    samples: dict[tuple[str, str], list[FloatArray]] = {}  # (kernel, kernel beside it) -> the factors of each round
    for _ in range(INTERFERENCE_ROUNDS):
        for kernel in KERNELS:
            alone = _kernel_rates(testbed, kernel, None)
            for other in KERNELS:
                beside = _kernel_rates(testbed, kernel, other)
                if alone is None or beside is None:
                    return {}
                samples.setdefault((kernel, other), []).append(_interference_factors(alone, beside))
    return {kernel: {other: _interference_estimate(samples[kernel, other]) for other in KERNELS} for kernel in KERNELS}


def _kernel_rates(testbed: Testbed, kernel: str, beside: str | None) -> list[FloatArray] | None:
    """Return the rates of half of the cores, for each node units per CPU second, shape (cores, windows)."""
    half = min(node.cores for node in testbed.nodes) // 2
    nodes = range(len(testbed.nodes))
    measured = rates.measure(
        testbed, nodes, INTERFERENCE_WINDOWS, INTERFERENCE_WINDOW_S, cores=half, work=kernel, beside=beside
    )
    return measured and [node[..., 0] for node in measured]


def _interference_factors(alone: list[FloatArray], beside: list[FloatArray]) -> FloatArray:
    """Return the rates `beside` relative to the median of `alone` of the same core, shape (samples,)."""
    return np.concatenate(
        [np.ravel(two / np.median(one, axis=1, keepdims=True)) for one, two in zip(alone, beside, strict=True)]
    )


def _interference_estimate(rounds: list[FloatArray]) -> OverheadEstimate:
    factors = np.concatenate(rounds)
    value, (low, high) = float(np.median(factors)), rates.median_interval(factors)
    figures = {"value": value, "median": value, "low": low, "high": high}
    return OverheadEstimate(
        **{name: float(f"{figure:.5g}") for name, figure in figures.items()},
        count=len(factors),
        repetitions=[float(f"{np.median(one):.5g}") for one in rounds],
    )
