"""The workload models that are installed, and the papers' workloads, by name.

A new model is a module with a function and one line in `pyproject.toml`, here or in a package of its own:

    [project.entry-points."tracebed.models"]
    mine = "my_package.mine:mine"

The function is `mine(jobs, *, nodes=None, cores_per_node=1, seed=0, parameters=None, ...) -> Workload`. `parameters`
is a frozen dataclass of the constants. Each other argument (bool, int, float, str, Path or a Literal) becomes an option
of `tracebed generate`, explained by the docstring. A workload of a fixed number of jobs gives `jobs` a default. A
`functools.partial` with a docstring below it is a model, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tracebed.registry import Registry

if TYPE_CHECKING:
    from tracebed.converters.workload import Workload

MODELS: Registry[Callable[..., Workload]] = Registry("tracebed.models", "model")


def draw(model: str, jobs: int | None = None, **options: Any) -> Workload:
    """Draw a workload from a model.

    Args:
        model: the name of one of `MODELS`.
        jobs: how many; a workload of a paper has a number of its own.
        options: those of the model; see its function.

    Raises:
        InputError: there is no such model, or an option is out of its range.
    """
    return MODELS.load(model)(**({} if jobs is None else {"jobs": jobs}), **options)
