"""The workload models that tracebed knows, and the papers' workloads by name.

To add one, write its module and add its line to `MODELS`. A model is a function

    model(jobs, *, nodes=None, cores_per_node=1, seed=0, parameters=None, ...) -> Workload

`parameters` is a frozen dataclass of its constants. What else it takes (bool, int, float, str, Path or a Literal)
becomes an option of `tracebed generate`, explained by the function's docstring. A workload of a fixed number of
jobs gives `jobs` a default.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from tracebed.errors import InputError

if TYPE_CHECKING:
    from tracebed.converters.workload import Workload


class Model(NamedTuple):
    """One model, or one paper's workload."""

    help: str
    """One line."""
    source: str
    """`module:function`; imported only when asked for."""
    defaults: Mapping[str, Any] = MappingProxyType({})
    """Arguments that take another default than the function gives them."""

    def load(self) -> Callable[..., Workload]:
        """Import and return the function; its signature shows the defaults."""
        module, _, name = self.source.partition(":")
        function: Callable[..., Workload] = getattr(importlib.import_module(module), name)
        return partial(function, **self.defaults) if self.defaults else function


MODELS: dict[str, Model] = {
    "cirne": Model(
        "Rigid jobs of a supercomputer: sizes, limits, cancellations (Cirne and Berman 2001).",
        "tracebed.converters.models.cirne:cirne",
    ),
    "lublin99": Model(
        "Rigid jobs, interactive and batch: sizes, run times (Lublin and Feitelson 2003).",
        "tracebed.converters.models.lublin99:lublin99",
    ),
    "feitelson96": Model(
        "Rigid jobs that are run again and again (like Feitelson 1996; conformance not claimed).",
        "tracebed.converters.models.feitelson96:feitelson96",
    ),
    "downey97": Model(
        "Moldable jobs: work, parallelism and its variance (Downey 1997; ranges not verified).",
        "tracebed.converters.models.downey97:downey97",
    ),
    "jann97": Model(
        "Rigid jobs after a log: three moments of each size class kept (Jann et al. 1997).",
        "tracebed.converters.models.jann97:jann97",
    ),
    "sd-1": Model(
        "Workload 1 of the SD-Policy paper: Cirne, 5000 jobs on 1024 x 48.",
        "tracebed.converters.models.papers:sd",
    ),
    "sd-2": Model(
        "Workload 2: as 1, requested times exact.",
        "tracebed.converters.models.papers:sd",
        {"exact_limits": True},
    ),
    "sd-5": Model(
        "Workload 5: 2000 jobs on 49 x 48, at most 16 nodes, with its applications.",
        "tracebed.converters.models.papers:sd_5",
    ),
    "dmr-100": Model(
        "The DMR study: 100 malleable jobs of HPG-aligner on 49 x 48.",
        "tracebed.converters.models.papers:dmr",
        {"jobs": 100},
    ),
    "dmr-250": Model(
        "The DMR study: 250 malleable jobs of HPG-aligner on 49 x 48.",
        "tracebed.converters.models.papers:dmr",
        {"jobs": 250},
    ),
    "dmr-500": Model(
        "The DMR study: 500 malleable jobs of HPG-aligner on 49 x 48.",
        "tracebed.converters.models.papers:dmr",
        {"jobs": 500},
    ),
    "dmr-1000": Model(
        "The DMR study: 1000 malleable jobs of HPG-aligner on 49 x 48.",
        "tracebed.converters.models.papers:dmr",
        {"jobs": 1000},
    ),
    "dmr-2000": Model(
        "The DMR study: 2000 malleable jobs of HPG-aligner on 49 x 48.",
        "tracebed.converters.models.papers:dmr",
        {"jobs": 2000},
    ),
    "deadline-normal": Model(
        "The deadline study: 1000 requests on 128 x 4, one every 1500 s.",
        "tracebed.converters.models.papers:deadline",
    ),
    "deadline-heavy": Model(
        "The same, one every 150 s.",
        "tracebed.converters.models.papers:deadline",
        {"factor": 150.0},
    ),
    "deadline-very-heavy": Model(
        "The same, one every second.",
        "tracebed.converters.models.papers:deadline",
        {"factor": 1.0},
    ),
}


def draw(model: str, jobs: int | None = None, **options: Any) -> Workload:
    """Draw a workload from a model.

    Args:
        model: one of `MODELS`.
        jobs: how many; a workload of a paper has a number of its own.
        options: the model's own; see its function.

    Raises:
        InputError: there is no such model, or an option is out of its range.
    """
    if model not in MODELS:
        raise InputError(f"no model {model!r}", hint=f"one of {', '.join(MODELS)}")
    return MODELS[model].load()(**({} if jobs is None else {"jobs": jobs}), **options)
