"""Cases of a fit: a workload under a policy on a testbed, and its real runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tracebed.converters.workload import Workload
from tracebed.ground.display import listed
from tracebed.ground.errors import InputError
from tracebed.orchestrator.configurations import predicted_setup
from tracebed.orchestrator.run import Run, RunInfo
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.validation.verdict.health import UNHEALTHY, Health

SETTINGS = ("grain_s",)  # Fields of `Overheads` that are settings of a testbed, not overheads. The runs record them.
OF_TESTBED = ("testbed", "inventory", "grain_s", "duty", "clock")
"""Parameters of a run that all runs of a fit share: overheads are properties of one testbed."""


@dataclass(frozen=True)
class FitCase:
    """A workload under a policy, and its repetitions."""

    name: str  # name of the workload
    workload: Workload  # the submission list
    runs: Mapping[str, Run]  # Name or folder -> real run. The runs are repetitions with equal settings.

    @property
    def info(self) -> RunInfo:
        """The metadata that the repetitions share."""
        return next(iter(self.runs.values())).info

    @property
    def title(self) -> str:
        """Workload and policy: `kth.parquet, easy`."""
        return f"{self.name}, {self.info.policy}"

    def predict(self, overheads: Overheads) -> Run:
        """Simulate the workload with the options and `SETTINGS` of the runs, and with `overheads` in wall s."""
        info = self.info
        settings = {name: info.parameters[name] for name in SETTINGS}
        setup = predicted_setup(info, overheads=replace(overheads, **settings), dispatched=bool(info.batch))
        return predict(self.workload, info.machine or info.nodes, setup, name=self.name)


def cases_of(workloads: Mapping[str, Workload], runs: Mapping[str, Run]) -> list[FitCase]:
    """Group complete and healthy real runs of one testbed into cases: of one workload, policy and its parameters."""
    # The workload of each run is found by its hash.
    if not runs:
        raise InputError("no real run is given", hint="give the folders of the replays to fit to")
    known = {workload.sha256: name for name, workload in workloads.items()}
    groups: dict[tuple[str, str, str], dict[str, Run]] = {}
    first_name, first = next(iter(runs.items()))
    _check_real(runs)
    for name, run in runs.items():
        _check_alike((first_name, first), (name, run), _testbed, "overheads are of one testbed: fit each on its own")
        sha256 = str(run.info.workload.get("sha256"))
        if sha256 not in known:
            raise InputError(
                f"the workload of the run ({run.info.workload.get('name')}) is not among the given workloads",
                where=name,
                hint="give the file of the replayed workload, too",
            )
        key = (sha256, run.info.policy, repr(sorted(run.info.policy_parameters.items())))
        group = groups.setdefault(key, {})
        if group:
            hint = "repetitions of a workload under a policy must have equal parameters: fit the others on their own"
            _check_alike(next(iter(group.items())), (name, run), _repetition, hint)
        group[name] = run
    unused = known.keys() - {sha256 for sha256, *_ in groups}
    if unused:
        names = ", ".join(sorted(known[sha256] for sha256 in unused))
        raise InputError(f"no run is of the workload {names}", hint="leave the workload out, or give its runs")
    return [FitCase(known[key[0]], workloads[known[key[0]]], group) for key, group in groups.items()]


def _check_real(runs: Mapping[str, Run]) -> None:
    """Raise InputError unless each run is a complete and healthy replay. All others are named."""
    refused: dict[str, InputError] = {}
    for name, run in runs.items():
        try:
            if run.info.source != "replay":
                what = "a log, whose policy is unknown" if run.info.is_real else run.info.kind
                raise InputError(f"the run is {what}", where=name, hint="overheads are fitted to replays")
            check_usable(name, run)
        except InputError as error:
            refused[name] = error
    if refused:
        name, *more = refused
        others = f"; {listed(more, 12)} cannot be used either" if more else ""
        first = refused[name]
        raise InputError(f"{first.what}{others}", where=name, hint=first.hint) from first


def check_usable(name: str, run: Run) -> None:
    """Raise InputError unless a real run is complete and not unhealthy."""
    info = run.info
    if info.state != "completed":
        raise InputError(f"the run is {info.state}", where=name, hint="fit to completed runs")
    if (health := Health.of(run, 0)).state == UNHEALTHY:
        raise InputError(f"the run is unhealthy: {health.why}", where=name, hint="fit to healthy runs")


def _testbed(info: RunInfo) -> dict[str, Any]:
    """Return the facts of the testbed of a run."""
    nodes = {"number of nodes": len(info.nodes), "cores per node": [node.cores for node in info.nodes]}
    return nodes | {"execution": info.execution} | {key: info.parameters.get(key) for key in OF_TESTBED}


def _repetition(info: RunInfo) -> dict[str, Any]:
    """Return the facts that all repetitions of a case share."""
    parts = info.setup.as_dict()
    machine = {"machine": None if info.machine is None else info.machine.digest[:8]}
    return parts["scheduling"] | {"speed": info.speed, "balance": info.parameters.get("balance")} | machine


def _check_alike(one: tuple[str, Run], other: tuple[str, Run], facts: Any, hint: str) -> None:
    """Raise InputError if `facts` of two runs differ."""
    (name, run), (other_name, other_run) = one, other
    expected, found = facts(run.info), facts(other_run.info)
    for key, value in expected.items():
        if found[key] != value:
            raise InputError(f"{key} differs: {value} in {name}, {found[key]} in {other_name}", hint=hint)
