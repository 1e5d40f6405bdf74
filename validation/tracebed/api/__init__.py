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
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracebed.api.budgets import ErrorBudget, error_budget
    from tracebed.api.calibrations import calibrate, calibrate_batch, fit
    from tracebed.api.cleaning import audit, clean, clean_with_audit, cleaning_steps, recipe, recipes
    from tracebed.api.comparisons import Validation
    from tracebed.api.descriptions import describe, dictionary
    from tracebed.api.drawings import Picture, history, pictures, plot_means, runs_page, save_pictures
    from tracebed.api.experiments import experiment
    from tracebed.api.forecasts import Forecast, forecast
    from tracebed.api.imports import as_run, import_run
    from tracebed.api.installed import inventories, models
    from tracebed.api.measures import metric_definitions
    from tracebed.api.nodes import (
        inventory_schema,
        nodes_check,
        nodes_down,
        nodes_facts,
        nodes_up,
        with_facts,
        without_nodes,
        write_inventory,
    )
    from tracebed.api.noises import noise
    from tracebed.api.results import Run, Workload
    from tracebed.api.runs import (
        inventory,
        metrics,
        policies,
        recover,
        replay,
        shortest_replay,
        simulate,
    )
    from tracebed.api.schedulers import replay_on, slurm_parameters
    from tracebed.api.verdicts import compare, validate
    from tracebed.api.whatifs import WhatIf, whatif, with_starts
    from tracebed.api.workloads import (
        convert,
        generate,
        make_malleable,
        perturb,
        read,
        scale,
        write,
    )
    from tracebed.converters.workload import System
    from tracebed.ground.errors import InputError, TestbedError, Tolerated, TracebedError
    from tracebed.machine.machine import Machine
    from tracebed.machine.sources import read_machine
    from tracebed.orchestrator.scheduling.state import Policy
    from tracebed.orchestrator.setup import Scheduling, Setup, Timing
    from tracebed.orchestrator.simulation.overheads import Overheads
    from tracebed.orchestrator.testbeds.calibration import Calibration
    from tracebed.orchestrator.testbeds.nodes import Inventory
    from tracebed.validation.metrics.measured import PowerModel
    from tracebed.validation.verdict.baseline import Baseline
    from tracebed.validation.verdict.comparison import Comparison
    from tracebed.validation.verdict.noise import NoiseProfile
    from tracebed.validation.verdict.policies import PolicyComparison

__all__ = [
    "Baseline",
    "Calibration",
    "Comparison",
    "ErrorBudget",
    "Forecast",
    "InputError",
    "Inventory",
    "Machine",
    "NoiseProfile",
    "Overheads",
    "Picture",
    "Policy",
    "PolicyComparison",
    "PowerModel",
    "Run",
    "Scheduling",
    "Setup",
    "System",
    "TestbedError",
    "Timing",
    "Tolerated",
    "TracebedError",
    "Validation",
    "WhatIf",
    "Workload",
    "as_run",
    "audit",
    "calibrate",
    "calibrate_batch",
    "clean",
    "clean_with_audit",
    "cleaning_steps",
    "compare",
    "convert",
    "describe",
    "dictionary",
    "error_budget",
    "experiment",
    "fit",
    "forecast",
    "generate",
    "history",
    "import_run",
    "inventories",
    "inventory",
    "inventory_schema",
    "make_malleable",
    "metric_definitions",
    "metrics",
    "models",
    "nodes_check",
    "nodes_down",
    "nodes_facts",
    "nodes_up",
    "noise",
    "perturb",
    "pictures",
    "plot_means",
    "policies",
    "read",
    "read_machine",
    "recipe",
    "recipes",
    "recover",
    "replay",
    "replay_on",
    "runs_page",
    "save_pictures",
    "scale",
    "shortest_replay",
    "simulate",
    "slurm_parameters",
    "validate",
    "whatif",
    "with_facts",
    "with_starts",
    "without_nodes",
    "write",
    "write_inventory",
]

_HOME = {
    "tracebed.api.budgets": ("ErrorBudget", "error_budget"),
    "tracebed.api.calibrations": ("calibrate", "calibrate_batch", "fit"),
    "tracebed.api.cleaning": ("audit", "clean", "clean_with_audit", "cleaning_steps", "recipe", "recipes"),
    "tracebed.api.comparisons": ("Validation",),
    "tracebed.api.descriptions": ("describe", "dictionary"),
    "tracebed.api.experiments": ("experiment",),
    "tracebed.api.forecasts": ("Forecast", "forecast"),
    "tracebed.api.imports": ("as_run", "import_run"),
    "tracebed.api.installed": ("inventories", "models"),
    "tracebed.api.measures": ("metric_definitions",),
    "tracebed.api.nodes": (
        *("inventory_schema", "nodes_check", "nodes_down", "nodes_facts", "nodes_up"),
        *("with_facts", "without_nodes", "write_inventory"),
    ),
    "tracebed.api.noises": ("noise",),
    "tracebed.api.drawings": ("Picture", "history", "pictures", "plot_means", "runs_page", "save_pictures"),
    "tracebed.api.results": ("Run", "Workload"),
    "tracebed.api.runs": (*("inventory", "metrics", "policies", "recover", "replay", "shortest_replay", "simulate"),),
    "tracebed.api.schedulers": ("replay_on", "slurm_parameters"),
    "tracebed.api.verdicts": ("compare", "validate"),
    "tracebed.api.whatifs": ("WhatIf", "whatif", "with_starts"),
    "tracebed.api.workloads": (
        *("convert", "generate", "make_malleable"),
        *("read", "scale", "perturb", "write"),
    ),
    "tracebed.converters.workload": ("System",),
    "tracebed.ground.errors": ("InputError", "TestbedError", "Tolerated", "TracebedError"),
    "tracebed.orchestrator.testbeds.calibration": ("Calibration",),
    "tracebed.orchestrator.scheduling.state": ("Policy",),
    "tracebed.machine.machine": ("Machine",),
    "tracebed.machine.sources": ("read_machine",),
    "tracebed.orchestrator.setup": ("Scheduling", "Setup", "Timing"),
    "tracebed.orchestrator.simulation.overheads": ("Overheads",),
    "tracebed.orchestrator.testbeds.nodes": ("Inventory",),
    "tracebed.validation.verdict.baseline": ("Baseline",),
    "tracebed.validation.metrics.measured": ("PowerModel",),
    "tracebed.validation.verdict.comparison": ("Comparison",),
    "tracebed.validation.verdict.noise": ("NoiseProfile",),
    "tracebed.validation.verdict.policies": ("PolicyComparison",),
}
"""Module -> the names it defines. A module is imported when one of its names is first used."""
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import and return a name of `__all__`."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
