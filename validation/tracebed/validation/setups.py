"""The settings of a setup as keys of YAML files."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, create_model

from tracebed.ground.errors import InputError
from tracebed.orchestrator.setup import SETTINGS, SETUP_PARTS, TYPES, UNKNOWN_POLICY, Setup
from tracebed.orchestrator.simulation.overheads import Overheads

AXES = tuple(name for name, setting in SETTINGS.items() if setting.metadata["axis"])
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
    fields: dict[str, Any] = {
        setting: (Annotated[type_of(setting) | None, BeforeValidator(partial(_one_value, setting))], None)
        for setting in settings
    }
    return create_model(name, __base__=base, **fields)


def type_of(setting: str) -> Any:
    """Return the type of one value of a setting in a strict model, with its check."""
    kind = TYPES[setting]
    if kind is Overheads:
        kind = dict[str, float]
    elif isinstance(kind, type) and issubclass(kind, enum.Enum):
        kind = Annotated[kind, Field(strict=False)]  # a strict model takes members only, and YAML has their names
    return Annotated[kind, AfterValidator(partial(_checked, setting))]


def given(spec: BaseModel, settings: Iterable[str]) -> dict[str, Any]:
    """Return the settings that are given in a model of `model_of`."""
    values = {name: getattr(spec, name) for name in settings if name in type(spec).model_fields}
    return {name: value for name, value in values.items() if value is not None}


def _one_value(name: str, value: Any) -> Any:
    """Return the value of a setting. Raises ValueError for several values in a list."""
    if isinstance(value, list) and TYPES[name] is not Overheads:
        raise ValueError("takes one value, not a list")
    return value


def _checked(name: str, value: Any) -> Any:
    """Return the value of a setting. Raises ValueError if it is invalid."""
    try:
        Setup.of(UNKNOWN_POLICY, **{name: value})
    except InputError as error:
        raise ValueError(f"{error.what}; {error.hint}" if error.hint else error.what) from error
    return value
