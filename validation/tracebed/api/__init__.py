"""The Python interface of tracebed: a function for each step from a log to a verdict.

    import tracebed.api as tb

    w = tb.generate("cirne", jobs=30, nodes=16, seed=3)
    w = tb.make_malleable(tb.scale(w, nodes=4), share=0.7, seed=1)
    sim = tb.simulate(w, "pref", nodes=4)
    real = tb.replay(w, "pref", "emulated-4", speed=40_000)
    tb.compare(real=real, predicted=sim).to_html("report.html")

A function returns a new object and changes none of its arguments. Times are seconds, memory is MiB. An error that
the caller can correct is a `TracebedError`: an `InputError` for files, options and values, a `TestbedError` for
nodes and processes. A defect of the input that was tolerated is a warning of the class `Tolerated`.

The command line uses these names only. Another package adds names by entry points of the group `tracebed.api`.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracebed.ground.registry import Registry
from tracebed.ground.version import own_entry_points

if TYPE_CHECKING:  # the homes of the names: `_homes` reads these lines
    from tracebed.api.arguments import AnyCalibration
    from tracebed.api.benchmarks import Transport, reconfigure
    from tracebed.api.budgets import ErrorBudget, budget_of_case, error_budget
    from tracebed.api.calibrations import calibrate_batch, fit, fit_simulator
    from tracebed.api.drawings import (
        History,
        Pictured,
        check_folder,
        history,
        pictures,
        plot_means,
        runs_page,
        save_pictures,
    )
    from tracebed.api.experiments import SuiteVerdicts, Validations, experiment, validate, validate_suite
    from tracebed.api.imports import as_run, import_run
    from tracebed.api.logs import (
        audit,
        clean,
        clean_with_audit,
        cleaning_steps,
        describe,
        describe_log,
        dictionary,
        workload_summary,
    )
    from tracebed.api.measures import FolderMetrics, courses_of, differences, keep_perturbed, measured
    from tracebed.api.nodes import nodes_check, without_nodes, write_inventory
    from tracebed.api.results import AnyRun, Run
    from tracebed.api.runs import (
        metrics,
        metrics_by,
        policies,
        recover,
        replay,
        replay_on,
        resizes,
        shortest_replay,
        simulate,
    )
    from tracebed.api.verdicts import Validation, compare, gains, noise, write_gains
    from tracebed.api.workloads import Flexible, Speedup, convert, generate, make_malleable, perturb
    from tracebed.benchmarks.mpi.aligner import overhead as aligner
    from tracebed.benchmarks.stages import table as stages_table
    from tracebed.benchmarks.standalone.pils import PilsResult
    from tracebed.benchmarks.standalone.pils import run as pils
    from tracebed.benchmarks.standalone.stream import LABEL as STREAM_LABEL
    from tracebed.benchmarks.standalone.stream import TOLERANCE as STREAM_TOLERANCE
    from tracebed.benchmarks.standalone.stream import StreamResult
    from tracebed.benchmarks.standalone.stream import run as stream
    from tracebed.converters.cleaning.audit import Audited, Cleaned
    from tracebed.converters.cleaning.recipes import Recipe
    from tracebed.converters.cleaning.recipes import load_recipe as recipe
    from tracebed.converters.cleaning.recipes import names as recipes
    from tracebed.converters.description import MOST as MOST_NODE_HOURS
    from tracebed.converters.description import local_time
    from tracebed.converters.formats.reading import read_workload as read
    from tracebed.converters.formats.writing import check_output as check_workload
    from tracebed.converters.formats.writing import write_workload as write
    from tracebed.converters.models.registry import MODELS, models
    from tracebed.converters.models.tsafrir05 import Tsafrir05Parameters
    from tracebed.converters.pictures import check_name as check_picture
    from tracebed.converters.pictures import plot as plot_description
    from tracebed.converters.scaling import scale
    from tracebed.converters.workload import Provenance, Step, System, Workload
    from tracebed.ground.errors import InputError, TestbedError, Tolerated, TracebedError
    from tracebed.ground.progress import progress_lines
    from tracebed.machine.calendar import Calendar, Outage, read_outages
    from tracebed.machine.machine import Machine
    from tracebed.machine.sources import read_machine
    from tracebed.orchestrator.calibrating.procedure import calibrate
    from tracebed.orchestrator.evolving.programs import Communication
    from tracebed.orchestrator.run import PERTURBED, RunInfo
    from tracebed.orchestrator.run import check_target as check_run
    from tracebed.orchestrator.scheduling.names import PRIORITIES
    from tracebed.orchestrator.scheduling.state import Policy
    from tracebed.orchestrator.setup import SETTINGS, SETUP_PARTS, TYPES, Scheduling, Setup, Timing
    from tracebed.orchestrator.simulation.overheads import Overheads
    from tracebed.orchestrator.simulation.prediction import EngineChoice
    from tracebed.orchestrator.testbeds.calibration import Calibration, OverheadEstimate
    from tracebed.orchestrator.testbeds.checking.health import NodeHealth
    from tracebed.orchestrator.testbeds.checking.preparation import bring_up as nodes_up
    from tracebed.orchestrator.testbeds.checking.preparation import take_down as nodes_down
    from tracebed.orchestrator.testbeds.checking.survey import NodeReport
    from tracebed.orchestrator.testbeds.checking.survey import described as with_facts
    from tracebed.orchestrator.testbeds.checking.survey import survey as nodes_facts
    from tracebed.orchestrator.testbeds.inventory import inventory
    from tracebed.orchestrator.testbeds.inventory_keys import inventory_schema
    from tracebed.orchestrator.testbeds.machine import shipped_machines
    from tracebed.orchestrator.testbeds.nodes import Inventory
    from tracebed.orchestrator.testbeds.nodes import shipped as inventories
    from tracebed.orchestrator.watching.follower import JournalFollower
    from tracebed.orchestrator.watching.openmetrics import Metrics as OpenMetrics
    from tracebed.orchestrator.watching.picture import line as view_line
    from tracebed.orchestrator.watching.picture import picture as view_picture
    from tracebed.orchestrator.watching.picture import snapshot as view_snapshot
    from tracebed.orchestrator.watching.view import View as ReplayView
    from tracebed.validation.experiments.experiment import Point
    from tracebed.validation.experiments.file import ExperimentFile, load_experiment
    from tracebed.validation.experiments.file import names as shipped_experiments
    from tracebed.validation.experiments.pools import DaskPool, LocalPool, Pool
    from tracebed.validation.experiments.runner import Forecast as SuiteForecast
    from tracebed.validation.experiments.runner import (
        GridPlan,
        GridResult,
        forecast_suite,
        predict_suite,
        replay_campaign,
    )
    from tracebed.validation.experiments.runner import plan as plan_grid
    from tracebed.validation.experiments.runner import run as run_grid
    from tracebed.validation.experiments.simulators import SimulatorCalibration
    from tracebed.validation.experiments.store import Attempt, KeptJobs, has_replays, is_kept
    from tracebed.validation.experiments.store import read as read_cell
    from tracebed.validation.experiments.suite import Predictions, Suite, load_suite
    from tracebed.validation.experiments.views.artifact import Made as ArtifactFacts
    from tracebed.validation.experiments.views.artifact import write as write_artifact
    from tracebed.validation.experiments.views.averages import GROUP as GRID_KEYS
    from tracebed.validation.experiments.views.averages import Against, against_first, best_points, is_perturbed, means
    from tracebed.validation.experiments.views.plots import draw as draw_plots
    from tracebed.validation.experiments.views.progress import Progress as ExperimentProgress
    from tracebed.validation.experiments.views.progress import experiment_at
    from tracebed.validation.experiments.views.statistics import Statistics
    from tracebed.validation.experiments.views.statistics import summarize as statistics_of
    from tracebed.validation.experiments.views.tables import (
        RATES,
        SHOWN,
        differences_frame,
        differences_table,
        means_table,
        statistics_frame,
        statistics_table,
        value_text,
    )
    from tracebed.validation.experiments.workloads import logs_of
    from tracebed.validation.export.exporter import kind_of as export_kind
    from tracebed.validation.fitting import LossName
    from tracebed.validation.latex import PaperTable, write_csv, write_latex
    from tracebed.validation.metrics import Metric, figures
    from tracebed.validation.metrics import all_metrics as metric_definitions
    from tracebed.validation.metrics.measured import PowerModel
    from tracebed.validation.pictures import Picture
    from tracebed.validation.recorded import recorded_suite, recorded_suites, unpack
    from tracebed.validation.report.ci import annotate, code_quality, junit
    from tracebed.validation.report.forges import publish as publish_results
    from tracebed.validation.report.markdown import markdown, verdict_table
    from tracebed.validation.report.words import execution as execution_text
    from tracebed.validation.report.words import percent as percent_text
    from tracebed.validation.report.words import policy_name
    from tracebed.validation.significance import Difference, with_interval
    from tracebed.validation.significance import intervals as metric_intervals
    from tracebed.validation.simulators.simulator import MatchName, Side
    from tracebed.validation.verdict.baseline import Baseline, SimulatorBaseline
    from tracebed.validation.verdict.baseline import title as metric_title
    from tracebed.validation.verdict.comparison import Comparison
    from tracebed.validation.verdict.gate import Finding, Gate, OnInconclusive, gate, judged, outcome
    from tracebed.validation.verdict.noise import CellNoise, NoiseFloor, NoiseProfile, repeats_for
    from tracebed.validation.verdict.ranking import PolicyComparison
    from tracebed.validation.verdict.rejudging import NO_JOURNAL
    from tracebed.validation.verdict.rule import REASONS, Reason, Verdict
    from tracebed.validation.verdict.tolerances import Tolerances
    from tracebed.validation.verdict.validation import MetricVerdict

__all__ = ["GRID_KEYS", "MODELS", "MOST_NODE_HOURS", "NO_JOURNAL", "PERTURBED", "PRIORITIES", "REASONS", "SETTINGS"]
__all__ += ["SETUP_PARTS", "STREAM_LABEL", "STREAM_TOLERANCE", "TYPES"]
__all__ += ["Against", "AnyCalibration", "AnyRun", "ArtifactFacts", "Attempt", "Audited", "Baseline"]
__all__ += ["Calendar", "Calibration", "CellNoise", "Cleaned", "Communication", "Comparison", "DaskPool", "Difference"]
__all__ += ["EngineChoice", "ErrorBudget", "ExperimentFile", "Finding", "Flexible", "FolderMetrics", "Gate"]
__all__ += ["GridPlan", "GridResult", "History", "InputError", "Inventory", "JournalFollower", "KeptJobs"]
__all__ += ["LocalPool", "LossName", "Machine", "MatchName", "Metric", "MetricVerdict", "NodeHealth"]
__all__ += ["NodeReport", "NoiseFloor", "NoiseProfile", "OnInconclusive", "OpenMetrics", "Outage"]
__all__ += ["OverheadEstimate"]
__all__ += ["Overheads", "Picture", "Pictured", "PilsResult", "Point", "Policy", "PolicyComparison", "Pool"]
__all__ += ["PowerModel", "Predictions", "Provenance", "Reason", "Recipe", "ReplayView", "Run", "RunInfo"]
__all__ += ["Scheduling", "Setup", "Side", "SimulatorBaseline", "SimulatorCalibration", "Speedup"]
__all__ += ["Statistics", "Step", "StreamResult", "Suite", "SuiteForecast", "SuiteVerdicts", "System", "TestbedError"]
__all__ += ["Timing", "Tolerances", "Tolerated", "TracebedError", "Transport", "Tsafrir05Parameters", "Validation"]
__all__ += ["Validations", "Verdict", "Workload"]
__all__ += ["against_first", "aligner", "annotate", "as_run", "audit", "best_points", "budget_of_case", "calibrate"]
__all__ += ["calibrate_batch", "check_folder", "check_picture", "check_run", "check_workload", "clean"]
__all__ += ["clean_with_audit", "cleaning_steps", "code_quality", "compare", "convert", "courses_of", "describe"]
__all__ += ["describe_log", "dictionary", "differences", "draw_plots"]
__all__ += ["error_budget", "execution_text", "experiment", "export_kind", "figures", "fit", "fit_simulator"]
__all__ += [
    "forecast_suite",
    "gains",
    "gate",
    "generate",
    "has_replays",
    "history",
    "import_run",
    "inventories",
    "inventory",
]
__all__ += ["inventory_schema", "is_kept", "is_perturbed", "judged", "junit", "keep_perturbed"]
__all__ += ["load_experiment", "load_suite", "local_time"]
__all__ += ["logs_of", "make_malleable", "markdown", "means", "measured"]
__all__ += ["metric_definitions", "metric_intervals", "metric_title", "metrics", "metrics_by", "models"]
__all__ += ["nodes_check", "nodes_down", "nodes_facts", "nodes_up", "noise", "outcome", "percent_text", "perturb"]
__all__ += ["pictures", "pils", "plan_grid", "plot_description", "plot_means", "policies", "policy_name"]
__all__ += [
    "predict_suite",
    "progress_lines",
    "publish_results",
    "read",
    "read_cell",
    "read_machine",
    "read_outages",
    "recipe",
]
__all__ += ["recipes", "reconfigure", "recorded_suite", "recorded_suites", "recover", "repeats_for", "replay"]
__all__ += ["replay_campaign", "replay_on", "resizes", "run_grid", "runs_page", "save_pictures", "scale"]
__all__ += ["shipped_experiments", "shipped_machines", "shortest_replay", "simulate", "stages_table", "statistics_of"]
__all__ += ["stream", "unpack", "validate", "validate_suite", "view_line", "view_picture"]
__all__ += ["view_snapshot", "with_facts", "with_interval", "without_nodes", "workload_summary", "write"]
__all__ += ["write_artifact", "write_csv", "write_gains", "write_inventory", "write_latex"]
__all__ += ["ExperimentProgress", "experiment_at"]
__all__ += ["RATES", "SHOWN", "PaperTable", "differences_frame", "differences_table", "means_table"]
__all__ += ["statistics_frame", "statistics_table", "value_text", "verdict_table"]

_WINGS: Registry[Any] = Registry("tracebed.api", "name")
"""Names that other packages, and the wings of tracebed, add."""
_ADDED = own_entry_points().get(_WINGS.group, {})
__all__ += _ADDED


def _homes() -> dict[str, tuple[str, str]]:
    """Return the module of each name, and its name there, from the imports above, which only type checkers carry out.

    A module is imported when one of its names is first used, so that the command line and `import tracebed.api` are
    fast; and a name is written once for both. The imports are read as text: a parser of Python takes ten times as long.
    """
    block = Path(__file__).read_text(encoding="utf-8").partition("if TYPE_CHECKING:")[2].partition("\n__all__")[0]
    found = {}
    for module, several, line in re.findall(r"^    from (\S+) import (?:\(([^)]+)\)|(.+))$", block, re.MULTILINE):
        for name in (several or line).replace("\n", " ").split(","):
            own, _, here = name.strip().partition(" as ")
            found[here or own] = (module, own)
    found.pop("", None)  # after the last comma
    return found


_HOMES = _homes()


def __getattr__(name: str) -> Any:
    """Import and return a name of `__all__`. It is not kept here, so that a test may replace it in its home."""
    if name in _HOMES:
        module, own = _HOMES[name]
        return getattr(importlib.import_module(module), own)
    if name in _ADDED or (not name.startswith("_") and name in _WINGS.names()):
        return _WINGS.load(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
