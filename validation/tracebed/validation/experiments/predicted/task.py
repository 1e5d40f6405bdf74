"""Tasks of simulators: a workload under a policy on the nodes of a testbed, with the options of the real runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tracebed.converters.workload import Workload
from tracebed.errors import InputError
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.runs.nodes import NodeFacts
from tracebed.orchestrator.setup import Setup
from tracebed.validation.experiments.real.campaign import Cell


@dataclass(frozen=True)
class Task:
    """A prediction task of a simulator."""

    names: Mapping[str, str]
    """Names of the workload and of the policy in the suite: `workload` and `policy` in patterns of paths."""
    file: Path | None
    """The file of the workload; None: the workload is not known, only its runs."""
    workload: Workload | None
    nodes: list[NodeFacts]
    setup: Setup
    """The setup of the real runs; of the timing, the speed only."""

    @classmethod
    def of_cell(cls, cell: Cell, names: Mapping[str, str], file: Path | None) -> Self:
        """Return the task of a cell whose replays are predicted."""
        return cls(names, file, cell.workload, cell.inventory.facts, cell.setup)

    @classmethod
    def of_run(
        cls, run: Run, names: Mapping[str, str], file: Path | None, workload: Workload | None, **policy: Any
    ) -> Self:
        """Return the task of predicting a recorded run, whose setup is that of the run.

        Args:
            run: the run.
            names: names of the workload and of the policy in the suite.
            file: file of the workload.
            workload: the workload.
            policy: policy and parameters of the task.

        Raises:
            InputError: the run is of another workload.
        """
        info = run.info
        if workload is not None and info.workload.get("sha256") != workload.sha256:
            raise InputError(f"the recorded run is not of the workload {file}", hint="the hashes of the jobs differ")
        return cls(names, file, workload, info.nodes, Setup.of(info.setup, **policy))

    @property
    def title(self) -> str:
        """Name of the workload in reports."""
        return self.file.name if self.file else self.names["workload"]

    @property
    def reading(self) -> dict[str, Any]:
        """Arguments of `read_run` for runs of the task."""
        return {"workload": self.workload, "policy": self.setup.scheduling.policy, "title": self.title}

    @property
    def facts(self) -> dict[str, Any]:
        """All inputs of a prediction, besides the simulator, as JSON values."""
        return {
            "workload": self.workload.sha256 if self.workload else None,
            "nodes": [list(node) for node in self.nodes],
            "setup": self.setup.as_dict(),
        }
