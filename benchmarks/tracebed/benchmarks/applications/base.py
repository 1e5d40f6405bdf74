"""What an application is: its demands, its compute kernel, and its memory; and applications by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tracebed.benchmarks.memory import MIB, require
from tracebed.ground.errors import InputError, TestbedError
from tracebed.ground.parameters import with_parameters
from tracebed.ground.registry import Registry

if TYPE_CHECKING:  # a replay loads applications for their demands, and agents for their ranks
    from tracebed.benchmarks.kernels import Kernel
    from tracebed.benchmarks.program import Launch, Program
    from tracebed.benchmarks.rank import Control

APPLICATIONS: Registry[type[Application]] = Registry("tracebed.applications", "application", type)


@dataclass(frozen=True)
class Demands:
    """What a rank of an application demands of its node, in words."""

    cpu: str
    memory: str
    bandwidth: str


class Application(ABC):
    """An application: a dataclass with the parameters that a job may set in `application_parameters`."""

    kernels: ClassVar[tuple[str, ...]] = ("pils",)
    """The compute kernels of the application. Jobs are sized by the work rate of the first one."""
    demands: ClassVar[Demands]

    @abstractmethod
    def kernel(self, program: Program) -> Kernel:
        """Return the function that does units of the program in the calling thread."""

    @property
    def partition(self) -> str:
        """How the data of a rank are divided: `free` or `static`, as in `Program`."""
        return "free"

    @property
    def own_mib(self) -> int:
        """Memory that the kernel of a rank takes, MiB. It is part of the memory of the job."""
        return 0

    @property
    def balance(self) -> str | None:
        """How the work is divided: `static` or `dynamic`, as in `Program`; None: as the replay chooses."""
        return None

    def import_ranks(self) -> None:
        """Import what ranks run. An agent does so before it forks ranks, which then start without imports."""
        from tracebed.benchmarks import leader  # noqa: F401

    def run(self, launch: Launch, control: Control) -> int:
        """Run one rank of a job, and return the exit status of its process. An emulated rank holds no memory.

        Raises:
            TestbedError: the node lacks the memory of the rank.
        """
        from tracebed.benchmarks import leader  # not needed by a replay, see `import_ranks`

        if launch.duty == 0:
            return leader.run(launch, control, _emulated)
        held = memory(max(0, launch.program.memory_mib - self.own_mib))
        status = leader.run(launch, control, self.kernel(launch.program))
        del held  # the rank holds its memory until here
        return status


def _emulated(first: int, count: int) -> int:
    """Raise AssertionError: workers that emulate their work call no kernel."""
    raise AssertionError(f"emulated units are computed: {count} units from {first}")


def memory(size_mib: int) -> bytes:
    """Return `size_mib` MiB of memory in use: every page has been written.

    A node with less free memory is a TestbedError: the kernel would end other processes otherwise.
    """
    require(size_mib)
    try:
        return b"\1" * (size_mib * MIB)
    except MemoryError as error:
        raise TestbedError(f"the rank cannot have {size_mib} MiB of memory") from error


def load_application(name: str, parameters: Mapping[str, str]) -> Application:
    """Return the application `name` with `parameters`."""
    application: Application = with_parameters("application", name, APPLICATIONS.load(name), parameters)
    return application


def parse_parameters(text: str) -> dict[str, str]:
    """Return the parameters in the column `application_parameters`: `name=value`, separated by spaces."""
    found: dict[str, str] = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if not equals or not name or name in found:
            hint = "write name=value, each name once, separated by spaces"
            raise InputError(f"application_parameters has {word!r}", hint=hint)
        found[name] = value
    return found
