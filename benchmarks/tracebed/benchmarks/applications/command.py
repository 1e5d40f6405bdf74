"""Commands: any programs that the user allows, on the CPUs of their job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from tracebed.benchmarks.applications.base import Application, Demands
from tracebed.benchmarks.kernels import Kernel, compute
from tracebed.ground.errors import InputError

if TYPE_CHECKING:
    from tracebed.benchmarks.program import Launch, Program
    from tracebed.benchmarks.rank import Control

_ELASTIC = ("elastic", "dmr")
"""The backends with which the number of nodes of a job may change."""


@dataclass(frozen=True)
class Command(Application):
    """A program of the user: one copy on each node of the job.

    Attributes:
        name: the name of the command in the file of allowed commands.
        backend: `rigid`: the program keeps its CPUs. `affinity`: all its threads and processes are bound to the new
            CPUs when the CPUs of the job change. `openmp`: also, its parallel regions of OpenMP have as many threads as
            it has CPUs, by a library that is compiled on the node. `elastic`: as `affinity`, and the nodes of the job
            may change: a copy starts on each new node, and is terminated on each released one. `dmr`: as `elastic`,
            with a copy on the first node only, which changes its processes itself by the checks of DMR.
    """

    demands: ClassVar[Demands] = Demands(cpu="those of the program", memory="at most `memory_mib`", bandwidth="unknown")

    name: str = ""
    backend: Literal["rigid", "affinity", "openmp", "elastic", "dmr"] = "rigid"

    def kernel(self, program: Program) -> Kernel:
        """Return the kernel of PILS, in whose units the job is sized on emulated nodes."""
        return compute

    def import_ranks(self) -> None:
        """Import what ranks run, also on emulated nodes."""
        from tracebed.benchmarks import command_ranks, unmodified  # noqa: F401

        super().import_ranks()

    def run(self, launch: Launch, control: Control) -> int:
        """Run the command of one rank, which must be allowed, or take the planned time on an emulated node."""
        if launch.duty == 0:
            return super().run(launch, control)
        if not launch.program.command:
            raise InputError(f"command {self.name!r} is not allowed")
        from tracebed.benchmarks import command_ranks, unmodified  # not needed by a replay, see `import_ranks`

        stateless = launch._replace(program=launch.program._replace(state_mib=0.0))  # the command has its own data
        ranks = {
            "elastic": (command_ranks.ElasticLeader, command_ranks.ElasticFollower),
            "dmr": (command_ranks.DmrLeader, command_ranks.ElasticFollower),
        }.get(self.backend, (command_ranks.CommandLeader, command_ranks.CommandFollower))
        given: dict[str, str] = {}
        if self.backend == "openmp":
            given = {**unmodified.variables(unmodified.build(launch.folder)), unmodified.AFFINITY: "1"}
        return command_ranks.run(stateless, control, ranks, moves=self.backend != "rigid", given=given)

    @property
    def elastic(self) -> bool:
        """Whether the number of nodes of the job may change."""
        return self.backend in _ELASTIC
