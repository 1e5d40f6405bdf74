"""The definition of a study and the grid of its points. This module reads no logs and runs no simulations."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, field_validator

from tracebed import bounds
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.names import PRIORITIES
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.simulation.processes import Processes
from tracebed.orchestrator.simulation.runtime_models import RuntimeModel
from tracebed.validation.experiments.parts import (
    AXIS,
    NO_PROCESSES,
    STRICT,
    Malleable,
    Name,
    Plot,
    PolicySpec,
    ProcessesSpec,
    Published,
    Seconds,
    SensitivitySpec,
    ShakingSpec,
    Where,
    WindowSpec,
    WorkloadSpec,
    as_list,
    communicating,
    counted,
    named,
    shaken,
)
from tracebed.validation.metrics import TAU


@dataclass(frozen=True)
class Point:
    """One point of the grid. `share`, `seed` and `shake` select the variant of the workload."""

    workload: str
    share: float | None
    """Share of the jobs that become malleable; None for the unchanged workload."""
    seed: int
    policy: str
    """Label of the policy in the study."""
    priority: str
    runtime_model: str
    interval_s: float
    malleability_interval_s: float
    shake: int = 0
    """Number of the random change of the workload; 0: none."""
    processes: str = NO_PROCESSES
    """Name of the processes of jobs in the study; `none`: jobs take their run times."""

    def fits(self, where: Mapping[str, Any]) -> bool:
        """Return whether the point matches `where`: key -> value, or list of accepted values."""
        accepted = {key: wanted if isinstance(wanted, list) else [wanted] for key, wanted in where.items()}
        return all(getattr(self, key) in values for key, values in accepted.items())


KEYS = tuple(Point.__dataclass_fields__)


class Study(BaseModel):
    """The content of a study file."""

    model_config = STRICT

    about: str = ""
    workloads: Annotated[dict[Name, WorkloadSpec], Field(min_length=1)]
    malleable: Malleable | None = None
    policies: Annotated[list[Annotated[PolicySpec, BeforeValidator(named)]], Field(min_length=1)]
    seeds: Annotated[list[Annotated[int, Field(ge=0, lt=2**63)]], *AXIS, BeforeValidator(counted)] = [0]
    priority: Annotated[list[str], *AXIS] = ["fcfs"]
    runtime_model: Annotated[list[str], *AXIS] = ["ideal"]
    interval_s: Annotated[list[Seconds], *AXIS] = [0.0]
    malleability_interval_s: Annotated[list[Seconds], *AXIS] = [0.0]
    shake: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], *AXIS, BeforeValidator(shaken)] = [0]
    processes: Annotated[
        list[Annotated[ProcessesSpec, BeforeValidator(communicating)]], BeforeValidator(as_list), Field(min_length=1)
    ] = [ProcessesSpec(communication="none")]
    shaking: ShakingSpec = ShakingSpec()
    over_limit: Annotated[OverLimit, Field(strict=False)] = OverLimit.EXTEND
    speed: Annotated[float, Field(ge=bounds.MIN_SPEED, le=bounds.MAX_SPEED)] = 1.0
    """Trace seconds per wall second, for policies with wall times (`slurm`)."""
    tau: Annotated[float, Field(gt=0, allow_inf_nan=False)] = TAU
    windows: Annotated[dict[Name, WindowSpec], Field(min_length=1)] = {"all": WindowSpec()}
    exclude: list[Where] = []
    published: list[Published] = []
    plots: dict[Name, Plot] = {}
    sensitivity: SensitivitySpec = SensitivitySpec()

    @field_validator("runtime_model")
    @classmethod
    def _models(cls, names: list[str]) -> list[str]:
        for name in names:
            if name not in [*RuntimeModel]:
                raise ValueError(f"unknown runtime model {name!r}; use one of {', '.join(RuntimeModel)}")
        return names

    @field_validator("priority")
    @classmethod
    def _priorities(cls, names: list[str]) -> list[str]:
        for name in names:
            if name not in PRIORITIES:
                raise ValueError(f"unknown priority {name!r}; use one of {', '.join(PRIORITIES)}")
        return names

    @field_validator("processes")
    @classmethod
    def _distinct(cls, specs: list[ProcessesSpec]) -> list[ProcessesSpec]:
        names = [spec.name for spec in specs]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{name!r} is listed twice; give the processes other labels")
        return specs

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
            "shake": self.shake,
            "processes": [processes.name for processes in self.processes],
        }

    def setup(self, point: Point) -> Setup:
        """Return the setup of a point."""
        spec = self.policy(point)
        return Setup.of(
            spec.policy,
            policy_parameters=spec.parameters,
            placement=spec.placement,
            priority=point.priority,
            runtime_model=point.runtime_model,
            interval_s=point.interval_s,
            malleability_interval_s=point.malleability_interval_s,
            over_limit=self.over_limit,
            speed=self.speed,
        )

    def policy(self, point: Point) -> PolicySpec:
        """Return the policy of a point."""
        return next(policy for policy in self.policies if policy.name == point.policy)

    def processes_of(self, point: Point) -> Processes | None:
        """Return the choices for the processes of a point; None: jobs take their run times."""
        return next(processes for processes in self.processes if processes.name == point.processes).chosen
