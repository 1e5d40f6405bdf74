"""The interface of backends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

from tracebed.benchmarks.ownership import Flags, Result


class Backend(ABC):
    """A way to change the CPUs of programs. The flags and results are those of DROM (`tracebed.benchmarks.drom`)."""

    @abstractmethod
    def attach(self, pid: int, cpus: Iterable[int], flags: Flags = Flags.NONE) -> tuple[Result, Mapping[str, str]]:
        """Assign the first CPUs of a program.

        Args:
            pid: a process that is going to execute the program, or that runs it.
            cpus: its CPUs.
            flags: STEAL.

        Returns:
            SUCCESS; NOTED: other processes must release CPUs first; REGISTERED: attached already; an error. Then the
            environment variables that the program needs.
        """

    @abstractmethod
    def set(self, pid: int, cpus: Iterable[int], flags: Flags = Flags.NONE) -> Result:
        """Change the CPUs of a program. The result is that of `Administrator.set_mask`."""

    @abstractmethod
    def get(self, pid: int) -> tuple[Result, tuple[int, ...]]:
        """Return SUCCESS, or NOTED if a change is pending, or an error; then the CPUs that the program holds."""

    @abstractmethod
    def detach(self, pid: int, flags: Flags = Flags.NONE) -> Result:
        """Release the CPUs of a program that has ended.

        Args:
            pid: its process.
            flags: RETURN_STOLEN.
        """

    def close(self) -> None:  # noqa: B027  most backends have nothing to close
        """End the work as an administrator. The programs keep their CPUs."""
