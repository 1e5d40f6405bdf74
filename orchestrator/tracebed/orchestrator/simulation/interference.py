"""Interference: how much jobs that share a node slow each other down, by the kernels of their applications."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

from tracebed.ground.errors import InputError
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.jobs import Jobs


@dataclass(frozen=True)
class Interference:
    """The factors of a calibration on the rates of jobs that share nodes (docs/explanation/calibration.md).

    Attributes:
        table: kernel -> kernel on the other cores of the node -> rate of the first one, relative to idle other cores.
        duty: duty of the nodes, above 0 and at most 1.
    """

    table: Mapping[str, Mapping[str, float]]
    duty: float = 1.0

    @classmethod
    def of(cls, calibration: Mapping[str, Any]) -> Self | None:
        """Return the factors in the facts of a calibration (`Calibration.facts`), or None if they are not measured."""
        table, duty = calibration.get("interference"), calibration.get("duty")
        return cls(table, duty) if table and duty else None

    def factor(self, job: int, jobs: Jobs, cluster: Cluster) -> float:
        """Return the factor on the rate of `job` by the jobs on its shared nodes: the factor of its worst node."""
        if not jobs.application or not cluster.shares(job):
            return 1.0
        own = _kernel(jobs, job)

        def on(node: int) -> float:
            loan = cluster.loans.get(node)
            if loan is None:
                return 1.0
            return self.beside(own, _kernel(jobs, loan.owner if loan.guest == job else loan.guest))

        return min(map(on, cluster.nodes_of(job)))

    def beside(self, kernel: str, other: str) -> float:
        """Return the factor on the rate of a job with `kernel` beside a job with `other`; 1.0 if a kernel is unknown.

        The work of a job is sized by the rate at which all cores of the node run its kernel. So its rate beside the
        other kernel is divided by its rate beside itself. With a duty below 1, ranks sleep until the planned end of an
        iteration, and work that fits into its plan causes no delay.
        """
        row = self.table.get(kernel, {})
        if kernel not in row or other not in row:
            return 1.0
        rate = row[other] / row[kernel]
        return rate if self.duty >= 1.0 else min(1.0, rate / self.duty)


def _kernel(jobs: Jobs, job: int) -> str:
    return kernel_of(jobs.application[job], jobs.parameters[job])


@cache
def kernel_of(application: str, parameters: str) -> str:
    """Return the kernel by which jobs of the application are sized; empty if it is unknown.

    It is unknown for the application `command`, and for an invalid application: a simulation accepts every application.
    """
    from tracebed.benchmarks.applications.base import load_application, parse_parameters
    from tracebed.benchmarks.applications.command import Command

    try:
        loaded = load_application(application, parse_parameters(parameters))
    except InputError:
        return ""
    return "" if isinstance(loaded, Command) else loaded.kernels[0]
