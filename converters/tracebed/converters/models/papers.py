"""The workloads of three papers, by name: what a paper prints is a default here, what it leaves open a parameter.

- `sd-1`, `sd-2`, `sd-5`: the SD-Policy paper, M. D'Amico, A. Jokanovic, J. Corbalan, "Holistic slowdown driven
  scheduling and resource management for malleable jobs", ICPP 2019, table 1.
- `dmr-100` ... `dmr-2000`: the DMR study, S. Iserte et al., a malleable HPG-aligner by the DMR API.
- `deadline-normal`, `-heavy`, `-very-heavy`: the deadline study, static and leak allocation of jobs with deadlines.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import numpy as np

from tracebed.converters.applications import with_applications
from tracebed.converters.gain_slope import sizes_by_gain_slope
from tracebed.converters.models import cirne as cirne_model
from tracebed.converters.models import deadlines, feitelson96, require
from tracebed.converters.workload import Kind, Step, System, Workload

SD = cirne_model.Parameters(cancelled=0.0)
"""Cirne's published constants; the paper knows no cancelled jobs."""
SD_5 = cirne_model.Parameters(cancelled=0.0, limit_offset=-0.3178)
"""Requested times a twentieth of the published law's. Not verified: with it the work of 2000 jobs fits the makespan
that is printed for workload 5; with the published law it would be twenty times as much."""
HPG_ALIGNER: dict[str, dict[int, float]] = {
    "production": {3: 238.0, 6: 68.0, 12: 40.0, 24: 44.0, 48: 60.0},
    "large": {3: 1382.0, 6: 345.0, 12: 155.0, 24: 152.0, 48: 171.0},
}
"""Tables 1 and 3 of the DMR study: run time in s by nodes (a process of 48 threads on each)."""


def sd(
    jobs: int = 5000,
    *,
    nodes: int = 1024,
    cores_per_node: int = 48,
    seed: int = 0,
    parameters: cirne_model.Parameters = SD,
    largest: int = 128,
    exact_limits: bool = False,
) -> Workload:
    """Draw workload 1 or 2 of the SD-Policy paper: Cirne's model with the arrivals of ANL.

    Sizes are nodes, but the arrival rate is in proportion to the machine's **cores** / 120: read so, and only so,
    EASY gives response times, slowdowns and a makespan near those of the paper's table 1
    (docs/reference/models/papers.md).

    Args:
        jobs: how many.
        nodes: of the machine.
        cores_per_node: of the machine; every job uses all cores of its nodes.
        seed: of the numpy Generator.
        parameters: Cirne's constants.
        largest: most nodes of a job; larger draws get these.
        exact_limits: requested times equal run times.

    Raises:
        InputError: an argument is out of its range.
    """
    require(nodes >= 1, f"{nodes} nodes", "at least 1")
    require(cores_per_node >= 1, f"{cores_per_node} cores per node", "at least 1")
    require(largest >= 1, f"largest {largest}", "at least 1")
    rigid = cirne_model.cirne(jobs, nodes=nodes * cores_per_node, seed=seed, parameters=parameters)
    size = rigid.ints("nodes")
    most = min(largest, nodes)
    table = rigid.table.assign(
        nodes=np.minimum(size, most),
        cores_per_node=cores_per_node,
        time_limit=rigid.floats("run_time" if exact_limits else "time_limit"),
    )
    step = Step(
        "sd",
        {"nodes": nodes, "cores_per_node": cores_per_node, "largest": largest, "exact_limits": exact_limits},
        {"jobs cut to the largest size": int((size > most).sum())},
    )
    return rigid.with_step(step, table, system=System(nodes, cores_per_node, "SD-Policy paper"))


def sd_5(
    jobs: int = 2000,
    *,
    nodes: int = 49,
    cores_per_node: int = 48,
    seed: int = 0,
    parameters: cirne_model.Parameters = SD_5,
    largest: int = 16,
) -> Workload:
    """Workload 5 of the SD-Policy paper, which ran for real: 2000 jobs on 49 x 48, at most 16 nodes.

    As `sd`, with the applications of table 2.

    Args:
        jobs: how many.
        nodes: of the machine.
        cores_per_node: of the machine; every job uses all cores of its nodes.
        seed: of the numpy Generator.
        parameters: Cirne's constants.
        largest: most nodes of a job; larger draws get these.

    Raises:
        InputError: an argument is out of its range.
    """
    workload = sd(jobs, nodes=nodes, cores_per_node=cores_per_node, seed=seed, parameters=parameters, largest=largest)
    return with_applications(workload, seed=seed)


