"""Types of arguments and results of the functions of `tracebed.api`, for annotations."""

from __future__ import annotations

from tracebed.api.calibration_files import AnyCalibration
from tracebed.api.workloads import Flexible, Speedup
from tracebed.converters.cleaning.audit import Audited, Cleaned
from tracebed.converters.cleaning.recipes import Recipe
from tracebed.converters.workload import Provenance, Step, System, Workload
from tracebed.orchestrator.evolving.programs import Communication
from tracebed.orchestrator.run import Run, RunInfo
from tracebed.orchestrator.simulation.prediction import EngineChoice
from tracebed.orchestrator.testbeds.calibration import OverheadEstimate
from tracebed.validation.fitting import LossName
from tracebed.validation.simulators.simulator import MatchName, Side
from tracebed.validation.verdict import Validation
from tracebed.validation.verdict.rule import Reason
from tracebed.validation.verdict.validation import MetricVerdict

__all__ = [
    "AnyCalibration",
    "Audited",
    "Cleaned",
    "Communication",
    "EngineChoice",
    "Flexible",
    "LossName",
    "MatchName",
    "MetricVerdict",
    "OverheadEstimate",
    "Provenance",
    "Reason",
    "Recipe",
    "Run",
    "RunInfo",
    "Side",
    "Speedup",
    "Step",
    "System",
    "Validation",
    "Workload",
]
