"""The settings of a setup as keys of YAML files."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, create_model

from tracebed.ground.errors import InputError
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.setup import SETUP_PARTS, TYPES, UNKNOWN_POLICY, Setup
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.simulation.runtime_models import RuntimeModel

LENIENT: dict[Any, Any] = {
    Overheads: dict[str, float],
    OverLimit: Annotated[OverLimit, Field(strict=False)],
    RuntimeModel: Annotated[RuntimeModel, Field(strict=False)],
}
"""Type of a setting -> its type in a strict model, where it differs."""
AXES = ("priority", "runtime_model", "interval_s", "malleability_interval_s")
"""Settings of which an experiment may have several values."""
OF_ALL_CELLS = tuple(
    name
    for room in SETUP_PARTS.values()
    for name in room
    if name not in ("policy", "policy_parameters", "calibration", *AXES)
)
"""Settings with one value for all cells of an experiment: all but the policy, the axes, and files."""
OF_REPLAYS = (*(name for name in SETUP_PARTS["scheduling"] if not name.startswith("policy")), "speed")
"""Settings of a replay, besides its policy."""


def model_of(name: str, base: type[BaseModel], settings: Iterable[str]) -> Any:
    """Return a pydantic model with a key for each of `settings`. None: the key is not given."""
    fields: dict[str, Any] = {}
    for setting in settings:
        kind: Any = Annotated[LENIENT.get(TYPES[setting], TYPES[setting]), AfterValidator(partial(_checked, setting))]
        fields[setting] = (kind | None, None)
    return create_model(name, __base__=base, **fields)


def given(spec: BaseModel, settings: Iterable[str]) -> dict[str, Any]:
    """Return the settings that are given in a model of `model_of`."""
    values = {name: getattr(spec, name) for name in settings if name in type(spec).model_fields}
    return {name: value for name, value in values.items() if value is not None}


def _checked(name: str, value: Any) -> Any:
    """Return the value of a setting. Raises ValueError if it is invalid."""
    try:
        Setup.of(UNKNOWN_POLICY, **{name: value})
    except InputError as error:
        raise ValueError(f"{error.what}; {error.hint}" if error.hint else error.what) from error
    return value
