"""Calibration files of simulators: `tracebed validate --fit` writes them, and `tracebed validate` uses them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from tracebed.ground.stored import Part, StoredFile
from tracebed.orchestrator.testbeds.calibration import Instant, Loss, Number, Sha256

Count = Annotated[int, Field(ge=0)]


class ParameterEstimate(Part):
    """A fitted parameter."""

    value: Number
    median: Number
    """Median over the cloud."""
    low: Number
    """Smallest value of the cloud."""
    high: Number
    """Largest value of the cloud."""
    range: list[Number]
    """Ends of the range of the search."""
    scale: Literal["log", "linear"]
    integer: bool
    identified: bool
    """Whether the real runs determine the parameter: within a factor of 2, or a tenth of a linear range."""
    at_end: Literal["", "lower", "upper"]
    """End of the range at which the value is."""


class TiedParameters(Part):
    """Two parameters that cannot be told apart."""

    parameters: list[str]
    correlation: Number
    """Correlation over the cloud."""


class CalibrationCase(Part):
    """Real runs that the parameters were fitted to."""

    case: str
    workload: str
    sha256: Sha256
    policy: str
    runs: list[str]


class CalibrationFold(Part):
    """A fit without the runs of one workload, applied to that workload. A loss is null if the simulator fails."""

    workload: str
    parameters: dict[str, Number]
    loss_in: Loss
    """Loss for the workloads of the fit."""
    loss_in_random: Loss | None
    """Loss for the workloads of the fit, of the best set of the random search."""
    loss_out: Loss | None
    """Loss for the workload left out."""
    loss_out_random: Loss | None
    """Loss for the workload left out, of the same set."""


class Failures(Part):
    """Simulations that failed."""

    simulations: Count
    first: str
    """Message of one of them; empty without failures."""


class SimulatorCalibration(StoredFile):
    """Parameters of a simulator fitted to real runs."""

    KIND: ClassVar[str] = "calibration of a simulator"
    HINT: ClassVar[str] = "`tracebed validate --fit` writes calibrations of simulators"

    file_schema: Annotated[Literal["tracebed-simulator-calibration/1"], Field(alias="schema")] = (
        "tracebed-simulator-calibration/1"
    )
    name: str
    """Name of the simulator in the experiment."""
    created: Instant
    """ISO 8601, with the time zone."""
    tracebed: str
    """Version of tracebed."""
    command: str
    """The command, with placeholders."""
    fitted: str
    """The command with the fitted values."""
    version: str
    """Version of the simulator, as in the experiment."""
    parameters: dict[str, ParameterEstimate]
    """The parameters that were searched."""
    known: dict[str, Number]
    """Parameters that were given."""
    without_effect: dict[str, Number]
    """Parameters that change nothing in these runs. They are at the lower ends of their ranges."""
    tied: list[TiedParameters]
    loss: Literal["metrics", "jobs"]
    """Mean relative error of the gated metrics, or of wait and response of each job."""
    value: Loss
    """Loss of the fitted parameters: the smaller one of the following two."""
    search_value: Loss
    """Loss of the best set of the search."""
    random_value: Loss | None
    """Loss of the best set of a random search with the same budget; null if the simulator fails with all of them."""
    tolerance: Loss
    """Largest additional loss of a set of the cloud."""
    budget: Annotated[int, Field(ge=1)]
    seed: Annotated[int, Field(ge=0)]
    sets: Annotated[int, Field(ge=1)]
    """Number of parameter sets tried by the search."""
    simulations: Annotated[int, Field(ge=1)]
    """Number of simulations, those of the random search and the cross-validation included."""
    failures: Failures
    workloads: list[Sha256]
    """SHA-256 of the workloads of the fit. No verdict may be based on them."""
    cases: list[CalibrationCase]
    cross_validation: list[CalibrationFold]
    """A fold per workload; empty with a single workload."""
    cloud_sets: Annotated[int, Field(ge=1)]
    """Number of sets that fit equally well."""
    cloud: list[dict[str, Number]]
    """At most 50 of them, far from each other; the first is the best."""

    @property
    def values(self) -> dict[str, float]:
        """The value of each parameter."""
        fitted = {name: each.value for name, each in self.parameters.items()}
        return {**fitted, **self.known, **self.without_effect}

    def facts(self) -> dict[str, Any]:
        """Return the facts of the calibration in `run.json`."""
        facts = {"name": self.name, "sha256": self.sha256, "created": self.created, "workloads": list(self.workloads)}
        return facts | {"parameters": self.values}
