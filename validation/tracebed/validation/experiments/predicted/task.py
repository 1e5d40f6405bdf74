"""Tasks of simulators: a workload under a policy on the nodes of a testbed, with the settings of the real runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracebed.converters.workload import Workload
from tracebed.orchestrator.runs.nodes import NodeFacts
from tracebed.orchestrator.setup import Setup


@dataclass(frozen=True)
class Task:
    """A prediction task of a simulator."""

    names: Mapping[str, str]
    """Names in the experiment of the `workload` and the `policy`, as in patterns of paths, and of the `testbed`."""
    file: Path | None
    """The file of the workload; None: the workload is derived from its runs, or is not known."""
    title: str
    """Name of the workload in reports."""
    workload: Workload | None
    nodes: list[NodeFacts]
    setup: Setup
    """The setup of the real runs; of the timing, the speed only."""

    @property
    def reading(self) -> dict[str, Any]:
        """Arguments of `read_run` for predictions of the task."""
        return {
            "workload": self.workload,
            "policy": self.setup.scheduling.policy,
            "title": self.title,
            "nodes": len(self.nodes) or None,
            "cores_per_node": max((node.cores for node in self.nodes), default=None),
        }

    @property
    def facts(self) -> dict[str, Any]:
        """All inputs of a prediction, besides the simulator, as JSON values."""
        return {
            "workload": self.workload.sha256 if self.workload else None,
            "nodes": [list(node) for node in self.nodes],
            "setup": self.setup.as_dict(),
        }
