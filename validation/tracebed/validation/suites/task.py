"""Tasks of simulators: a workload under a policy on the nodes of a testbed, with the options of the real runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tracebed.converters.workload import Workload
from tracebed.errors import InputError
from tracebed.orchestrator.run import NodeFacts, Run
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.placement import FIRST
from tracebed.orchestrator.scheduling.priorities import FCFS
from tracebed.validation.repetitions.campaign import Cell


@dataclass(frozen=True)
class Task:
    """A prediction task of a simulator."""

    names: Mapping[str, str]
    """Names of the workload and of the policy in the suite: `workload` and `policy` in patterns of paths."""
    file: Path | None
    """The file of the workload; None: the workload is not known, only its runs."""
    workload: Workload | None
    nodes: list[NodeFacts]
    policy: str
    policy_parameters: Mapping[str, Any]
    speed: float
    """Trace seconds per wall second of the real runs. It converts overheads."""
    interval_s: float
    over_limit: OverLimit
    priority: str
    placement: str

    @classmethod
    def of_cell(cls, cell: Cell, names: Mapping[str, str], file: Path | None) -> Self:
        """Return the task of a cell whose replays are predicted."""
        options = cell.options
        return cls(
            names,
            file,
            cell.workload,
            cell.inventory.facts,
            cell.policy,
            cell.policy_parameters,
            options.speed,
            options.interval_s,
            options.over_limit,
            options.priority,
            options.placement,
        )

    @classmethod
    def of_run(
        cls,
        run: Run,
        names: Mapping[str, str],
        file: Path | None,
        workload: Workload | None,
        policy: str,
        policy_parameters: Mapping[str, Any],
    ) -> Self:
        """Return the task of predicting a recorded run, whose options are those of the run.

        Raises:
            InputError: the run is of another workload.
        """
        info = run.info
        if workload is not None and info.workload.get("sha256") != workload.sha256:
            raise InputError(f"the recorded run is not of the workload {file}", hint="the hashes of the jobs differ")
        return cls(
            names,
            file,
            workload,
            info.nodes,
            policy,
            policy_parameters,
            info.speed,
            float(info.parameters.get("interval_s", 0.0)),
            OverLimit(info.parameters.get("over_limit", OverLimit.EXTEND)),
            str(info.parameters.get("priority", FCFS)),
            str(info.parameters.get("placement", FIRST)),
        )

    @property
    def title(self) -> str:
        """Name of the workload in reports."""
        return self.file.name if self.file else self.names["workload"]

    @property
    def reading(self) -> dict[str, Any]:
        """Arguments of `read_run` for runs of the task."""
        return {"workload": self.workload, "policy": self.policy, "title": self.title}

    @property
    def facts(self) -> dict[str, Any]:
        """All inputs of a prediction, besides the simulator, as JSON values."""
        return {
            "workload": self.workload.sha256 if self.workload else None,
            "nodes": [list(node) for node in self.nodes],
            "policy": self.policy,
            "policy_parameters": dict(self.policy_parameters),
            "speed": self.speed,
            "interval_s": self.interval_s,
            "over_limit": str(self.over_limit),
            "priority": self.priority,
            **(
                {"placement": self.placement} if self.placement != FIRST else {}
            ),  # predictions that are kept stay valid
        }
