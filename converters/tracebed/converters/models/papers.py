"""The workloads of three papers, by name. The published values are defaults; unpublished values are parameters.

- `sd-1`, `sd-2`, `sd-5`: the SD-Policy paper, M. D'Amico, A. Jokanovic, J. Corbalan, "Holistic slowdown driven
  scheduling and resource management for malleable jobs", ICPP 2019, table 1.
- `dmr-100` ... `dmr-2000`: the DMR study, S. Iserte et al., a malleable HPG-aligner by the DMR API.
- `deadline-normal`, `-heavy`, `-very-heavy`: the deadline study, static and leak allocation of jobs with deadlines.
"""

from __future__ import annotations

from functools import partial
from typing import Literal, get_args

import numpy as np

from tracebed.converters.applications import with_applications
from tracebed.converters.malleability import sizes_by_gain_slope
from tracebed.converters.models import cirne as cirne_model
from tracebed.converters.models import deadlines, feitelson96, require
from tracebed.converters.workload import Kind, Step, System, Workload

SD = cirne_model.CirneParameters(size_slope=0.1, size_offset=0.3, power_of_two=0.1, cancelled=0.0)
"""Cirne's constants in the authors' copy of the model's program: its sizes for machines whose largest job has 128
nodes, a tenth of them rounded to powers of two, and no cancellations."""
SD_5 = cirne_model.CirneParameters(cancelled=0.0, limit_offset=-0.3178)
"""Requested times are a twentieth of the published ones. Not verified. With this constant the work of 2000 jobs fits
the paper's makespan for workload 5; with the published constant the work would be twenty times larger."""
Arrivals = Literal["nodes", "cores"]
"""What the arrival rate of Cirne's model is proportional to: nodes / 120 of ANL, or cores / 120."""
HPG_ALIGNER: dict[str, dict[int, float]] = {
    "production": {3: 238.0, 6: 68.0, 12: 40.0, 24: 44.0, 48: 60.0},
    "large": {3: 1382.0, 6: 345.0, 12: 155.0, 24: 152.0, 48: 171.0},
}
"""Tables 1 and 3 of the DMR study: run time (s) by number of nodes, with one process of 48 threads per node."""


def sd(
    jobs: int = 5000,
    *,
    nodes: int = 1024,
    cores_per_node: int = 48,
    seed: int = 0,
    parameters: cirne_model.CirneParameters = SD,
    largest: int = 128,
    exact_limits: bool = False,
    arrivals: Arrivals = "nodes",
) -> Workload:
    """Draw workload 1 or 2 of the SD-Policy paper: Cirne's model with the arrivals of ANL.

    Sizes are in nodes. The machine of the model has `nodes` nodes, as in the authors' calls of the model's program.
    With the arrivals by nodes, Slurm's backfill gives the response times, slowdowns and makespans of the paper's table
    1 (docs/reference/models/papers.md).

    Args:
        largest: largest size of a job, nodes; larger draws are cut to it.
        exact_limits: set the requested times to the run times.
        arrivals: whether the arrival rate is proportional to the nodes or to the cores of the machine.
    """
    require(nodes >= 1, f"{nodes} nodes", "at least 1")
    require(cores_per_node >= 1, f"{cores_per_node} cores per node", "at least 1")
    require(largest >= 1, f"largest {largest}", "at least 1")
    require(arrivals in get_args(Arrivals), f"arrivals {arrivals!r}", f"one of {', '.join(get_args(Arrivals))}")
    machine = nodes * cores_per_node if arrivals == "cores" else nodes
    rigid = cirne_model.cirne(jobs, nodes=machine, seed=seed, parameters=parameters)
    size = rigid.ints("nodes")
    most = min(largest, nodes)
    table = rigid.table.assign(
        nodes=np.minimum(size, most),
        cores_per_node=cores_per_node,
        time_limit=rigid.floats("run_time" if exact_limits else "time_limit"),
    )
    step = Step(
        "sd",
        {
            **{"nodes": nodes, "cores_per_node": cores_per_node, "largest": largest},
            **{"exact_limits": exact_limits, "arrivals": arrivals},
        },
        {"jobs cut to the largest size": int((size > most).sum())},
    )
    return rigid.with_step(step, table, system=System(nodes, cores_per_node, "SD-Policy paper"))


