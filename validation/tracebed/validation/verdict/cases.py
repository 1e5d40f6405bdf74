"""Cases: the runs of one workload under one policy, on both sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tracebed.ground.errors import InputError
from tracebed.orchestrator.run import Run, RunInfo
from tracebed.orchestrator.setup import UNKNOWN_POLICY


@dataclass(frozen=True)
class Case:
    """A workload under a policy on a testbed: the repetitions of the real run, and the runs of one simulator."""

    name: str
    """Name, unique among the cases of a validation: `cirne-easy`."""
    workload: str
    policy: str
    real: tuple[Run, ...]
    """All repetitions of the real run, healthy or not, in the order of their execution."""
    predicted: tuple[Run, ...]
    """One run of a deterministic simulator, or several runs of a stochastic one (with different seeds)."""
    calibration: bool = False
    """Whether the simulator was calibrated on this workload. Such a case is shown, but not part of the verdict."""
    names: tuple[str, ...] = ()
    """Names of the repetitions, in messages and reports; by default `rep-01`, `rep-02`, ..."""
    cluster: str = ""
    """Name of the cluster of dependent workloads; empty: found from the contents of the runs (`clusters`)."""

    def __post_init__(self) -> None:
        for side, runs in (("real", self.real), ("predicted", self.predicted)):
            if not runs:
                raise InputError(f"the case {self.name} has no {side} run", hint="a case needs runs on both sides")

    @classmethod
    def of(
        cls,
        real: Sequence[Run],
        predicted: Sequence[Run],
        *,
        calibration: bool = False,
        names: Sequence[str] = (),
    ) -> Case:
        """Return the case of these runs, named by `case_name` after the first real run."""
        if not real:
            raise InputError("the real run is missing")
        info = real[0].info
        workload = str(info.workload.get("name") or "workload")
        return cls(case_name(info), workload, info.policy, tuple(real), tuple(predicted), calibration, tuple(names))

    def name_of(self, index: int) -> str:
        """Return the name of the repetition at position `index`."""
        return self.names[index] if self.names else f"rep-{index + 1:02d}"


def case_name(info: RunInfo) -> str:
    """Return the name of the case of a real run: workload and policy, without a policy that is unknown."""
    workload = Path(str(info.workload.get("name") or "workload")).stem
    return workload if info.policy == UNKNOWN_POLICY else f"{workload}-{info.policy}"
