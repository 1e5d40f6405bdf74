"""Workloads: drawn, read, cleaned, scaled, made malleable, described and written."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from tracebed.api.arguments import check_seed, check_size
from tracebed.converters.formats.reading import read_workload as read
from tracebed.converters.formats.writing import write_workload as write
from tracebed.converters.workload import Kind, Workload
from tracebed.ground.errors import InputError
from tracebed.ground.registry import one_of

EstimatesName: TypeAlias = Literal["tsafrir05"]
Speedup: TypeAlias = Literal["amdahl", "downey"]
Flexible: TypeAlias = Literal["malleable", "moldable"]
"""Kinds of jobs whose size the scheduler decides."""


def generate(
    model: str,
    jobs: int | None = None,
    *,
    seed: int = 0,
    load: float | None = None,
    estimates: EstimatesName | Mapping[str, float] | None = None,
    kind: Flexible | None = None,
    applications: bool = False,
    **options: Any,
) -> Workload:
    """Draw a workload from a model, or a paper's workload by its name.

    Args:
        model: name of the model; `tracebed generate --help` lists the models.
        jobs: number of jobs; the workload of a paper has its own.
        seed: seed of all draws.
        load: offered load to which the arrivals, not the run times, are scaled.
        estimates: draw users' estimates as time limits (Tsafrir, Etsion and Feitelson 2005); a mapping sets constants.
        kind: make the rigid jobs moldable or malleable by the model of Cirne and Berman over Downey's speedup.
        applications: assign each job the application that stands for it, in the shares of the SD-Policy paper.
        options: arguments of the model, such as `nodes` and `cores_per_node`.

    Raises:
        InputError: there is no such model or option, or a value is out of its range.

    Example:
        >>> import tracebed.api as tb
        >>> tb.generate("cirne", jobs=30, nodes=16, seed=3).provenance.system.nodes
        16
    """
    from tracebed.converters import scaling
    from tracebed.converters.applications import with_applications
    from tracebed.converters.models import moldability, tsafrir05
    from tracebed.converters.models.registry import MODELS, draw

    taken = inspect.signature(MODELS.load(model)).parameters
    for option in options:
        one_of(f"option of the model {model}", option, taken)
    given = options if jobs is None else {"jobs", *options}
    for name, argument in taken.items():
        if argument.default is argument.empty and name not in given:
            raise InputError(f"the model {model} needs a value for {name}", hint=f"generate({model!r}, {name}=...)")
    check_seed(seed)
    if isinstance(estimates, str):
        one_of("model of estimates", estimates, get_args(EstimatesName))
    elif estimates is not None:
        for constant in estimates:
            one_of("constant of the estimates", constant, vars(tsafrir05.Tsafrir05Parameters()))
    if kind is not None:
        one_of("kind", kind, get_args(Flexible))
    drawn = draw(model, jobs, seed=seed, **options)
    if estimates is not None:
        constants = {} if isinstance(estimates, str) else dict(estimates)
        drawn = tsafrir05.with_estimates(drawn, seed, replace(tsafrir05.Tsafrir05Parameters(), **constants))
    if kind:
        drawn = moldability.with_moldability(drawn, seed, kind=Kind(kind))
    if applications:
        drawn = with_applications(drawn, seed=seed)
    return drawn if load is None else scaling.to_load(drawn, load)


def convert(
    source: Path | str,
    target: Path | str,
    *,
    to: str | None = None,
    format: str | None = None,
    replace: bool = False,
    **options: Any,
) -> Workload:
    """Read the workload in `source`, write it to `target`, and return it.

    Args:
        source: the file or folder to read.
        target: the file or folder to write.
        to: name of the format to write; by default the name of `target` tells it.
        format: name of the format to read; by default the content of `source` tells it.
        replace: whether a workload that tracebed wrote to `target` earlier is replaced.
        options: options of the writer.

    Raises:
        InputError: as for `read` and `write`.

    Example:
        >>> import tracebed.api as tb
        >>> _ = tb.write(tb.generate("cirne", jobs=30, nodes=16), "drawn.parquet")
        >>> len(tb.convert("drawn.parquet", "w.swf", whole_seconds=True))
        30
    """
    workload = read(source, format=format)
    write(workload, target, format=to, replace=replace, **options)
    return workload


def perturb(workload: Workload, seed: int = 0, *, submit_s: float = 10.0, limit_s: float = 60.0) -> Workload:
    """Return a workload with small random changes, which show how much a simulated figure depends on them.

    Submissions move, jobs that are submitted at once change their order, and limits are rounded up (input perturbation:
    Tsafrir, Ouaknine and Feitelson 2007).

    Args:
        workload: the workload.
        seed: seed of all draws.
        submit_s: largest move of a submission, s.
        limit_s: largest time to a multiple of which all limits are rounded up, s; below 1 they do not change.

    Raises:
        InputError: a value is out of its range.

    Example:
        >>> import tracebed.api as tb
        >>> w = tb.generate("cirne", jobs=30, nodes=16, seed=3)
        >>> waits = [tb.simulate(tb.perturb(w, seed), "easy").metrics()["mean_wait_s"] for seed in range(5)]
        >>> len(set(waits))
        5
    """
    from tracebed.converters.perturbation import Perturbation, perturbed

    check_seed(seed)
    return perturbed(workload, seed, Perturbation(submit_s, limit_s))


def make_malleable(
    workload: Workload,
    share: float,
    seed: int = 0,
    *,
    nodes: int | None = None,
    speedup: Speedup = "amdahl",
    kind: Flexible | Literal["evolving"] = "malleable",
    preferred: float | None = None,
    most: float | None = None,
    least: float | None = None,
    doublings: int | None = None,
    phases: int | None = None,
    application: str | None = None,
) -> Workload:
    """Turn a share of the rigid jobs into malleable, moldable or evolving ones.

    Args:
        workload: the workload.
        share: share of the rigid jobs, 0 to 1.
        seed: seed of all draws.
        nodes: nodes of the machine; by default those of the workload's system.
        speedup: `amdahl` with thresholds of efficiency, or `downey` with the model of Cirne and Berman.
        kind: what the jobs become; `moldable` with `downey` only, `evolving` with `amdahl` only.
        preferred, most, least: thresholds of efficiency for `amdahl`: efficiency to exceed at the requested size, at
            the largest size, and the smallest size as a share of the requested one.
        doublings: in place of the thresholds: how many times the requested size can be halved and doubled, with a
            linear speedup.
        phases: of evolving jobs, 3 by default: in each phase, a job asks for more nodes, then for fewer.
        application: application that these jobs become. A simulation with a calibration of it has the costs of its
            resizes (`calibrate_batch`). None: their application does not change.

    Raises:
        InputError: an argument is out of its range, or the size of the machine is unknown.

    Example:
        >>> import tracebed.api as tb
        >>> w = tb.make_malleable(tb.generate("cirne", jobs=30, nodes=16, seed=3), share=0.5, seed=1)
        >>> int((w.table["kind"] == "malleable").sum())
        15
    """
    from tracebed.converters.malleability import PHASES, Thresholds, rigid_share, to_malleable, with_application
    from tracebed.converters.models import moldability

    one_of("speedup", speedup, get_args(Speedup))
    one_of("kind", kind, (*get_args(Flexible), "evolving"))
    check_seed(seed)
    if nodes is not None:
        check_size("nodes", nodes)
    if phases is not None and kind != "evolving":
        raise InputError(f"{kind} jobs have no phases", hint="leave out phases, or choose the kind evolving")
    given = {"preferred": preferred, "most": most, "least": least, "doublings": doublings}
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if speedup == "downey":
        if kind == "evolving":
            raise InputError("the speedup downey makes no evolving jobs", hint="choose the speedup amdahl")
        if chosen:
            raise InputError("the speedup downey takes no thresholds", hint=f"leave out {', '.join(chosen)}")
        after = moldability.with_moldability(workload, seed, kind=Kind(kind), share=share, nodes=nodes)
    else:
        if doublings and len(chosen) > 1:
            raise InputError("doublings take the place of the thresholds", hint="leave out one of the two")
        if kind == "moldable":
            raise InputError("the speedup amdahl makes no moldable jobs", hint="choose the speedup downey")
        thresholds, count = Thresholds(**chosen), PHASES if phases is None else phases
        after = to_malleable(workload, share, seed, nodes=nodes, thresholds=thresholds, kind=Kind(kind), phases=count)
    if application is not None:
        after = with_application(after, rigid_share(workload, share, seed), application)
    return after
