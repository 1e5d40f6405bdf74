"""The experiment file: the conditions of its cells, how they are executed, and the views of the results.

This module reads no workloads and makes no runs. A cell is a point of the grid: a workload under a policy and further
settings, on a testbed or in simulation.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)

from tracebed.ground.errors import InputError
from tracebed.ground.yaml_file import FileName
from tracebed.machine.machine import Machine
from tracebed.orchestrator.scheduling.names import PRIORITIES
from tracebed.orchestrator.setup import SETTINGS, SETUP_PARTS, TYPES, Setup
from tracebed.orchestrator.simulation.runtime_models import RuntimeModel
from tracebed.validation.experiments import experiment_schema as schema
from tracebed.validation.metrics import TAU
from tracebed.validation.setups import AXES, OF_ALL_CELLS, OF_REPLAYS, given, model_of, type_of

if TYPE_CHECKING:
    from tracebed.orchestrator.simulation.processes import Processes

OF_REPETITIONS = ("repetitions", "repeat_excluded", "sessions", "seed", "settle_s")  # keys of replays
OF_RUNS = ("simulators", "tolerances", "noise", "baseline")  # keys of real runs, replayed or recorded
OF_WORKLOADS = ("malleable", "seeds", "perturbations", "perturbation")
OF_SIMULATIONS = (
    *(name for name in SETUP_PARTS["timing"] if name not in ("speed", "calibration")),
    *("processes", "outages", "shares_of_jobs", "windows", "published", "plots", "sensitivity"),
)
"""Keys that apply to simulated cells only."""
OF_CONDITIONS = tuple(name for name in OF_REPLAYS if name != "speed")
"""Settings of the system behind recorded runs: replays have recorded theirs."""


Grid = TypeVar("Grid")


def with_further_axes(grid: type[Grid]) -> type[Grid]:
    """Give a class a field for each setting that is an axis, unless the class has one."""
    for name in AXES:
        if name not in grid.__annotations__:
            grid.__annotations__[name] = TYPES[name]
            setattr(grid, name, SETTINGS[name].default)
    return grid


@dataclass(frozen=True)
@with_further_axes
class Point:
    """One point of the grid. `share`, `seed` and `perturbation` select the variant of the workload.

    A setting that is an axis and has no field here has one after the others.
    """

    workload: str
    share: float | None
    """Share of the jobs that become malleable; None for the unchanged workload."""
    seed: int
    policy: str
    """Label of the policy in the experiment."""
    priority: str
    runtime_model: str
    interval_s: float
    malleability_interval_s: float
    perturbation: int = 0
    """Number of the random change of the workload; 0: none."""
    processes: str = schema.NO_PROCESSES
    """Name of the processes of jobs in the experiment; `none`: jobs take their run times."""
    outages: str = schema.NO_OUTAGES
    """Name of the outages of nodes in the experiment; `none`: no node fails."""
    testbed: str = ""
    """Name of the testbed; empty if the experiment has one testbed or none."""

    def fits(self, where: Mapping[str, Any]) -> bool:
        """Return whether the point matches `where`: key -> value, or list of accepted values."""
        accepted = {key: wanted if isinstance(wanted, list) else [wanted] for key, wanted in where.items()}
        return all(getattr(self, key) in values for key, values in accepted.items())


KEYS = tuple(Point.__dataclass_fields__)


_AXES: dict[str, Any] = {
    name: (Annotated[list[type_of(name)], *schema.AXIS], [SETTINGS[name].default])  # type: ignore[misc]
    for name in AXES
}
Settings = create_model(
    "Settings", __base__=model_of("SettingsOfAllCells", schema.ExperimentPart, OF_ALL_CELLS), **_AXES
)
"""The settings with one value for all cells of an experiment, and those that are axes."""


class Experiment(Settings, BaseModel):  # type: ignore[misc, valid-type]
    """The content of an experiment file. Cells are simulated, unless the file has testbeds or recorded runs."""

    about: str = ""
    workloads: Annotated[
        dict[
            schema.Name,
            Annotated[schema.WorkloadSpec, BeforeValidator(schema.or_empty), BeforeValidator(schema.shorthand("file"))],
        ],
        BeforeValidator(schema.by_name),
        Field(min_length=1),
    ]
    malleable: schema.Malleable | None = None
    policies: Annotated[
        list[Annotated[schema.PolicySpec, BeforeValidator(schema.shorthand("policy"))]], Field(min_length=1)
    ]
    seeds: Annotated[list[Annotated[int, Field(ge=0, lt=2**63)]], *schema.AXIS, BeforeValidator(schema.counted)] = [0]
    priority: Annotated[list[str], *schema.AXIS, schema.known("priority", lambda: PRIORITIES)] = ["fcfs"]
    runtime_model: Annotated[list[str], *schema.AXIS, schema.known("runtime model", lambda: RuntimeModel)] = ["ideal"]
    interval_s: Annotated[list[schema.Seconds], *schema.AXIS] = [0.0]
    malleability_interval_s: Annotated[list[schema.Seconds], *schema.AXIS] = [0.0]
    perturbations: Annotated[
        list[Annotated[int, Field(ge=0, lt=2**31)]], *schema.AXIS, BeforeValidator(schema.numbered)
    ] = [0]
    processes: Annotated[
        list[Annotated[schema.ProcessesSpec, BeforeValidator(schema.shorthand("communication"))]],
        BeforeValidator(schema.as_list),
        Field(min_length=1),
    ] = [schema.ProcessesSpec(communication="none")]
    outages: Annotated[
        list[Annotated[schema.OutagesSpec, BeforeValidator(schema.shorthand("file"))]],
        BeforeValidator(schema.as_list),
        Field(min_length=1),
    ] = [schema.OutagesSpec()]
    perturbation: schema.PerturbationSpec = schema.PerturbationSpec()
    tau: Annotated[float, Field(gt=0, allow_inf_nan=False)] = TAU
    shares_of_jobs: dict[
        schema.Name, schema.JobsSpec
    ] = {}  # name -> jobs whose share of the workload is a figure of that name
    windows: Annotated[dict[schema.Name, schema.WindowSpec], Field(min_length=1)] = {"all": schema.WindowSpec()}
    exclude: list[schema.Where] = []
    published: list[schema.Claim] = []  # the claims of a paper
    plots: dict[schema.Name, schema.Plot] = {}
    sensitivity: schema.SensitivitySpec = schema.SensitivitySpec()
    testbed: schema.TestbedSpec | None = None  # The only testbed. Cells are replayed.
    # Name -> testbed, if there are several. Cells are replayed on each.
    testbeds: (
        Annotated[
            dict[schema.Name, Annotated[schema.TestbedSpec, BeforeValidator(schema.or_empty)]], Field(min_length=1)
        ]
        | None
    ) = None
    # Recorded real runs, in place of a testbed.
    recorded: Annotated[schema.RecordedSpec, BeforeValidator(schema.shorthand("runs"))] | None = None
    repetitions: Annotated[int, Field(ge=1, le=schema.MOST_REPETITIONS)] = 5  # number of replays of each cell
    # Largest number of replays that are added to a cell, one for each that is unhealthy.
    repeat_excluded: Annotated[int, Field(ge=0, le=schema.MOST_REPETITIONS)] = 0
    # Number of blocks of replays, each with every cell, in a random order of its own.
    sessions: Annotated[int, Field(ge=1)] = 1
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0  # seed of the order of the replays
    # Pause before each replay, wall s. The command of `beside` also runs during the pause.
    settle_s: Annotated[float, Field(ge=0, le=3600)] = 1.0
    # Name -> simulator that predicts the real runs.
    simulators: dict[schema.Name, Annotated[schema.SimulatorSpec, BeforeValidator(schema.or_empty)]] = {}
    tolerances: FileName | None = None  # file of the margins, relative to the experiment file
    noise: FileName | None = None  # file of the noise profile of the testbed
    baseline: FileName | None = None  # file of the baseline

    @field_validator("processes", "outages")
    @classmethod
    def _distinct(cls, specs: list[Any], info: ValidationInfo) -> list[Any]:
        names = [spec.name for spec in specs]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{name!r} is listed twice; give the {info.field_name} other labels")
        return specs

    @model_validator(mode="after")
    def _one_executor(self) -> Self:
        executors = [key for key in ("testbed", "testbeds", "recorded") if getattr(self, key) is not None]
        if len(executors) > 1:
            raise ValueError("an experiment has only one of `testbed`, `testbeds` and `recorded`")
        if not executors:
            self._refuse((*OF_REPETITIONS, *OF_RUNS), "requires a `testbed`, `testbeds` or `recorded` runs")
            return self
        self._refuse(OF_SIMULATIONS, "applies to simulated cells only, not to real runs")
        if self.recorded is not None:
            self._refuse((*OF_REPETITIONS, "speed"), "requires a `testbed`: recorded runs are as they were recorded")
            if not self.recorded.by_case:
                self._refuse(OF_WORKLOADS, "requires a `testbed`, or {case} in the path of the recorded runs")
                for key in (name for name in AXES if name in SETUP_PARTS["scheduling"]):
                    if len(getattr(self, key)) > 1:
                        why = "has one value with recorded runs, unless their path has {case}"
                        raise ValueError(f"`{key}` {why}")
        return self

    @model_validator(mode="after")
    def _once(self) -> Self:
        own = self.model_fields_set | {key for policy in self.policies for key in policy.model_fields_set}
        for spec in self.beds.values():
            if twice := set(given(spec, OF_REPLAYS)) & own:
                raise ValueError(f"`{min(twice)}` is given both for a testbed and for all cells")
            if spec.scheduler is not None and (wrong := {"priority", "interval_s", "over_limit"} & own):
                raise ValueError(f"`{min(wrong)}` does not apply with `scheduler`: the batch system decides")
        return self

    @model_validator(mode="after")
    def _balanced(self) -> Self:
        if self.sessions > (least := min((self.repetitions_on(bed) for bed in self.beds), default=self.sessions)):
            raise ValueError(f"{self.sessions} sessions need at least as many repetitions of each cell, not {least}")
        return self

    def _refuse(self, keys: Iterable[str], why: str) -> None:
        for key in keys:
            if key in self.model_fields_set:
                raise ValueError(f"`{key}` {why}")

    @property
    def is_real(self) -> bool:
        """Whether the cells are real runs."""
        return bool(self.beds) or self.recorded is not None

    @property
    def beds(self) -> dict[str, schema.TestbedSpec]:
        """Name -> testbed; the name of the only testbed is empty."""
        return self.testbeds or ({"": self.testbed} if self.testbed is not None else {})

    @property
    def testbed_names(self) -> list[str]:
        """Names of the testbeds of real runs, replayed or recorded; the name of the only one is empty."""
        recorded = self.recorded.testbeds if self.recorded is not None else None
        return list(self.beds or recorded or [""])

    @property
    def work_rates(self) -> dict[str, FileName]:
        """Name of a testbed -> file of the calibration with which its runs are replayed, or were recorded."""
        beds: Mapping[str, schema.TestbedSpec | schema.RecordedBed] = self.beds
        if self.recorded is not None:
            beds = self.recorded.testbeds or {"": self.recorded}
        return {name: bed.work_rate for name, bed in beds.items() if bed.work_rate is not None}

    def conditions(self, point: Point) -> dict[str, Any]:
        """Return the settings of the system behind recorded runs that are given."""
        values = {name: getattr(point, name, getattr(self, name)) for name in OF_CONDITIONS}
        policy = self.policy(point)
        own = {"placement": policy.placement} if "placement" in policy.model_fields_set else {}
        return {name: value for name, value in values.items() if name in self.model_fields_set} | own

    def repetitions_on(self, bed: str) -> int:
        """Return the number of repetitions of each cell on a testbed."""
        return self.beds[bed].repetitions or self.repetitions

    def case_name(self, point: Point) -> str:
        """Return the name of a real cell: WORKLOAD-POLICY, with the testbed and other axes if they vary."""
        return "-".join([point.workload, point.policy, *self._varied(point)])

    def workload_name(self, point: Point) -> str:
        """Return the name of the workload of a real cell, with the testbed and other axes if they vary."""
        return "-".join([point.workload, *self._varied(point)])

    def _varied(self, point: Point) -> list[str]:
        axes = self.axes
        varied = [key for key in KEYS if key not in ("workload", "policy", "testbed") and len(axes[key]) > 1]
        values = [getattr(point, key) for key in varied]
        texts = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
        own = [point.testbed] if point.testbed else []
        return [*own, *(f"{key}{text}" for key, text in zip(varied, texts, strict=True))]

    def points(self) -> list[Point]:
        """Return the points of the grid that are not excluded."""
        points = (Point(*values) for values in itertools.product(*self.axes.values()))
        return [point for point in points if not any(point.fits(where) for where in self.exclude)]

    @property
    def axes(self) -> dict[str, Sequence[Any]]:
        """Values of each key of the points."""
        return {
            "workload": list(self.workloads),
            "share": self.malleable.shares if self.malleable else [None],
            "seed": self.seeds,
            "policy": [policy.name for policy in self.policies],
            "priority": self.priority,
            "runtime_model": self.runtime_model,
            "interval_s": self.interval_s,
            "malleability_interval_s": self.malleability_interval_s,
            "perturbation": self.perturbations,
            "processes": [processes.name for processes in self.processes],
            "outages": [outages.name for outages in self.outages],
            "testbed": self.testbed_names,
        } | {name: getattr(self, name) for name in AXES}

    def setup(self, point: Point) -> Setup:
        """Return the setup of a point, with the settings of its testbed."""
        spec = self.policy(point)
        own = {"placement": spec.placement} if "placement" in spec.model_fields_set else {}
        setup = Setup.of(
            spec.policy,
            policy_parameters=spec.parameters,
            **{name: getattr(point, name) for name in AXES},
            **{**given(self, OF_ALL_CELLS), **own},
        )
        bed = self.beds.get(point.testbed)
        return setup if bed is None else Setup.of(setup, **given(bed, OF_REPLAYS))

    def machine(self, point: Point, nodes: int | None) -> Machine | None:
        """Return the machine of a workload or of the configuration of a policy, for `nodes` nodes (None: unknown).

        None: neither has a machine.

        Raises:
            InputError: the machine has another number of nodes, or they have different ones.
        """
        of_policy, machine = self.policy(point).machine, self.workloads[point.workload].on
        if of_policy is not None and machine is not None and of_policy.digest != machine.digest:
            what = f"workload {point.workload} and the `conf` of policy {point.policy} have different machines"
            raise InputError(what, hint="leave out the `machine` of the workload, or the `conf`")
        machine = machine or of_policy
        if of_policy is not None and machine is of_policy and nodes not in (None, len(of_policy.nodes)):
            size = len(of_policy.nodes)
            what = (
                f"the `conf` of policy {point.policy} has {size:,} nodes, but workload {point.workload} has {nodes:,}"
            )
            hint = (
                f"give the slurm.conf of the cluster of the workload, or draw or scale the workload for {size:,} nodes"
            )
            raise InputError(what, hint=hint)
        if machine is not None and nodes is not None:
            machine.check_size(nodes)
        return machine

    def policy(self, point: Point) -> schema.PolicySpec:
        """Return the policy of a point."""
        return next(policy for policy in self.policies if policy.name == point.policy)

    def processes_of(self, point: Point) -> Processes | None:
        """Return the choices for the processes of a point; None: jobs take their run times."""
        return next(processes for processes in self.processes if processes.name == point.processes).chosen

    def outages_of(self, point: Point) -> schema.OutagesSpec | None:
        """Return the outages of the nodes of a point; None: no node fails."""
        spec = next(outages for outages in self.outages if outages.name == point.outages)
        return None if spec.is_none else spec