def dmr(
    jobs: int,
    *,
    nodes: int = 49,
    cores_per_node: int = 48,
    seed: int = 0,
    factor: float = 10.0,
    dataset: Literal["production", "large"] = "production",
    gaps: feitelson96.Gaps = "exponential",
    fixed: bool = False,
) -> Workload:
    """Draw a workload of the DMR study: Feitelson's arrivals, every job an instance of HPG-aligner.

    All jobs have the measured speedup `table` and its sizes by gain slope, and request the greatest of them, as
    the study's fixed jobs do. Of Feitelson's model the arrivals are left, for sizes and run times are measured.

    Args:
        jobs: how many.
        nodes: of the machine.
        cores_per_node: of the machine; every job uses all cores of its nodes.
        seed: of the numpy Generator.
        factor: mean time between arrivals, s.
        dataset: measured times of which input: 40 million reads (table 1) or 80 million longer ones (table 3).
        gaps: law of the times between arrivals.
        fixed: rigid jobs, the study's baseline.

    Raises:
        InputError: an argument is out of its range.
    """
    require(dataset in HPG_ALIGNER, f"dataset {dataset!r}", f"one of {', '.join(HPG_ALIGNER)}")
    times = HPG_ALIGNER[dataset]
    sizes = sizes_by_gain_slope(times)
    require(nodes >= sizes.most, f"{nodes} nodes", f"at least {sizes.most}, the greatest size of the jobs")
    arrivals = feitelson96.feitelson96(
        jobs,
        nodes=nodes,
        cores_per_node=cores_per_node,
        seed=seed,
        parameters=feitelson96.Parameters(factor=factor),
        gaps=gaps,
    )
    table = arrivals.table[["job_id", "submit_time", "cores_per_node"]].assign(
        run_time=times[sizes.most], nodes=sizes.most
    )
    if not fixed:
        table = table.assign(
            kind=Kind.MALLEABLE.value,
            nodes_min=sizes.least,
            nodes_max=sizes.most,
            nodes_pref=sizes.preferred,
            speedup="table",
            speedup_parameters=" ".join(f"{size}:{time:g}" for size, time in times.items()),
        )
    step = Step("dmr", {"dataset": dataset, "fixed": fixed, **sizes._asdict()}, {})
    return arrivals.with_step(step, table, system=System(nodes, cores_per_node, "DMR study"))


def deadline(
    jobs: int = 1000,
    *,
    nodes: int = 128,
    cores_per_node: int = 4,
    seed: int = 0,
    parameters: deadlines.Parameters | None = None,
    factor: float = 1500.0,
    behaviour: deadlines.Behaviour = "uniform",
) -> Workload:
    """Draw a workload of the deadline study: Feitelson's model, with behaviour, earliest start and deadline.

    The repetitions of a job come at the end of its last run, as the study's traces do, but as instants: a
    system that accepts or rejects at submission knows no `after`.

    Args:
        jobs: how many requests.
        nodes: of the machine.
        cores_per_node: of the machine; every job uses all cores of its nodes.
        seed: of the numpy Generator.
        parameters: the constants of slack and earliest start.
        factor: mean time between arrivals, s: 1500 normal, 150 heavy, 1 very heavy load.
        behaviour: how the jobs' processes behave.

    Raises:
        InputError: an argument is out of its range.
    """
    requests = feitelson96.feitelson96(
        jobs,
        nodes=nodes,
        cores_per_node=cores_per_node,
        seed=seed,
        parameters=feitelson96.Parameters(factor=factor),
        repeats="end",
    )
    step = Step("deadline", {"factor": factor}, {})
    system = System(nodes, cores_per_node, "deadline study")
    instants = requests.with_step(step, requests.table.drop(columns=["after", "think_time"]), system=system)
    return deadlines.with_deadlines(instants, nodes, seed=seed, parameters=parameters, behaviour=behaviour)


sd_1 = partial(sd)
"""Workload 1 of the SD-Policy paper: Cirne, 5000 jobs on 1024 x 48."""
sd_2 = partial(sd, exact_limits=True)
"""Workload 2 of the SD-Policy paper: as workload 1, requested times exact."""
dmr_100 = partial(dmr, jobs=100)
"""The DMR study: 100 malleable jobs of HPG-aligner on 49 x 48."""
dmr_250 = partial(dmr, jobs=250)
"""The DMR study: 250 malleable jobs of HPG-aligner on 49 x 48."""
dmr_500 = partial(dmr, jobs=500)
"""The DMR study: 500 malleable jobs of HPG-aligner on 49 x 48."""
dmr_1000 = partial(dmr, jobs=1000)
"""The DMR study: 1000 malleable jobs of HPG-aligner on 49 x 48."""
dmr_2000 = partial(dmr, jobs=2000)
"""The DMR study: 2000 malleable jobs of HPG-aligner on 49 x 48."""
deadline_normal = partial(deadline)
"""The deadline study: 1000 requests on 128 x 4, one every 1500 s."""
deadline_heavy = partial(deadline, factor=150.0)
"""The deadline study: 1000 requests on 128 x 4, one every 150 s."""
deadline_very_heavy = partial(deadline, factor=1.0)
"""The deadline study: 1000 requests on 128 x 4, one every second."""