def sd_5(
    jobs: int = 2000,
    *,
    nodes: int = 49,
    cores_per_node: int = 48,
    seed: int = 0,
    parameters: cirne_model.CirneParameters = SD_5,
    largest: int = 16,
) -> Workload:
    """Draw workload 5 of the SD-Policy paper, its real run: 2000 jobs of at most 16 nodes on 49 x 48.

    The jobs are those of `sd` with arrivals by cores, and have the applications of table 2. The paper says that the
    model was adapted to the 48 hours of the run. By nodes, 2000 jobs would arrive in 50 days.

    Args:
        largest: largest size of a job, nodes; larger draws are cut to it.
    """
    workload = sd(
        jobs,
        nodes=nodes,
        cores_per_node=cores_per_node,
        seed=seed,
        parameters=parameters,
        largest=largest,
        arrivals="cores",
    )
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
    """Draw a workload of the DMR study: arrivals of Feitelson's model, every job an instance of HPG-aligner.

    All jobs have the measured speedup `table` and the sizes that follow from it by gain slope. They request the largest
    of these sizes, as the study's fixed jobs do. Only the arrivals are drawn; sizes and run times are measured.

    Args:
        factor: mean time between arrivals, s.
        dataset: input of the measured runs: 40 million reads (table 1) or 80 million longer reads (table 3).
        gaps: distribution of the times between arrivals.
        fixed: draw rigid jobs, the study's baseline.
    """
    require(dataset in HPG_ALIGNER, f"dataset {dataset!r}", f"one of {', '.join(HPG_ALIGNER)}")
    times = HPG_ALIGNER[dataset]
    sizes = sizes_by_gain_slope(times)
    require(nodes >= sizes.most, f"{nodes} nodes", f"at least {sizes.most}, the largest size of the jobs")
    arrivals = feitelson96.feitelson96(
        jobs,
        nodes=nodes,
        cores_per_node=cores_per_node,
        seed=seed,
        parameters=feitelson96.Feitelson96Parameters(factor=factor),
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
    parameters: deadlines.DeadlineParameters | None = None,
    factor: float = 1500.0,
    behaviour: deadlines.Behaviour = "uniform",
    short: float = 0.95,
    short_mean: float = 30_000.0,
    long_ratio: float = 7.0,
) -> Workload:
    """Draw a workload of the deadline study: Feitelson's model with behavior, earliest start and deadline.

    A job is submitted again at the end of its previous run, as in the study's traces. The workload states these
    submit times as fixed instants, without `after`, because the study's system decides on a job at submission.

    Args:
        nodes: nodes of the machine. The study's 128 form a grid of 8 x 16.
        factor: mean time between arrivals, s. 1500 is a normal, 150 a heavy, 1 a very heavy load.
        behaviour: runtime behavior of the jobs' processes.
        short: probability of a short run time, for the smallest jobs.
        short_mean: mean of the short run times, s.
        long_ratio: mean of the long run times / mean of the short ones.
    """
    requests = feitelson96.feitelson96(
        jobs,
        nodes=nodes,
        cores_per_node=cores_per_node,
        seed=seed,
        parameters=feitelson96.Feitelson96Parameters(
            factor=factor, short=short, short_mean=short_mean, long_ratio=long_ratio
        ),
        repeats="end",
    )
    step = Step("deadline", {"factor": factor}, {})
    system = System(nodes, cores_per_node, "deadline study", grid="8x16" if nodes == 128 else "")
    instants = requests.with_step(step, requests.table.drop(columns=["after", "think_time"]), system=system)
    return deadlines.with_deadlines(instants, nodes, seed=seed, parameters=parameters, behaviour=behaviour)


sd_1 = partial(sd)
"""Draw workload 1 of the SD-Policy paper: Cirne's model, 5000 jobs on 1024 x 48."""
sd_2 = partial(sd, exact_limits=True)
"""Draw workload 2 of the SD-Policy paper: workload 1 with exact requested times."""
dmr_100 = partial(dmr, jobs=100)
"""Draw a workload of the DMR study: 100 malleable jobs of HPG-aligner on 49 x 48."""
dmr_250 = partial(dmr, jobs=250)
"""Draw a workload of the DMR study: 250 malleable jobs of HPG-aligner on 49 x 48."""
dmr_500 = partial(dmr, jobs=500)
"""Draw a workload of the DMR study: 500 malleable jobs of HPG-aligner on 49 x 48."""
dmr_1000 = partial(dmr, jobs=1000)
"""Draw a workload of the DMR study: 1000 malleable jobs of HPG-aligner on 49 x 48."""
dmr_2000 = partial(dmr, jobs=2000)
"""Draw a workload of the DMR study: 2000 malleable jobs of HPG-aligner on 49 x 48."""
deadline_normal = partial(deadline)
"""Draw a workload of the deadline study: 1000 requests on 128 x 4, one every 1500 s."""
deadline_heavy = partial(deadline, factor=150.0)
"""Draw a workload of the deadline study: 1000 requests on 128 x 4, one every 150 s."""
deadline_very_heavy = partial(deadline, factor=1.0)
"""Draw a workload of the deadline study: 1000 requests on 128 x 4, one every second."""
