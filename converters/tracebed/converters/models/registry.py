"""The registry of workload models and of the papers' workloads, by name.

To add a model, write a function and add its entry point to the `pyproject.toml` of tracebed or of another package:

    [project.entry-points."tracebed.models"]
    mine = "my_package.mine:mine"

The function is `mine(jobs, *, nodes=None, cores_per_node=1, seed=0, parameters=None, ...) -> Workload`. Every job uses
all cores of its nodes. `parameters` is a frozen dataclass of the constants. Every other argument (bool, int, float,
str, Path or a Literal) becomes an option of `tracebed generate`; the docstring is its help text. A value out of range
raises InputError. A workload with a fixed number of jobs has a default for `jobs`. A model can also be a
`functools.partial` with a docstring below its assignment.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from tracebed.ground.extension_errors import checked
from tracebed.ground.parameters import with_parameters
from tracebed.ground.registry import Registry

if TYPE_CHECKING:
    from tracebed.converters.workload import Workload

MODELS: Registry[Callable[..., Workload]] = Registry("tracebed.models", "model", Callable)


def models() -> dict[str, str]:
    """Return the name of each installed model of workloads, with a line about it. The models are not imported.

    Example:
        >>> "cirne" in models()
        True
    """
    return {name: MODELS.summary(name) for name in MODELS.names()}


def draw(model: str, jobs: int | None = None, **options: Any) -> Workload:
    """Draw a workload from a model of `MODELS`; the workloads of papers have a default number of jobs.

    `options` are other arguments of the model's function. `parameters` may be a mapping: constant -> value; the other
    constants are the function's defaults. Raises InputError if the model is unknown, or an option is out of range.
    """
    from tracebed.converters.workload import Workload

    function = MODELS.load(model)
    constants = options.get("parameters")
    if isinstance(constants, Mapping):
        argument = inspect.signature(function, eval_str=True).parameters["parameters"]
        kind, default = argument.annotation, argument.default
        (factory,) = (part for part in get_args(kind) or [kind] if part is not type(None))
        changed = with_parameters("model", model, factory, constants)
        if isinstance(default, factory):
            changed = replace(default, **{name: getattr(changed, name) for name in constants})
        options["parameters"] = changed
    drawn = function(**({} if jobs is None else {"jobs": jobs}), **options)
    made: Workload = checked(drawn, Workload, f"model {model}", function)
    return made
